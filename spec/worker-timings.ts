/**
 * What a node agent and its device worker say of where a request's time went, for who traces it:
 * `queue;dur=3.1, prefill;dur=24, agent;dur=29.4`.
 */

/** What never began is absent, and so is what a wrapped engine does not tell. ms. */
export interface WorkerTimings {
  /** From the request's arrival to its admission to the batch. */
  queue?: number;
  /** From there to the first token. */
  prefill?: number;
  /** From there to the last one. */
  decode?: number;
  /** Of the node agent: from the request's arrival there to the end of its answer, or the beginning of a whole one. */
  agent?: number;
}

/** In the order in which they follow each other. */
export const workerPhases = ['queue', 'prefill', 'decode'] as const satisfies (keyof WorkerTimings)[];
const names = [...workerPhases, 'agent'] as const;

/** In the syntax of `Server-Timing` (W3C). */
export function formatTimings(timings: WorkerTimings): string {
  return names
    .flatMap((name) => (timings[name] === undefined ? [] : [`${name};dur=${timings[name].toFixed(3)}`]))
    .join(', ');
}

/** @returns undefined for what is none */
export function parseTimings(text: string): WorkerTimings | undefined {
  const timings: WorkerTimings = {};
  for (const part of text.split(', ')) {
    const [, said, duration] = /^([a-z]{1,16});dur=(\d{1,12}(?:\.\d{1,6})?)$/.exec(part) ?? [];
    const name = names.find((each) => each === said);
    if (!name) return undefined;
    timings[name] = Number(duration);
  }
  return timings;
}

/**
 * What an agent passes on: the worker's times, where the engine says any, and its own.
 * @param said by the engine
 */
export function withAgentTime(said: string | readonly string[] | undefined, agent_ms: number): string {
  const timings = typeof said === 'string' ? parseTimings(said) : undefined;
  return formatTimings({ ...timings, agent: agent_ms });
}
