import { failed_way_ms } from '../transfer/limits.ts';

/** A provider that fails each time is not tried less often. Higher: less is tried in vain; lower: it is back sooner. */
const failed_way_ms_max = 3_600_000;

/** Left out until then; the next time twice as long. */
interface Failed {
  until_ms: number;
  pause_ms: number;
}

/** Which provider of a fabric is tried next: the best that has not just failed. Times are the caller's clock. */
export class ProviderChoice {
  readonly #providers: readonly string[];
  readonly #failed = new Map<string, Failed>();

  /** @param providers best first */
  constructor(providers: readonly string[]) {
    this.#providers = providers;
  }

  /** @returns undefined where none may be tried now: see `wait_ms` */
  next(now_ms: number): string | undefined {
    return this.all(now_ms)[0];
  }

  /** All that may be tried now. */
  all(now_ms: number): string[] {
    return this.#providers.filter((provider) => this.#until_ms(provider) <= now_ms);
  }

  /** Until one may be tried again; undefined where none ever is. */
  wait_ms(now_ms: number): number | undefined {
    const until_ms = Math.min(...this.#providers.map((provider) => this.#until_ms(provider)));
    return Number.isFinite(until_ms) ? Math.max(0, until_ms - now_ms) : undefined;
  }

  /** It should work: it is tried again. */
  leaveOut(provider: string, now_ms: number): void {
    const before_ms = this.#failed.get(provider)?.pause_ms;
    const pause_ms = before_ms === undefined ? failed_way_ms : Math.min(failed_way_ms_max, 2 * before_ms);
    this.#failed.set(provider, { until_ms: now_ms + pause_ms, pause_ms });
  }

  /** A node has it not. */
  giveUp(provider: string): void {
    this.#failed.set(provider, { until_ms: Number.POSITIVE_INFINITY, pause_ms: failed_way_ms_max });
  }

  #until_ms(provider: string): number {
    return this.#failed.get(provider)?.until_ms ?? 0;
  }
}
