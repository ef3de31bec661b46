import type { Alternative, Branching } from './branching.ts';
import { inconsistency } from './inconsistency.ts';
import type { PropagationEngine } from './propagation-engine.ts';

export interface SearchLimits {
  /** Nodes to visit at most; one node is one alternative tried. */
  nodes_max?: number;
  /** Asked at every node: a deadline or a cancellation of the caller. True ends the search. */
  shouldStop?: () => boolean;
  /** Asked after every solution: true ends the search. */
  enough?: () => boolean;
}

export interface SearchOutcome {
  nodes: number;
  failures: number;
  solutions: number;
  /** The whole tree below the starting node was seen: nothing was left out. */
  complete: boolean;
}

/**
 * Depth-first search below the present state, which is restored at the end. Every node starts with
 * `onNode`, where branch and bound tightens the objective; then propagation runs to its fixed point.
 */
export function depthFirst(
  engine: PropagationEngine,
  branching: Branching,
  onSolution: () => void,
  limits: SearchLimits = {},
  onNode: () => void = () => undefined,
): SearchOutcome {
  const { trail } = engine;
  const outcome: SearchOutcome = { nodes: 0, failures: 0, solutions: 0, complete: false };
  const nodes_max = limits.nodes_max ?? Number.POSITIVE_INFINITY;
  const root = trail.level;
  const open: { alternatives: readonly Alternative[]; next: number }[] = [];

  /** Runs one step in a level of its own and descends; backs out of it where it fails. */
  const enter = (step: Alternative): void => {
    trail.push();
    try {
      onNode();
      step();
      engine.propagate();
    } catch (error) {
      engine.forget();
      if (error !== inconsistency) throw error;
      outcome.failures++;
      trail.pop();
      return;
    }
    const alternatives = branching();
    if (alternatives.length > 0) {
      open.push({ alternatives, next: 0 });
      return;
    }
    outcome.solutions++;
    onSolution();
    trail.pop();
  };

  try {
    enter(() => undefined);
    for (;;) {
      const node = open.at(-1);
      if (node === undefined) {
        outcome.complete = true;
        return outcome;
      }
      if (outcome.solutions > 0 && limits.enough?.()) return outcome;
      if (node.next === node.alternatives.length) {
        open.pop();
        trail.pop();
        continue;
      }
      if (outcome.nodes >= nodes_max || limits.shouldStop?.()) return outcome;
      outcome.nodes++;
      enter(node.alternatives[node.next++]!);
    }
  } finally {
    trail.popTo(root);
  }
}
