/** Nobody wakes this: to wait on it is to sleep. */
const noSignal = new Int32Array(new SharedArrayBuffer(4));
/** Between two looks of who waits for them. */
const look_ms = 1;

/** A load that was given up. */
interface LeavingLoad {
  /** @returns whether it is over, which it is within a second or so: one that hangs is abandoned */
  letGo(): boolean;
}

/**
 * Loads that were given up while stages serve: their memory is free once the threads that read have let go of it, and
 * no batch waits for that.
 */
export class LeavingLoads {
  readonly #loads = new Set<LeavingLoad>();

  get any(): boolean {
    return this.#loads.size > 0;
  }

  add(load: LeavingLoad): void {
    if (!load.letGo()) this.#loads.add(load);
  }

  advance(): void {
    for (const load of this.#loads) if (load.letGo()) this.#loads.delete(load);
  }

  /** Waits for them: another load is to have their memory. */
  settle(): void {
    for (this.advance(); this.any; this.advance()) Atomics.wait(noSignal, 0, 0, look_ms);
  }
}
