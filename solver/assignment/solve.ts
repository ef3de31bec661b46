/**
 * Solves an assignment problem: prices, patterns, a good solution, then proof. See docs/solver.md for the
 * ideas; each step is a file of its own.
 */
import { Engine } from '../cp/engine.ts';
import { inconsistency } from '../cp/inconsistency.ts';
import { Minimiser } from '../cp/minimise.ts';
import { Random } from '../cp/random.ts';
import { Variable } from '../cp/variable.ts';
import { splitByDevices } from './branching.ts';
import { CapacitatedChoice } from './capacitated-choice.ts';
import { choiceCost } from './check.ts';
import { enumeratePatterns, type ModelPatterns } from './patterns.ts';
import { PricedModel } from './priced-model.ts';
import { searchPrices } from './prices.ts';
import { type AssignmentChoice, type AssignmentProblem, requireValid, sharesOf } from './problem.ts';
import { paretoOptions } from './reduce.ts';

export interface SolveOptions {
  /** Same seed, same run. */
  seed?: number;
  /** Asked at every node; true ends the search with what it has. */
  shouldStop?: () => boolean;
  /** Nodes of the proof at most. */
  nodes_max?: number;
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
}

/** Evaluations of the first search for prices. */
const evaluations_max = 400;
/** Patterns a model should have on average in the core problem that gives the first solutions. */
const core_patterns_per_model = 40;
/** Patterns in all, at most, of a proof: memory is about 300 bytes each while they are made. */
const patterns_max = 300_000;
/** Nodes of the core problem before, and rounds of, large neighbourhood search. */
const core_nodes = 3000;
const neighbourhood_rounds = 150;
const neighbourhood_models = 8;
const neighbourhood_nodes = 80;

/** @throws RangeError for numbers that make no sense */
export function solveAssignment(problem: AssignmentProblem, options: SolveOptions = {}): SolveResult {
  requireValid(problem);
  return new AssignmentSolver(problem, options).solve();
}

/** All patterns within `slack` of their model's cheapest at prices that give `bound`. */
interface PatternSet {
  patterns: ModelPatterns[];
  slack: number;
  bound: number;
}

interface Incumbent {
  cost: number;
  choice: AssignmentChoice;
}

class AssignmentSolver {
  readonly #problem: AssignmentProblem;
  readonly #options: SolveOptions;
  readonly #models: PricedModel[];
  readonly #counts: Float64Array;
  readonly #random: Random;
  readonly #shouldStop: () => boolean;
  #prices: Float64Array;
  /** The bound that `#prices` give: reduced costs at these prices are measured from it. */
  #priceBound = Number.NEGATIVE_INFINITY;
  /** The best bound from anywhere. */
  #bound = Number.NEGATIVE_INFINITY;
  #incumbent: Incumbent | undefined;
  #nodes = 0;
  /** The last search ended before it saw everything. */
  #unfinished = false;

  constructor(problem: AssignmentProblem, options: SolveOptions) {
    const { counts } = problem;
    this.#problem = problem;
    this.#options = options;
    this.#counts = Float64Array.from(counts);
    this.#random = new Random(options.seed ?? 1);
    this.#shouldStop = options.shouldStop ?? (() => false);
    const kept = paretoOptions(problem);
    this.#models = problem.options.map(
      (each, model) => new PricedModel(each, kept[model]!, counts.length, sharesOf(problem, model)),
    );
    this.#prices = new Float64Array(counts.length);
  }

  solve(): SolveResult {
    if (!this.#findPrices()) return this.#result('infeasible');
    this.#takeWarmChoice();
    const core = this.#corePatterns();
    let proved = this.#searchPatterns(core, core_nodes);
    if (!proved && !this.#shouldStop()) {
      if (this.#incumbent === undefined || this.#unfinished) this.#improve(core.patterns);
      if (!this.#shouldStop()) proved = this.#prove();
    }
    if (proved) return this.#result(this.#incumbent ? 'optimal' : 'infeasible');
    return this.#result(this.#incumbent ? 'feasible' : 'unknown');
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

  #takePrices(prices: Float64Array, bound: number): void {
    if (bound <= this.#priceBound) return;
    this.#prices = prices;
    this.#priceBound = bound;
    this.#raise(bound);
  }

  #takeWarmChoice(): void {
    const choice = this.#options.warm?.choice;
    if (choice === undefined || choice.length !== this.#problem.options.length) return;
    const cost = choiceCost(this.#problem, choice);
    if (cost !== undefined) this.#accept({ cost, choice: choice.map((each) => [...each]) });
  }

  /** All patterns of so little reduced cost that there are about as many as wanted. */
  #corePatterns(): PatternSet {
    const wanted = core_patterns_per_model * this.#models.length;
    let slack = Math.max(1, 0.005 * this.#priceBound);
    let best: PatternSet | undefined;
    for (let round = 0; round < 30; round++) {
      const gap = this.#gap();
      slack = Math.min(slack, gap);
      const patterns = this.#enumerate(slack, 4 * wanted);
      if (patterns === undefined) {
        if (best) break;
        slack /= 4;
        continue;
      }
      best = { patterns, slack, bound: this.#priceBound };
      const count = patterns.reduce((sum, each) => sum + each.count, 0);
      if (slack >= gap || count >= wanted || slack > 2 ** 50) break;
      slack *= 2;
    }
    if (best) return best;
    const cheapest = enumeratePatterns(this.#models, this.#counts, this.#prices, 1e-6, patterns_max);
    return { patterns: cheapest ?? [], slack: 0, bound: this.#priceBound };
  }

  #enumerate(slack: number, limit: number): ModelPatterns[] | undefined {
    return enumeratePatterns(this.#models, this.#counts, this.#prices, slack + 1e-6, limit);
  }

  /** What a better solution may cost above the bound that the prices give. */
  #gap(bound = this.#priceBound): number {
    return this.#incumbent ? this.#incumbent.cost - 1 - bound : Number.POSITIVE_INFINITY;
  }

  /** Every solution better than the incumbent is made of these patterns. */
  #covers({ slack, bound }: PatternSet): boolean {
    return slack >= this.#gap(bound);
  }

  /** All patterns that a better solution may use, searched to the end. */
  #prove(): boolean {
    const gap = this.#gap();
    if (gap < 0) return true;
    const patterns = this.#enumerate(gap, patterns_max);
    if (patterns === undefined) return false;
    return this.#searchPatterns({ patterns, slack: gap, bound: this.#priceBound }, Number.POSITIVE_INFINITY);
  }

  /**
   * Large neighbourhood search over the core patterns. A model may also be left out, at a cost above all
   * others, so that there always is something to improve on; such solutions are not kept.
   */
  #improve(core: readonly ModelPatterns[]): void {
    const stride = this.#counts.length + 1;
    let dearest = 1;
    for (const { data } of core)
      for (let at = 0; at < data.length; at += stride) dearest = Math.max(dearest, data[at]!);
    const patterns = core.map(({ count, data, options }) => {
      const more = new Float64Array(data.length + stride);
      more.set(data);
      more[data.length] = 2 * dearest;
      return { count: count + 1, data: more, options };
    });
    const search = this.#open(patterns, core);
    if (search === undefined) return;
    const { minimiser, branching, choices } = search;
    const limits = { shouldStop: this.#shouldStop, nodes_max: core_nodes / 10 };
    minimiser.run(branching, limits);
    const pick = (random: Random): number[] => {
      const left_out = choices.flatMap((_, model) =>
        minimiser.solution?.[model] === core[model]!.count ? [model] : [],
      );
      const others = random.shuffle(choices.map((_, model) => model));
      return [...left_out, ...others].slice(0, left_out.length + neighbourhood_models);
    };
    minimiser.improve(branching, pick, this.#random, neighbourhood_rounds, {
      ...limits,
      nodes_max: neighbourhood_nodes,
    });
    this.#nodes += minimiser.nodes;
  }

  /** Looks for a better solution made of these patterns. Returns whether no better one can exist at all. */
  #searchPatterns(set: PatternSet, nodes_max: number): boolean {
    this.#unfinished = false;
    const search = this.#open(set.patterns, set.patterns);
    if (search === undefined) return this.#covers(set);
    const { minimiser, branching, constraint } = search;
    if (this.#covers(set)) this.#raise(constraint.relaxation.bound);
    else this.#reprice(constraint.relaxation.prices);
    const outcome = minimiser.run(branching, {
      shouldStop: this.#shouldStop,
      nodes_max: Math.min(nodes_max, (this.#options.nodes_max ?? Number.POSITIVE_INFINITY) - this.#nodes),
    });
    this.#nodes += minimiser.nodes;
    this.#unfinished = !outcome.complete;
    return outcome.complete && this.#covers(set);
  }

  /** Prices of a relaxation are often better than those found before it. */
  #reprice(candidate: Float64Array): void {
    const prices = candidate.slice();
    let bound = 0;
    for (const model of this.#models) bound += model.solve(prices);
    for (let type = 0; type < prices.length; type++) bound -= prices[type]! * this.#counts[type]!;
    this.#takePrices(prices, bound);
  }

  /**
   * The search over `patterns` for something better than the incumbent; undefined where there is nothing.
   * @param real the patterns that may be in a solution that is kept
   */
  #open(patterns: readonly ModelPatterns[], real: readonly ModelPatterns[]) {
    if (patterns.some(({ count }) => count === 0)) return undefined;
    const engine = new Engine();
    const choices = patterns.map(({ count }) => Variable.of(engine, Array(count).keys()));
    let worst = 0;
    for (const { data } of patterns) {
      let most = 0;
      for (let at = 0; at < data.length; at += this.#counts.length + 1) most = Math.max(most, data[at]!);
      worst += most;
    }
    const upper = this.#incumbent ? this.#incumbent.cost - 1 : worst;
    if (upper < 0) return undefined;
    const objective = Variable.range(engine, 0, upper);
    const constraint = new CapacitatedChoice(engine.trail, choices, patterns, this.#counts, objective);
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
      onProgress: () => this.#adopt(minimiser, real),
    });
    return { minimiser, constraint, choices, branching: splitByDevices(constraint, choices) };
  }

  #adopt(minimiser: Minimiser, patterns: readonly ModelPatterns[]): void {
    const { solution, objective } = minimiser;
    if (solution === undefined || objective === undefined) return;
    if (this.#incumbent && objective >= this.#incumbent.cost) return;
    if (solution.some((pattern, model) => pattern >= patterns[model]!.count)) return;
    const types = this.#counts.length;
    const choice = solution.map((pattern, model) =>
      [...patterns[model]!.options.subarray(pattern * types, (pattern + 1) * types)]
        .filter((option) => option >= 0)
        .map((option) => this.#models[model]!.indices[option]!)
        .sort((a, b) => a - b),
    );
    this.#accept({ cost: objective, choice });
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
      bound:
        status === 'optimal' ? cost! : status === 'infeasible' ? Infinity : Math.ceil(this.#bound - 1e-6),
      prices: [...this.#prices],
      nodes: this.#nodes,
    };
  }
}
