import { BitsetDomain } from './bitset-domain.ts';
import type { Domain } from './domain.ts';
import { IntervalDomain } from './interval-domain.ts';
import type { PropagationEngine } from './propagation-engine.ts';
import type { Propagator } from './propagator.ts';
import { SparseDomain } from './sparse-domain.ts';

/** Ranges up to this many values are held value by value. Higher: more memory, stronger pruning. */
const dense_values_max = 4096;

/** An integer variable: a domain, and the propagators to wake when it shrinks. */
export class Variable {
  readonly domain: Domain;
  readonly #engine: PropagationEngine;
  readonly #onFix: Propagator[] = [];
  readonly #onBounds: Propagator[] = [];
  readonly #onChange: Propagator[] = [];

  constructor(engine: PropagationEngine, domain: Domain) {
    this.#engine = engine;
    this.domain = domain;
  }

  /** All integers from `min` to `max`. */
  static range(engine: PropagationEngine, min: number, max: number): Variable {
    if (!Number.isSafeInteger(min) || !Number.isSafeInteger(max) || min > max)
      throw new RangeError(`no integers from ${min} to ${max}`);
    const dense = max - min < dense_values_max;
    const { trail } = engine;
    return new Variable(
      engine,
      dense ? new BitsetDomain(trail, min, max) : new IntervalDomain(trail, min, max),
    );
  }

  static of(engine: PropagationEngine, values: Iterable<number>): Variable {
    return new Variable(engine, new SparseDomain(engine.trail, values));
  }

  get min(): number {
    return this.domain.min;
  }
  get max(): number {
    return this.domain.max;
  }
  get size(): number {
    return this.domain.size;
  }
  get fixed(): boolean {
    return this.domain.size === 1;
  }
  has(value: number): boolean {
    return this.domain.has(value);
  }
  values(): number[] {
    return this.domain.values();
  }

  /** Each throws `inconsistency` when nothing would be left. */
  remove(value: number): void {
    const { min, max } = this.domain;
    if (this.domain.remove(value)) this.changed(min, max);
  }
  removeBelow(value: number): void {
    const { min, max } = this.domain;
    if (this.domain.removeBelow(value)) this.changed(min, max);
  }
  removeAbove(value: number): void {
    const { min, max } = this.domain;
    if (this.domain.removeAbove(value)) this.changed(min, max);
  }
  fix(value: number): void {
    const { min, max } = this.domain;
    if (this.domain.fix(value)) this.changed(min, max);
  }

  wakeOnFix(propagator: Propagator): void {
    this.#onFix.push(propagator);
  }
  wakeOnBounds(propagator: Propagator): void {
    this.#onBounds.push(propagator);
  }
  wakeOnChange(propagator: Propagator): void {
    this.#onChange.push(propagator);
  }

  /** For those that shrink `domain` themselves: wakes the watchers, given the bounds from before. */
  changed(before_min: number, before_max: number): void {
    for (const propagator of this.#onChange) this.#engine.schedule(propagator);
    if (this.domain.min !== before_min || this.domain.max !== before_max)
      for (const propagator of this.#onBounds) this.#engine.schedule(propagator);
    if (this.domain.size === 1) for (const propagator of this.#onFix) this.#engine.schedule(propagator);
  }
}
