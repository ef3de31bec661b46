/**
 * Solves an assignment problem: prices, a plan, then ceilings that rise from the bound until the cheapest plan is
 * below one. See docs/solver.md for the ideas; each step is a file of its own.
 */
import { Random } from '../cp/random.ts';
import { choiceCost } from './check.ts';
import { exhaust } from './exhaust.ts';
import { improveByNeighbourhoods, searchPatterns } from './pattern-search.ts';
import { enumeratePatterns, type ModelPatterns, somePatterns, withPattern } from './patterns.ts';
import { PricedModel } from './priced-model.ts';
import { searchPrices } from './prices.ts';
import {
  type AssignmentChoice,
  type AssignmentOption,
  type AssignmentProblem,
  requireValid,
  trafficUnits,
} from './problem.ts';
import { frugalOptions, paretoOptions } from './reduce.ts';
import { type Combinations, Repair } from './repair.ts';

export interface SolveOptions {
  /** Same seed, same run. */
  seed?: number;
  /** Asked at every node; true ends the search with what it has. */
  shouldStop?: () => boolean;
  /** Nodes of all searches together at most. */
  nodes_max?: number;
  /** Patterns listed at once at most: about 300 bytes each while they are made. Beyond, nothing is listed. */
  patterns_max?: number;
  /** From an earlier solution of a similar problem. */
  warm?: { prices?: readonly number[]; choice?: AssignmentChoice };
  /** Told at each better solution and each better bound. */
  onProgress?: (progress: { cost: number | undefined; bound: number }) => void;
}

export interface SolveResult {
  /**
   * `optimal`: no choice is cheaper, proved. `feasible`: `cost` is within `cost − bound` of the optimum.
   * `infeasible`: there is no choice, proved. `unknown`: none was found in the time given.
   */
  status: 'optimal' | 'feasible' | 'infeasible' | 'unknown';
  choice: AssignmentChoice | undefined;
  cost: number | undefined;
  /** No choice costs less. */
  bound: number;
  /** Price of a device by type: what one more of it would save, about. */
  prices: number[];
  nodes: number;
  /** How often a model chose anew, beside what the others hold, on the way to a first plan. */
  repairs: number;
}

/** Evaluations of the first search for prices. */
const evaluations_max = 400;
/** Patterns a model has on average in what neighbourhoods are taken from. */
const core_patterns_per_model = 40;
const patterns_max_default = 300_000;
/** Patterns a model has at most where those that cost the same are too many to list. */
const tied_patterns_max = 200;
/** A plan so near to the bound, as a share of it, needs no look for a better one before the ceilings rise. */
const close_enough = 0.01;
const core_nodes = 300;
/** The first ceiling is so far above the bound, as a share of it. Lower: more rungs. Higher: slower ones. */
const first_rung = 2e-4;
/** A rung that was cut short is tried again so much nearer to the last one that was not. */
const regrowth = 1.3;
/**
 * A plan at hand that is so many times as far above the bound as the next ceiling is a ceiling good enough. Lower: more
 * rungs; higher: slower ones where the plan is a bad one.
 */
const last_reach = 1.5;
/** Nodes of a rung in the first round; each round has so many times more of everything. */
const rung_nodes = 4000;
const round_growth = 4;
/** Nodes of the search that goes straight to the end where few patterns are left. */
const straight_nodes = 500;
const neighbourhood_rounds = 150;
/** Models that choose anew to repair a plan: before anything else, and in the first round. */
const repair_choices_first = 10_000;
const repair_choices = 100_000;
/** Combinations that the search without lists looks at in the first round. */
const exhaust_nodes = 20_000;

/** @throws RangeError for numbers that make no sense */
export function solveAssignment(problem: AssignmentProblem, options: SolveOptions = {}): SolveResult {
  requireValid(problem);
  return new AssignmentSolver(problem, options).solve();
}

interface Incumbent {
  cost: number;
  choice: AssignmentChoice;
}

/** How a climb ended: with a proof, short of nodes, or where patterns became too many to list. */
type Climb = 'proved' | 'cut' | 'too_many';

class AssignmentSolver {
  readonly #problem: AssignmentProblem;
  readonly #options: SolveOptions;
  /** Options worth looking at, by model. */
  readonly #kept: readonly (readonly number[])[];
  readonly #models: readonly PricedModel[];
  readonly #counts: Float64Array;
  readonly #random: Random;
  /** No plan costs more, however it is chosen. */
  readonly #dearest: number;
  #prices: Float64Array;
  /** The bound that `#prices` give: reduced costs at these prices are measured from it. */
  #priceBound = Number.NEGATIVE_INFINITY;
  /** The best bound from anywhere. */
  #bound = Number.NEGATIVE_INFINITY;
  /** All cheaper plans were looked for, and there are none. */
  #leastSearched = 0;
  #incumbent: Incumbent | undefined;
  #repair: Repair | undefined;
  #nodes = 0;
  #repairs = 0;

  constructor(problem: AssignmentProblem, options: SolveOptions) {
    const { counts } = problem;
    this.#problem = problem;
    this.#options = options;
    this.#counts = Float64Array.from(counts);
    this.#random = new Random(options.seed ?? 1);
    this.#kept = paretoOptions(problem);
    this.#models = problem.options.map(
      (each, model) => new PricedModel(each, this.#kept[model]!, counts.length, trafficUnits(problem, model)),
    );
    this.#dearest = problem.options.reduce((sum, each) => sum + dearestOf(each, counts.length), 0);
    this.#prices = new Float64Array(counts.length);
  }

  solve(): SolveResult {
    if (!this.#findPrices()) return this.#result('infeasible');
    this.#takeWarmChoice();
    if (this.#findPlan() || this.#prove()) return this.#result(this.#incumbent ? 'optimal' : 'infeasible');
    return this.#result(this.#incumbent ? 'feasible' : 'unknown');
  }

  /** A first plan, in little time, where there is none yet. True where it turns out that there is none at all. */
  #findPlan(): boolean {
    if (this.#incumbent === undefined) this.#repairPlan(repair_choices_first);
    return this.#incumbent === undefined && this.#refutes(rung_nodes);
  }

  /** False where some model has no combination at all. */
  #findPrices(): boolean {
    const types = this.#counts.length;
    const start = new Float64Array(types);
    let free = 0;
    for (const model of this.#models) free += model.solve(start);
    if (free === Number.POSITIVE_INFINITY) return false;
    const scale = Float64Array.from(this.#counts, (count) => Math.max(1, free) / Math.max(1, count) / types);
    const warm = this.#options.warm?.prices;
    if (warm?.length === types)
      warm.forEach((price, type) => {
        start[type] = price;
        scale[type] = Math.max(scale[type]! / 100, price / 10);
      });
    const found = searchPrices(this.#models, this.#counts, start, scale, evaluations_max);
    this.#takePrices(found.prices, found.bound);
    return true;
  }

  /** @param given what `prices` give, of which rounding is taken off: it is a difference of larger numbers */
  #takePrices(prices: Float64Array, given: number): void {
    const devices = prices.reduce((sum, price, type) => sum + price * this.#counts[type]!, 0);
    const bound = given - 1e-12 * devices;
    if (bound <= this.#priceBound) return;
    this.#prices = prices;
    this.#priceBound = bound;
    this.#raise(bound);
  }

  /** Prices of a relaxation are often better than those found before it. */
  #reprice(prices: Float64Array): void {
    let bound = 0;
    for (const model of this.#models) bound += model.solve(prices);
    for (let type = 0; type < prices.length; type++) bound -= prices[type]! * this.#counts[type]!;
    this.#takePrices(prices, bound);
  }

  #takeWarmChoice(): void {
    const choice = this.#options.warm?.choice;
    if (choice === undefined || choice.length !== this.#problem.options.length) return;
    const cost = choiceCost(this.#problem, choice);
    if (cost !== undefined) this.#accept({ cost, choice: choice.map((each) => [...each]) });
  }

  /**
   * Rounds with more of everything each, until the proof: ceilings as far as they are reached, then whatever may
   * give a better plan. False only where the caller stops it.
   */
  #prove(): boolean {
    this.#searchCore();
    for (let effort = 1; !this.#stopped(); effort *= round_growth) {
      const climb = this.#climb(effort * rung_nodes);
      if (climb === 'proved') return true;
      if (this.#stopped()) return false;
      if (this.#incumbent === undefined) this.#repairPlan(effort * repair_choices);
      if (this.#incumbent === undefined && this.#refutes(effort * rung_nodes)) return true;
      if (!this.#stopped()) this.#improve(effort * neighbourhood_rounds);
      if (climb === 'too_many' && this.#exhaust(effort * exhaust_nodes)) return true;
    }
    return false;
  }

  #stopped(): boolean {
    return this.#nodes >= this.#nodesMax || (this.#options.shouldStop?.() ?? false);
  }

  get #nodesMax(): number {
    return this.#options.nodes_max ?? Number.POSITIVE_INFINITY;
  }

  /** What a plan may cost that is worth finding. */
  get #most(): number {
    return this.#incumbent ? this.#incumbent.cost - 1 : this.#dearest;
  }

  /** Least whole cost that the best bound allows. */
  get #leastCost(): number {
    return Math.max(this.#leastSearched, Math.ceil(this.#bound - 1e-6 - 1e-10 * Math.abs(this.#bound)));
  }

  /**
   * Ceilings on the cost, each farther above the bound than the one before. Below a low ceiling few patterns are
   * worth listing, and the search among them is soon over: there is no plan as cheap as that, and the bound is
   * the ceiling; or the cheapest plan is found, with its proof.
   */
  #climb(nodes: number): Climb {
    if (this.#leastCost > this.#most) return 'proved';
    let step = Math.max(2, first_rung * this.#priceBound, regrowth * (this.#bound - this.#priceBound));
    if (this.#coversMost()) {
      const patterns = this.#enumerate(this.#most - this.#priceBound, this.#patternsMax);
      if (patterns && this.#searchRung(patterns, this.#most, straight_nodes)) return 'proved';
    }
    for (;;) {
      const next = Math.max(this.#leastCost, Math.floor(this.#priceBound + step));
      const reach = (this.#most - this.#priceBound) / (next - this.#priceBound);
      const ceiling = this.#incumbent && reach <= last_reach ? this.#most : Math.min(this.#most, next);
      const slack = ceiling - this.#priceBound;
      const patterns = this.#enumerate(slack, this.#patternsMax);
      if (patterns === undefined) return this.#stopped() ? 'cut' : 'too_many';
      const most = this.#most;
      if (!this.#searchRung(patterns, ceiling, nodes)) return 'cut';
      if (ceiling === most || this.#most < ceiling) return 'proved';
      this.#leastSearched = ceiling + 1;
      this.#raise(ceiling + 1);
      if (this.#leastCost > this.#most) return 'proved';
      const each = patterns.reduce((sum, { count }) => sum + count, 0) / this.#models.length;
      step = slack * growthOf(each);
    }
  }

  /** Whether all that may be in a better plan is so little that ceilings would only take time. */
  #coversMost(): boolean {
    const wanted = core_patterns_per_model * this.#models.length;
    return this.#enumerate(this.#most - this.#priceBound, wanted) !== undefined;
  }

  get #patternsMax(): number {
    return this.#options.patterns_max ?? patterns_max_default;
  }

  #enumerate(slack: number, most: number): ModelPatterns[] | undefined {
    const { shouldStop } = this.#options;
    return enumeratePatterns(this.#models, this.#counts, this.#prices, {
      slack: slack + 1e-6 + 1e-10 * Math.abs(this.#priceBound),
      patterns_max: Math.min(most, this.#patternsMax),
      shouldStop,
    });
  }

  /** Whether all plans of these patterns that cost at most `ceiling` were seen. */
  #searchRung(patterns: readonly ModelPatterns[], ceiling: number, nodes: number): boolean {
    const found = searchPatterns(
      patterns,
      this.#counts,
      ceiling,
      (chosen, cost) => this.#adopt(patterns, chosen, cost),
      {
        shouldStop: () => this.#options.shouldStop?.() ?? false,
        nodes_max: Math.min(nodes, this.#nodesMax - this.#nodes),
      },
    );
    this.#nodes += found.nodes;
    if (found.prices) this.#reprice(found.prices);
    return found.complete;
  }

  /** All patterns of so little reduced cost that there are about as many as wanted. */
  #corePatterns(): ModelPatterns[] {
    const wanted = core_patterns_per_model * this.#models.length;
    const gap = this.#most - this.#priceBound;
    let slack = Math.max(1, 0.005 * this.#priceBound);
    let best: ModelPatterns[] | undefined;
    for (let round = 0; round < 30; round++) {
      slack = Math.min(slack, gap);
      const patterns = this.#enumerate(slack, 4 * wanted);
      if (patterns === undefined) {
        if (best) break;
        slack /= 4;
        continue;
      }
      best = patterns;
      const count = patterns.reduce((sum, each) => sum + each.count, 0);
      if (slack >= gap || count >= wanted) break;
      slack *= 2;
    }
    return best ?? somePatterns(this.#models, this.#counts, this.#prices, slack, tied_patterns_max);
  }

  /** Whoever stops the search soon is to have a good plan: a look at what is cheap at the prices, without a proof. */
  #searchCore(): void {
    if (this.#most - this.#priceBound <= close_enough * this.#priceBound || this.#stopped()) return;
    const core = this.#corePatterns();
    if (core.every(({ count }) => count > 0)) this.#searchRung(core, this.#most, core_nodes);
  }

  #improve(rounds: number): void {
    const core = this.#corePatterns();
    if (core.some(({ count }) => count === 0)) return;
    const start = this.#incumbent && { patterns: this.#listIncumbent(core), cost: this.#incumbent.cost };
    this.#nodes += improveByNeighbourhoods(
      core,
      this.#counts,
      start,
      (chosen, cost) => this.#adopt(core, chosen, cost),
      { random: this.#random, rounds, shouldStop: () => this.#stopped() },
    );
  }

  /** The patterns of the plan at hand; those that are not among `patterns` are added there. */
  #listIncumbent(patterns: ModelPatterns[]): number[] {
    const { counts, options } = this.#problem;
    return this.#incumbent!.choice.map((indices, model) => {
      const taken = new Int32Array(counts.length).fill(-1);
      const devices = new Float64Array(counts.length);
      let cost = 0;
      for (const index of indices) {
        const option = options[model]![index]!;
        taken[option.type] = this.#models[model]!.indices.indexOf(index);
        devices[option.type] = option.devices;
        cost += option.cost;
      }
      const listed = withPattern(patterns[model]!, taken, devices, cost);
      patterns[model] = listed.patterns;
      return listed.at;
    });
  }

  /** A plan in which every model chooses alone, beside the others; see repair.ts. */
  #repairPlan(choices: number): void {
    this.#repair ??= new Repair(this.#models, this.#counts, this.#prices, this.#random);
    const found = this.#repair.run(choices, () => this.#options.shouldStop?.() ?? false);
    this.#repairs += found.choices;
    if (found.combinations) this.#adoptCombinations(found.combinations);
  }

  /**
   * Whether there is no plan at all. Only the options with the fewest devices matter for that, and they make few
   * patterns. Where they make a plan, it is taken.
   */
  #refutes(nodes_max: number): boolean {
    const frugal = frugalOptions(this.#problem, this.#kept);
    if (frugal.every((indices, model) => indices.length === this.#kept[model]!.length)) return false;
    const options = frugal.map((indices, model) =>
      indices.map((index) => this.#problem.options[model]![index]!),
    );
    let found = false;
    const { patterns_max } = this.#options;
    const { status, choice, nodes, repairs } = new AssignmentSolver(
      { ...this.#problem, options },
      {
        shouldStop: () => found || (this.#options.shouldStop?.() ?? false),
        nodes_max: Math.min(nodes_max, this.#nodesMax - this.#nodes),
        patterns_max,
        onProgress: ({ cost }) => {
          found = cost !== undefined;
        },
      },
    ).solve();
    this.#nodes += nodes;
    this.#repairs += repairs;
    if (choice !== undefined)
      this.#acceptChoice(choice.map((each, model) => each.map((at) => frugal[model]![at]!)));
    return status === 'infeasible';
  }

  #exhaust(nodes: number): boolean {
    let seen = 0;
    const complete = exhaust(
      this.#models,
      this.#counts,
      this.#prices,
      this.#priceBound,
      (combinations) => this.#adoptCombinations(combinations),
      {
        most: () => this.#most,
        shouldStop: (count) => {
          seen = count;
          return (
            count > nodes || this.#nodes + count >= this.#nodesMax || (this.#options.shouldStop?.() ?? false)
          );
        },
      },
    );
    this.#nodes += seen;
    return complete;
  }

  #adoptCombinations(combinations: Combinations): void {
    this.#acceptChoice(combinations.map((taken, model) => this.#choiceOf(model, taken)));
  }

  #adopt(patterns: readonly ModelPatterns[], chosen: readonly number[], cost: number): void {
    if (cost > this.#most) return;
    const types = this.#counts.length;
    const choice = chosen.map((pattern, model) =>
      this.#choiceOf(model, patterns[model]!.options.subarray(pattern * types, (pattern + 1) * types)),
    );
    this.#accept({ cost, choice });
  }

  /** Indices of options from grouped ones by type. */
  #choiceOf(model: number, taken: Int32Array): number[] {
    return [...taken]
      .filter((option) => option >= 0)
      .map((option) => this.#models[model]!.indices[option]!)
      .sort((a, b) => a - b);
  }

  #acceptChoice(choice: AssignmentChoice): void {
    const cost = choiceCost(this.#problem, choice)!;
    if (cost <= this.#most) this.#accept({ cost, choice });
  }

  #accept(incumbent: Incumbent): void {
    this.#incumbent = incumbent;
    this.#options.onProgress?.({ cost: incumbent.cost, bound: this.#bound });
  }

  #raise(bound: number): void {
    if (bound <= this.#bound) return;
    this.#bound = bound;
    this.#options.onProgress?.({ cost: this.#incumbent?.cost, bound });
  }

  #result(status: SolveResult['status']): SolveResult {
    const cost = this.#incumbent?.cost;
    return {
      status,
      choice: this.#incumbent?.choice,
      cost,
      bound: status === 'optimal' ? cost! : status === 'infeasible' ? Infinity : this.#leastCost,
      prices: [...this.#prices],
      nodes: this.#nodes,
      repairs: this.#repairs,
    };
  }
}

/** At most what a combination of these options costs. */
function dearestOf(options: readonly AssignmentOption[], types: number): number {
  const dearest = new Float64Array(types);
  for (const { type, cost } of options) dearest[type] = Math.max(dearest[type]!, cost);
  return dearest.reduce((sum, cost) => sum + cost, 0);
}

/** How much farther the next ceiling is above the bound, with so many patterns a model below the last. */
function growthOf(patterns: number): number {
  return patterns < 5 ? 4 : patterns < 60 ? 2 : 1.4;
}
