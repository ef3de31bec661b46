import type { InstanceView } from '../../../solver/sharing/device-view.ts';
import { type MemoryOperation, ReservationStation } from '../../../solver/sharing/reservation-station.ts';

/** What a model has of the pool beside its KV. */
export type StandingSizes = Pick<InstanceView, 'weight_bytes' | 'working_bytes'>;

/** What of an engine its budget is set by. */
export interface KvHolder {
  /** Of live sequences. */
  readonly kv_bytes_used: number;
  /** @returns bytes that are in force: at least those of live sequences, in whole units of its own */
  setKvBudget(bytes: number): number;
}

/**
 * KV budgets of the models on one device, over blocks that engines take on demand (LLM-Mesh §6.3): a reservation
 * station says at once what may be promised; a budget falls when the sequences that hold it let go, and only then
 * another rises.
 */
export class KvBudgets {
  readonly pool_bytes: number;
  readonly #station: ReservationStation;
  readonly #engines = new Map<string, KvHolder>();
  /** Budgets that shall fall and are still held. */
  #falling: MemoryOperation[] = [];

  constructor(pool_bytes: number) {
    this.pool_bytes = pool_bytes;
    this.#station = new ReservationStation(pool_bytes);
  }

  /** Promised to weights and KV of all models. */
  get budget_bytes(): number {
    return this.#station.budget_bytes;
  }

  /** In use until all is given up that shall be. */
  get held_bytes(): number {
    return this.#station.held_bytes;
  }

  /**
   * A model whose weights are in the pool. Tensors that models share count for each, so that the books may say that the
   * pool is full where it is not; then what is left is set aside.
   * @param kv_bytes the first of these that can be promised, else what is left
   * @returns bytes promised for KV
   */
  add(
    model: string,
    engine: KvHolder,
    { weight_bytes, working_bytes = 0 }: StandingSizes,
    kv_bytes: readonly number[],
  ): number {
    this.#engines.set(model, engine);
    // It came with all it may ever have: from now on it has what the station lets it have, which may have to wait.
    engine.setKvBudget(0);
    this.hold(model, working_bytes);
    this.#submit(`${model}/weights`, Math.min(weight_bytes, this.#left_bytes));
    for (const bytes of kv_bytes) if (this.set(model, bytes)) return bytes;
    const rest = this.#left_bytes;
    this.set(model, rest);
    return rest;
  }

  /**
   * Weights and KV of a model take another size; where others have too much of the pool for that, what is left of it is
   * set aside.
   * @returns bytes promised for KV
   */
  resize(model: string, { weight_bytes, working_bytes = 0 }: StandingSizes, kv_bytes: number): number {
    const [weights, kv] = [`${model}/weights`, `${model}/kv`];
    // What one of them gives up is there for the other.
    this.#submit(kv, Math.min(kv_bytes, this.#station.promised(kv)));
    this.#submit(weights, Math.min(weight_bytes, this.#station.promised(weights)));
    this.hold(model, working_bytes);
    this.#submit(weights, Math.min(weight_bytes, this.#station.promised(weights) + this.#left_bytes));
    const promised_bytes = Math.min(kv_bytes, this.#station.promised(kv) + this.#left_bytes);
    this.set(model, promised_bytes);
    return promised_bytes;
  }

  get #left_bytes(): number {
    return this.pool_bytes - this.budget_bytes;
  }

  /**
   * For a model that is on its way: as much is promised as it will need; `add` is its arrival.
   * @returns false where others have too much of the pool; then nothing is promised to it
   */
  reserve(model: string, { weight_bytes, working_bytes = 0 }: StandingSizes, kv_bytes: number): boolean {
    const beside =
      this.#submit(`${model}/weights`, weight_bytes) && this.#submit(`${model}/held`, working_bytes);
    if (beside && this.set(model, kv_bytes)) return true;
    this.remove(model);
    return false;
  }

  remove(model: string): void {
    this.#engines.delete(model);
    this.#submit(`${model}/kv`, 0);
    this.#submit(`${model}/held`, 0);
    this.#submit(`${model}/weights`, 0);
  }

  /**
   * Sets aside what a model holds beside weights and KV that it may be promised, or a stage of it in all, as far as
   * that is not promised to others: they still have it.
   */
  hold(model: string, bytes: number): void {
    const held = `${model}/held`;
    this.#submit(held, Math.min(bytes, this.#station.promised(held) + this.#left_bytes));
  }

  /** Promises so many bytes for a model's KV; false where others have too much of the pool. */
  set(model: string, kv_bytes: number): boolean {
    return this.#submit(`${model}/kv`, kv_bytes);
  }

  /** Sequences have ended or given way: budgets that were to fall may have fallen. */
  settle(): void {
    if (this.#falling.length > 0) this.#run(this.#falling.splice(0));
  }

  #submit(owner: string, bytes: number): boolean {
    const submission = this.#station.submit(owner, bytes);
    if (submission.accepted) this.#run(submission.run);
    return submission.accepted;
  }

  #run(operations: readonly MemoryOperation[]): void {
    for (const operation of operations) {
      if (this.#isThrough(operation)) this.#run(this.#station.complete(operation.id));
      else this.#falling.push(operation);
    }
  }

  #isThrough({ owner, from_bytes, to_bytes }: MemoryOperation): boolean {
    const engine = owner.endsWith('/kv') ? this.#engines.get(owner.slice(0, -'/kv'.length)) : undefined;
    if (engine === undefined) return true;
    const in_force = engine.setKvBudget(to_bytes);
    // Engines round down to whole units: what is asked for must fit.
    if (in_force < to_bytes) return engine.setKvBudget(2 * to_bytes - in_force) >= 0;
    return to_bytes >= from_bytes || Math.min(in_force, engine.kv_bytes_used) <= to_bytes;
  }
}
