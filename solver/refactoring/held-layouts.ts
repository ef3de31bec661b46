import type { OperatorRange } from './layout.ts';

/** What becomes of a frame that reaches a stage. */
export type FrameVerdict = 'taken' | 'old_epoch' | 'unknown_epoch';

/**
 * What a device of a pipeline holds while layouts change: its stage in the layout that computes, and its stage in one
 * that is prepared. It goes by what the coordinator says, in any order in which that can arrive, and never computes for
 * an epoch that is over.
 */
export class HeldLayouts {
  #epoch: number;
  #serving: OperatorRange | undefined;
  #prepared: OperatorRange | undefined;

  /** @param serving its stage; undefined: it is in no layout yet */
  constructor(epoch: number, serving?: OperatorRange) {
    this.#epoch = epoch;
    this.#serving = serving;
  }

  get epoch(): number {
    return this.#epoch;
  }

  get serving(): OperatorRange | undefined {
    return this.#serving;
  }

  get prepared(): OperatorRange | undefined {
    return this.#prepared;
  }

  /** Operators that it must have in memory, in ranges that may overlap. */
  get held(): OperatorRange[] {
    return [this.#serving, this.#prepared].filter((range) => range !== undefined);
  }

  prepare(stage: OperatorRange): void {
    this.#prepared = stage;
  }

  /**
   * A layout begins, of which the device computes this range.
   * @returns whether it is in that epoch now: an epoch that is not later than its own is refused, and so is a stage
   *   that it does not hold
   */
  begin(epoch: number, stage: OperatorRange): boolean {
    if (epoch <= this.#epoch) return false;
    if (same(this.#serving, stage)) {
      this.#epoch = epoch;
      return true;
    }
    if (!same(this.#prepared, stage)) return false;
    // What it served is held on, for the way back.
    [this.#serving, this.#prepared] = [this.#prepared, this.#serving];
    this.#epoch = epoch;
    return true;
  }

  /** The layouts have changed for good: everything goes but this. */
  release(keeps: OperatorRange | undefined): void {
    const kept = this.held.find((range) => same(range, keeps));
    this.#serving = kept;
    this.#prepared = undefined;
  }

  take(epoch: number): FrameVerdict {
    if (epoch < this.#epoch) return 'old_epoch';
    return epoch === this.#epoch && this.#serving ? 'taken' : 'unknown_epoch';
  }
}

function same(a: OperatorRange | undefined, b: OperatorRange | undefined): boolean {
  return a !== undefined && b !== undefined && a.begin === b.begin && a.end === b.end;
}
