/** Nodes of a graph as graphs of their own, which are computed one after the other. */
import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';

/** All that a placed graph computes, in order. */
export function graphNodes(ggml: Ggml, graph: Pointer): Pointer[] {
  return Array.from(
    { length: ggml.ggml_graph_n_nodes(graph) },
    (_, index) => ggml.ggml_graph_node(graph, index)!,
  );
}

/**
 * As many parts as `ends` has; behind the last end, nodes belong to the last part.
 *
 * @param ends the last node of each part, in the order of the nodes; one that is no node ends a part without any
 */
export function cutBehind(nodes: readonly Pointer[], ends: readonly Pointer[]): Pointer[][] {
  const places = new Map(nodes.map((node, index) => [node, index]));
  let begin = 0;
  return ends.map((end, part) => {
    const next = part === ends.length - 1 ? nodes.length : Math.max(begin, (places.get(end) ?? -1) + 1);
    const cut = nodes.slice(begin, next);
    begin = next;
    return cut;
  });
}

/**
 * A graph of nodes that are placed as they were, in memory of its own. A backend joins no neighbours in it to one
 * kernel: nothing says there who else reads a node.
 */
export class PartGraph {
  readonly graph: Pointer;
  readonly #ggml: Ggml;
  readonly #context: Pointer;

  constructor(ggml: Ggml, nodes: readonly Pointer[]) {
    this.#ggml = ggml;
    const mem_size = Number(ggml.ggml_graph_overhead_custom(nodes.length, false));
    this.#context = ggml.ggml_init({ mem_size, mem_buffer: null, no_alloc: true })!;
    this.graph = ggml.ggml_new_graph_custom(this.#context, nodes.length, false)!;
    for (const node of nodes) ggml.ggml_graph_add_node(this.graph, node);
  }

  free(): void {
    this.#ggml.ggml_free(this.#context);
  }
}

/** @returns seconds that each of them took */
export function timed_s(parts: readonly (() => void)[]): number[] {
  return parts.map((run) => {
    const began_ms = performance.now();
    run();
    return (performance.now() - began_ms) / 1000;
  });
}
