/**
 * Branch and bound, with restarts and large neighbourhood search: three ways to a least objective that
 * share one incumbent. A run says what it found, the bound it proved, and whether they meet.
 */
import type { Branching } from './branching.ts';
import { inconsistency } from './inconsistency.ts';
import { luby } from './luby.ts';
import type { PropagationEngine } from './propagation-engine.ts';
import type { Random } from './random.ts';
import { depthFirst, type SearchLimits, type SearchOutcome } from './search.ts';
import type { Variable } from './variable.ts';

export interface Progress {
  /** Best objective so far; undefined before the first solution. */
  incumbent: number | undefined;
  /** No solution is below this. */
  bound: number;
  nodes: number;
}

export interface MinimiseProblem {
  engine: PropagationEngine;
  objective: Variable;
  /** Variables whose values make a solution. */
  decisions: readonly Variable[];
  /** Told at each new incumbent, and at the end. */
  onProgress?: (progress: Progress) => void;
}

export interface MinimiseResult {
  /** Values of `decisions` in the best solution; undefined where none was found. */
  solution: number[] | undefined;
  objective: number | undefined;
  bound: number;
  /** The solution is optimal, or, without one, there is none. */
  proved: boolean;
  nodes: number;
}

/** The incumbent and what it forbids. */
export class Minimiser {
  readonly problem: MinimiseProblem;
  solution: number[] | undefined;
  objective: number | undefined;
  proved = false;
  nodes = 0;
  readonly #rootBound: number;

  constructor(problem: MinimiseProblem) {
    this.problem = problem;
    this.#rootBound = problem.objective.min;
  }

  /** Takes a solution known from elsewhere. Its objective is believed. */
  start(solution: readonly number[], objective: number): void {
    if (this.objective !== undefined && objective >= this.objective) return;
    this.solution = [...solution];
    this.objective = objective;
  }

  /** Depth-first below the present state; only strictly better solutions are looked for. */
  run(branching: Branching, limits: SearchLimits = {}): SearchOutcome {
    const { engine, objective } = this.problem;
    const outcome = depthFirst(
      engine,
      branching,
      () => {
        this.solution = this.problem.decisions.map((variable) => variable.min);
        this.objective = objective.min;
        this.#report();
      },
      limits,
      () => {
        if (this.objective !== undefined) objective.removeAbove(this.objective - 1);
      },
    );
    this.nodes += outcome.nodes;
    if (outcome.complete && engine.trail.level === 0) this.proved = true;
    return outcome;
  }

  /**
   * Runs with node limits `scale`·Luby(i), each with a branching of its own, until one is complete.
   * @param branchingOf the branching of the i-th run, from 1: draw random orders here
   */
  restarts(branchingOf: (run: number) => Branching, scale: number, limits: SearchLimits = {}): void {
    for (let run = 1; !this.proved && !limits.shouldStop?.(); run++) {
      const left = (limits.nodes_max ?? Number.POSITIVE_INFINITY) - this.nodes;
      if (left <= 0) return;
      this.run(branchingOf(run), { ...limits, nodes_max: Math.min(left, scale * luby(run)) });
    }
  }

  /**
   * Large neighbourhood search (Shaw, 1998): fixes all decisions but a chosen few to the incumbent and
   * solves the rest by branch and bound; `rounds` times.
   * @param neighbourhood indices of the decisions to free
   */
  improve(
    branching: Branching,
    neighbourhood: (random: Random) => Iterable<number>,
    random: Random,
    rounds: number,
    limits: SearchLimits = {},
  ): void {
    const { engine, decisions } = this.problem;
    for (let round = 0; round < rounds && !limits.shouldStop?.(); round++) {
      if (this.solution === undefined) return;
      const free = new Set(neighbourhood(random));
      const level = engine.trail.level;
      engine.trail.push();
      try {
        if (this.objective !== undefined) this.problem.objective.removeAbove(this.objective - 1);
        for (let index = 0; index < decisions.length; index++)
          if (!free.has(index)) decisions[index]!.fix(this.solution[index]!);
        engine.propagate();
        this.run(branching, limits);
      } catch (error) {
        engine.forget();
        if (error !== inconsistency) throw error;
      } finally {
        engine.trail.popTo(level);
      }
    }
  }

  result(): MinimiseResult {
    this.#report();
    return {
      solution: this.solution,
      objective: this.objective,
      bound: this.#bound(),
      proved: this.proved,
      nodes: this.nodes,
    };
  }

  #bound(): number {
    if (this.proved) return this.objective ?? Number.POSITIVE_INFINITY;
    return this.#rootBound;
  }

  #report(): void {
    this.problem.onProgress?.({ incumbent: this.objective, bound: this.#bound(), nodes: this.nodes });
  }
}
