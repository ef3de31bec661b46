import type { SharingDecision } from '../../../spec/device-report.ts';

/** Decisions that are remembered. */
const length_max = 64;

/** What was decided last on a device, and why: for people. */
export class DecisionLog {
  readonly #decisions: SharingDecision[] = [];

  note(decision: Omit<SharingDecision, 'at_ms'>): void {
    this.#decisions.push({ at_ms: Date.now(), ...decision });
    if (this.#decisions.length > length_max) this.#decisions.shift();
  }

  /** Newest last. */
  get last(): SharingDecision[] {
    return [...this.#decisions];
  }
}
