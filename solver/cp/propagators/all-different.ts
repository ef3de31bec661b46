import { fail } from '../inconsistency.ts';
import { Propagator } from '../propagator.ts';
import type { Variable } from '../variable.ts';

/**
 * All variables take different values; domain-consistent (Régin, AAAI 1994). A maximum matching of
 * variables to values is kept; a value is possible for a variable exactly if the edge is in the matching, on
 * an even path from a free value, or inside a strongly connected component of the residual graph.
 */
export class AllDifferent extends Propagator {
  override readonly priority = 'late';
  readonly #variables: readonly Variable[];

  constructor(variables: readonly Variable[]) {
    super();
    this.#variables = variables;
  }

  watch(): void {
    for (const variable of this.#variables) variable.wakeOnChange(this);
  }

  propagate(): void {
    const domains = this.#variables.map((variable) => variable.values());
    const numbers = new Map<number, number>();
    for (const value of domains.flat()) if (!numbers.has(value)) numbers.set(value, numbers.size);
    const edges = domains.map((values) => values.map((value) => numbers.get(value)!));
    const { matchOf, takerOf } = matching(edges, numbers.size);
    const component = components(edges, matchOf, takerOf);
    for (let i = 0; i < edges.length; i++) {
      for (let k = 0; k < edges[i]!.length; k++) {
        const value = edges[i]![k]!;
        if (matchOf[i] !== value && component[i] !== component[edges.length + value])
          this.#variables[i]!.remove(domains[i]![k]!);
      }
    }
  }
}

/** Every variable matched to a value of its own (augmenting paths). @throws inconsistency if impossible */
function matching(edges: readonly number[][], values: number): { matchOf: number[]; takerOf: number[] } {
  const matchOf = edges.map(() => -1);
  const takerOf = new Array<number>(values).fill(-1);
  const seen = new Array<number>(values).fill(-1);
  const augment = (variable: number, round: number): boolean => {
    for (const value of edges[variable]!) {
      if (seen[value] === round) continue;
      seen[value] = round;
      if (takerOf[value]! < 0 || augment(takerOf[value]!, round)) {
        takerOf[value] = variable;
        matchOf[variable] = value;
        return true;
      }
    }
    return false;
  };
  for (let variable = 0; variable < edges.length; variable++) if (!augment(variable, variable)) fail();
  return { matchOf, takerOf };
}

/**
 * Strongly connected components (Tarjan) of: matched variable → its value; value → each other variable that
 * may take it; free values ↔ one sink, so that even paths from free values join the sink's component.
 * Nodes: variables, then values, then the sink.
 */
function components(
  edges: readonly number[][],
  matchOf: readonly number[],
  takerOf: readonly number[],
): number[] {
  const variables = edges.length;
  const sink = variables + takerOf.length;
  const successors: number[][] = Array.from({ length: sink + 1 }, () => []);
  for (let variable = 0; variable < variables; variable++) {
    for (const value of edges[variable]!) {
      if (matchOf[variable] === value) successors[variable]!.push(variables + value);
      else successors[variables + value]!.push(variable);
    }
  }
  for (let value = 0; value < takerOf.length; value++) {
    if (takerOf[value]! < 0) successors[sink]!.push(variables + value);
    else successors[variables + value]!.push(sink);
  }
  const order = new Array<number>(sink + 1).fill(-1);
  const low = order.slice();
  const component = order.slice();
  const stack: number[] = [];
  let visited = 0;
  let found = 0;
  const visit = (node: number): void => {
    order[node] = low[node] = visited++;
    stack.push(node);
    for (const next of successors[node]!) {
      if (order[next]! < 0) visit(next);
      if (component[next]! < 0) low[node] = Math.min(low[node]!, low[next]!);
    }
    if (low[node] !== order[node]) return;
    for (;;) {
      const member = stack.pop()!;
      component[member] = found;
      if (member === node) break;
    }
    found++;
  };
  for (let node = 0; node <= sink; node++) if (order[node]! < 0) visit(node);
  return component;
}
