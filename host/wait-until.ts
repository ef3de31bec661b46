/** Waiting for a condition with a deadline; never a sleep that hopes. */
import { setTimeout as sleep } from 'node:timers/promises';

export interface WaitOptions {
  /** When to give up, ms from now. */
  timeout_ms: number;
  /** Time between two looks, ms. Lower: quicker answer; higher: less load on the thing looked at. */
  interval_ms: number;
  signal?: AbortSignal;
}

/**
 * Asks `look` until it answers something other than undefined.
 * @returns that answer, or undefined when the time is over.
 * @throws what `look` throws, and the abort reason of the signal.
 */
export async function waitUntil<T>(
  look: () => T | undefined | Promise<T | undefined>,
  options: WaitOptions,
): Promise<T | undefined> {
  const deadline = performance.now() + options.timeout_ms;
  for (;;) {
    options.signal?.throwIfAborted();
    const answer = await look();
    if (answer !== undefined) return answer;
    const left = deadline - performance.now();
    if (left <= 0) return undefined;
    await sleep(
      Math.min(options.interval_ms, left),
      undefined,
      options.signal ? { signal: options.signal } : {},
    );
  }
}
