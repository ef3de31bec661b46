import { setImmediate as nextTurn } from 'node:timers/promises';

/** Work that is done step by step, each of a few milliseconds. */
export type Steps<T> = Generator<void, T>;

/** Lower: others wait less for the thread; higher: less is spent on taking turns. */
const slice_ms = 5;

/** Does work in the turns of an event loop, among those of others. @throws what the signal was aborted by */
export async function inSlices<T>(steps: Steps<T>, signal: AbortSignal): Promise<T> {
  for (;;) {
    signal.throwIfAborted();
    const until_ms = performance.now() + slice_ms;
    do {
      const { done, value } = steps.next();
      if (done) return value;
    } while (performance.now() < until_ms);
    await nextTurn();
  }
}
