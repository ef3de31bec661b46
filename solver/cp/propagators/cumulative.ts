import { fail } from '../inconsistency.ts';
import { Propagator } from '../propagator.ts';
import type { Variable } from '../variable.ts';

export interface Task {
  /** First time unit it runs in. */
  start: Variable;
  /** Time units it runs. */
  duration: number;
  /** Capacity it takes while it runs. */
  demand: number;
}

/**
 * At no time do running tasks take more than `capacity` (time-table filtering: the parts that tasks must
 * run in, between latest start and earliest end, make a profile that no other task may overfill).
 */
export class Cumulative extends Propagator {
  override readonly priority = 'late';
  readonly #tasks: readonly Task[];
  readonly #capacity: number;

  constructor(tasks: readonly Task[], capacity: number) {
    super();
    this.#tasks = tasks.filter(({ duration, demand }) => duration > 0 && demand > 0);
    this.#capacity = capacity;
  }

  watch(): void {
    for (const { start } of this.#tasks) start.wakeOnBounds(this);
  }

  propagate(): void {
    const changes = new Map<number, number>();
    for (const { start, duration, demand } of this.#tasks) {
      if (start.max >= start.min + duration) continue;
      changes.set(start.max, (changes.get(start.max) ?? 0) + demand);
      changes.set(start.min + duration, (changes.get(start.min + duration) ?? 0) - demand);
    }
    const times = [...changes.keys()].sort((a, b) => a - b);
    const levels: number[] = [];
    let level = 0;
    for (const time of times) {
      level += changes.get(time)!;
      if (level > this.#capacity) fail();
      levels.push(level);
    }
    for (const task of this.#tasks) {
      if (task.demand > this.#capacity) fail();
      this.#shift(task, times, levels);
    }
  }

  /** Moves the bounds of a start over the segments in which the task does not fit. */
  #shift({ start, duration, demand }: Task, times: readonly number[], levels: readonly number[]): void {
    // The bounds the profile was made with: the own part of it must be taken out consistently.
    const [ownFrom, ownTo] = [start.max, start.min + duration];
    const overfull = (segment: number): boolean => {
      const own = times[segment]! >= ownFrom && times[segment]! < ownTo ? demand : 0;
      return levels[segment]! - own + demand > this.#capacity;
    };
    let earliest = start.min;
    for (let segment = 0; segment + 1 < times.length; segment++) {
      if (times[segment + 1]! > earliest && times[segment]! < earliest + duration && overfull(segment))
        earliest = times[segment + 1]!;
    }
    let latest = start.max;
    for (let segment = times.length - 2; segment >= 0; segment--) {
      if (times[segment]! < latest + duration && times[segment + 1]! > latest && overfull(segment))
        latest = times[segment]! - duration;
    }
    start.removeBelow(earliest);
    start.removeAbove(latest);
  }
}
