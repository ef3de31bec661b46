/** The tree search over listed patterns, and the large neighbourhood search on the same tree. */

import { inconsistency } from '../cp/inconsistency.ts';
import { Minimiser } from '../cp/minimise.ts';
import { PropagationEngine } from '../cp/propagation-engine.ts';
import type { Random } from '../cp/random.ts';
import type { SearchLimits } from '../cp/search.ts';
import { Variable } from '../cp/variable.ts';
import { splitByDevices } from './branching.ts';
import { CapacitatedChoice } from './capacitated-choice.ts';
import type { ModelPatterns } from './patterns.ts';

/** Told of a better plan: the pattern of each model. */
export type OnPlan = (patterns: readonly number[], cost: number) => void;

/** Models that a neighbourhood frees beside those that are left out. Higher: better plans, dearer rounds. */
const neighbourhood_models = 8;
const neighbourhood_nodes = 80;
/** Nodes of the search for a first plan, in which models may be left out. */
const first_nodes = 300;

interface Search {
  minimiser: Minimiser;
  constraint: CapacitatedChoice;
  choices: Variable[];
  branching: ReturnType<typeof splitByDevices>;
}

/** Undefined where the relaxation at the root already shows that no plan costs at most `most`. */
function open(
  patterns: readonly ModelPatterns[],
  counts: Float64Array,
  most: number,
  onPlan: OnPlan,
): Search | undefined {
  if (most < 0 || patterns.some(({ count }) => count === 0)) return undefined;
  const engine = new PropagationEngine();
  const choices = patterns.map(({ count }) => Variable.of(engine, Array(count).keys()));
  const objective = Variable.range(engine, 0, most);
  const constraint = new CapacitatedChoice(engine.trail, choices, patterns, counts, objective);
  try {
    engine.post(constraint);
  } catch (error) {
    if (error !== inconsistency) throw error;
    return undefined;
  }
  const minimiser = new Minimiser({
    engine,
    objective,
    decisions: choices,
    onProgress: ({ incumbent }) => {
      if (incumbent !== undefined) onPlan(minimiser.solution!, incumbent);
    },
  });
  return { minimiser, constraint, choices, branching: splitByDevices(constraint, choices) };
}

export interface PatternSearchResult {
  /** All plans of these patterns that cost at most what was asked were seen. */
  complete: boolean;
  nodes: number;
  /** Prices of the relaxation at the root, where it has a solution. */
  prices: Float64Array | undefined;
}

/** Looks for the cheapest plan of these patterns that costs at most `most`. */
export function searchPatterns(
  patterns: readonly ModelPatterns[],
  counts: Float64Array,
  most: number,
  onPlan: OnPlan,
  limits: SearchLimits,
): PatternSearchResult {
  const search = open(patterns, counts, most, onPlan);
  if (search === undefined) return { complete: true, nodes: 0, prices: undefined };
  const prices = search.constraint.relaxation.prices.slice();
  const { complete, nodes } = search.minimiser.run(search.branching, limits);
  return { complete, nodes, prices };
}

/** The dearest plan that these patterns can make. */
function dearestPlan(patterns: readonly ModelPatterns[], types: number): number {
  let sum = 0;
  for (const { data } of patterns) {
    let most = 0;
    for (let at = 0; at < data.length; at += types + 1) most = Math.max(most, data[at]!);
    sum += most;
  }
  return sum;
}

/** The same with one pattern more that takes nothing at a cost above all others: the model is left out. */
function withLeftOut(patterns: readonly ModelPatterns[], types: number): ModelPatterns[] {
  let dearest = 1;
  for (const { data } of patterns)
    for (let at = 0; at < data.length; at += types + 1) dearest = Math.max(dearest, data[at]!);
  return patterns.map(({ count, data, options }) => {
    const more = new Float64Array(data.length + types + 1);
    more.set(data);
    more[data.length] = 2 * dearest;
    return { count: count + 1, data: more, options };
  });
}

/**
 * Large neighbourhood search: all but a few models are fixed to the plan at hand, and the few are solved exactly.
 * Without a plan at hand models may be left out, so that there always is something to improve on; only plans that
 * leave out none are told.
 * @param start a plan of these patterns, and its cost
 * @returns the nodes it took
 */
export function improveByNeighbourhoods(
  patterns: readonly ModelPatterns[],
  counts: Float64Array,
  start: { patterns: readonly number[]; cost: number } | undefined,
  onPlan: OnPlan,
  { random, rounds, shouldStop }: { random: Random; rounds: number; shouldStop: () => boolean },
): number {
  const types = counts.length;
  const listed = start ? patterns : withLeftOut(patterns, types);
  const isLeftOut = (pattern: number, model: number): boolean => pattern >= patterns[model]!.count;
  const most = start ? start.cost : dearestPlan(listed, types);
  const search = open(listed, counts, most, (chosen, cost) => {
    if (!chosen.some(isLeftOut)) onPlan(chosen, cost);
  });
  if (search === undefined) return 0;
  const { minimiser, branching, choices } = search;
  if (start) minimiser.start(start.patterns, start.cost);
  else minimiser.run(branching, { shouldStop, nodes_max: first_nodes });
  const pick = (random: Random): number[] => {
    const left_out = choices.flatMap((_, model) =>
      isLeftOut(minimiser.solution?.[model] ?? 0, model) ? [model] : [],
    );
    const others = random.shuffle(choices.map((_, model) => model));
    return [...left_out, ...others].slice(0, left_out.length + neighbourhood_models);
  };
  minimiser.improve(branching, pick, random, rounds, { shouldStop, nodes_max: neighbourhood_nodes });
  return minimiser.nodes;
}
