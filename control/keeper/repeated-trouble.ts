import type { ProgressEvent } from '../../spec/events.ts';

/** The same trouble is said again after so long. Lower: the last lines of a log tell of it; higher: it is shorter. */
const again_ms = 600_000;
/** What was over sooner was one attempt that failed: of its end there is nothing to say. */
const lasting_ms_min = 1000;

interface Trouble {
  first_ms: number;
  last_ms: number;
  /** The last one. */
  reason: string;
  /** When each reason was said. */
  said_ms: Map<string, number>;
}

/**
 * What goes wrong in every round for as long as it lasts, such as an outage of Slurm: it is said when it begins, when
 * its reason changes, now and then, and when it is over.
 */
export class RepeatedTrouble {
  readonly #emit: (event: ProgressEvent) => void;
  readonly #now_ms: () => number;
  readonly #lasting = new Map<string, Trouble>();

  constructor(emit: (event: ProgressEvent) => void, now_ms: () => number) {
    this.#emit = emit;
    this.#now_ms = now_ms;
  }

  /**
   * @param about what goes wrong, in words
   * @param is_said somebody else has said so when it began
   */
  happened(about: string, reason: string, is_said = false): void {
    const now_ms = this.#now_ms();
    const trouble = this.#lasting.get(about) ?? {
      first_ms: now_ms,
      last_ms: now_ms,
      reason,
      said_ms: new Map<string, number>(),
    };
    this.#lasting.set(about, trouble);
    Object.assign(trouble, { last_ms: now_ms, reason });
    const { first_ms, said_ms } = trouble;
    const before_ms = said_ms.get(reason);
    if (before_ms !== undefined && now_ms - before_ms < again_ms) return;
    // Reasons with numbers in them may be many.
    for (const [old, at_ms] of said_ms) if (now_ms - at_ms >= again_ms) said_ms.delete(old);
    said_ms.set(reason, now_ms);
    if (before_ms !== undefined) this.#warn(`${about}, for ${describeTime(now_ms - first_ms)}: ${reason}`);
    else if (!is_said) this.#warn(`${about}: ${reason}`);
  }

  /** It does not go wrong any more, if it ever did. */
  over(about: string): void {
    const trouble = this.#lasting.get(about);
    if (!trouble) return;
    this.#lasting.delete(about);
    const { first_ms, last_ms, reason } = trouble;
    if (last_ms - first_ms < lasting_ms_min) return;
    this.#warn(`${about}: over after ${describeTime(this.#now_ms() - first_ms)}: ${reason}`);
  }

  #warn(message: string): void {
    this.#emit({ at_ms: this.#now_ms(), kind: 'warning', message });
  }
}

function describeTime(time_ms: number): string {
  const time_s = Math.round(time_ms / 1000);
  return time_s < 120 ? `${time_s} s` : `${Math.round(time_s / 60)} min`;
}
