/** What a device worker says of where a request's time went, for who traces it: `queue;dur=3.1, prefill;dur=24`. */

/** In the order in which they follow each other; what never began is absent. ms. */
export interface WorkerTimings {
  /** From the request's arrival to its admission to the batch. */
  queue?: number;
  /** From there to the first token. */
  prefill?: number;
  /** From there to the last one. */
  decode?: number;
}

export const workerPhases = ['queue', 'prefill', 'decode'] as const satisfies (keyof WorkerTimings)[];

/** In the syntax of `Server-Timing` (W3C). */
export function formatTimings(timings: WorkerTimings): string {
  return workerPhases
    .flatMap((phase) => (timings[phase] === undefined ? [] : [`${phase};dur=${timings[phase].toFixed(3)}`]))
    .join(', ');
}

/** @returns undefined for what is none */
export function parseTimings(text: string): WorkerTimings | undefined {
  const timings: WorkerTimings = {};
  for (const part of text.split(', ')) {
    const [, name, duration] = /^([a-z]{1,16});dur=(\d{1,12}(?:\.\d{1,6})?)$/.exec(part) ?? [];
    const phase = workerPhases.find((each) => each === name);
    if (!phase) return undefined;
    timings[phase] = Number(duration);
  }
  return timings;
}
