/** Sets what one owner holds to so many bytes. */
export interface MemoryOperation {
  id: number;
  owner: string;
  from_bytes: number;
  to_bytes: number;
}

export type SubmittedOperation =
  | {
      accepted: true;
      id: number;
      /** An operation of the same owner that had not started; this one takes its place and it is never run. */
      supersedes?: number;
      /** Operations that can run now. */
      run: MemoryOperation[];
    }
  | { accepted: false; short_bytes: number; because: string };

/**
 * Memory operations of one device, many at once and without hazards (LLM-Mesh §6.3, after Tomasulo): an optimistic
 * budget decides at once what may be promised, a pessimistic account what may run now; what was promised and cannot run
 * yet waits here for memory that is still being given up.
 *
 * Pure state: it starts and times nothing. Whoever owns the memory runs what it is handed and reports each end.
 */
export class ReservationStation {
  readonly pool_bytes: number;
  /** Promised to each owner once all operations are through; the sum never exceeds the pool. */
  readonly #promised = new Map<string, number>();
  /** Surely in use at worst now: what is being given up counts in full until it is gone. */
  readonly #held = new Map<string, number>();
  /** Not started, in the order of submission; at most one an owner, or an old rise could block the fall behind it. */
  #waiting: MemoryOperation[] = [];
  readonly #running = new Map<number, MemoryOperation>();
  #budget_bytes = 0;
  #held_bytes = 0;
  #next_id = 1;

  /** @throws RangeError where the pool has no size */
  constructor(pool_bytes: number) {
    if (!(pool_bytes > 0)) throw new RangeError(`a pool of ${pool_bytes} bytes cannot be shared`);
    this.pool_bytes = pool_bytes;
  }

  get budget_bytes(): number {
    return this.#budget_bytes;
  }

  get held_bytes(): number {
    return this.#held_bytes;
  }

  get waiting(): readonly MemoryOperation[] {
    return this.#waiting;
  }

  promised(owner: string): number {
    return this.#promised.get(owner) ?? 0;
  }

  /**
   * Asks that `owner` shall hold `to_bytes`. Less is always accepted. More is accepted where the budget has room; it
   * may have to wait for memory, but only for what others have already been told to give up, so it never waits in vain.
   * @returns what can run now, this operation or none
   */
  submit(owner: string, to_bytes: number): SubmittedOperation {
    if (!(to_bytes >= 0)) throw new RangeError(`${to_bytes} bytes cannot be reserved for ${owner}`);
    const from_bytes = this.promised(owner);
    const more_bytes = to_bytes - from_bytes;
    const short_bytes = this.#budget_bytes + more_bytes - this.pool_bytes;
    if (more_bytes > 0 && short_bytes > 0)
      return {
        accepted: false,
        short_bytes,
        because: `${more_bytes} bytes more for ${owner} exceed the pool by ${short_bytes}`,
      };
    this.#budget_bytes += more_bytes;
    if (to_bytes === 0) this.#promised.delete(owner);
    else this.#promised.set(owner, to_bytes);
    const operation: MemoryOperation = { id: this.#next_id++, owner, from_bytes, to_bytes };
    const stale = this.#waiting.find((waiting) => waiting.owner === owner);
    if (stale !== undefined) this.#waiting.splice(this.#waiting.indexOf(stale), 1);
    this.#waiting.push(operation);
    const run = this.#issue();
    return {
      accepted: true,
      id: operation.id,
      supersedes: stale?.id,
      run,
    };
  }

  /**
   * An operation that was handed out is done.
   * @returns those that can run because of it
   * @throws RangeError for an id that is not running
   */
  complete(id: number): MemoryOperation[] {
    const operation = this.#running.get(id);
    if (operation === undefined) throw new RangeError(`no memory operation ${id} is running`);
    this.#running.delete(id);
    this.#hold(operation.owner, operation.to_bytes);
    return this.#issue();
  }

  /** Starts, out of order, whatever has no hazard: an operation of its owner that runs, or memory not yet there. */
  #issue(): MemoryOperation[] {
    const busy = new Set<string>();
    for (const { owner } of this.#running.values()) busy.add(owner);
    const run: MemoryOperation[] = [];
    this.#waiting = this.#waiting.filter((operation) => {
      const { owner, to_bytes } = operation;
      const more_bytes = to_bytes - (this.#held.get(owner) ?? 0);
      if (busy.has(owner) || (more_bytes > 0 && this.#held_bytes + more_bytes > this.pool_bytes)) return true;
      if (more_bytes > 0) this.#hold(owner, to_bytes);
      this.#running.set(operation.id, operation);
      run.push(operation);
      return false;
    });
    return run;
  }

  #hold(owner: string, bytes: number): void {
    this.#held_bytes += bytes - (this.#held.get(owner) ?? 0);
    if (bytes === 0) this.#held.delete(owner);
    else this.#held.set(owner, bytes);
  }
}
