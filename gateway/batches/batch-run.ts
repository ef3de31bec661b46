import { setMaxListeners } from 'node:events';
import { setTimeout as wait } from 'node:timers/promises';
import { newId } from '../kept/sealed-folder.ts';
import type { BatchLine } from './batch-input.ts';
import type { CollectedAnswer } from './collected-response.ts';
import type { ResultParts } from './result-parts.ts';

/** Requests of one batch that are asked at a time. Lower: others of the tier wait less; higher: fuller nodes. */
const lanes = 16;
const saveDefault_ms = 5000;
/** Before a request is asked again that found no place. */
const again_ms_min = 2000;
const again_ms_max = 60_000;

/** Statuses by which a request may be asked again: no node is idle now, or its node was taken. */
const passing = new Set([408, 429, 500, 502, 503, 504]);

export interface BatchRunOptions {
  lines: readonly BatchLine[];
  /** Where results go until all are there. */
  results: ResultParts;
  /** Unix ms. */
  expires_at_ms: number;
  /** The gateway ends: what cannot be kept is given up. */
  closing: AbortSignal;
  /** Between two turns of keeping results. Lower: fewer are lost with the gateway; higher: fewer files. */
  save_ms?: number;
  /** Undefined where it broke off. */
  ask(body: Buffer, request_id: string, signal: AbortSignal): Promise<CollectedAnswer | undefined>;
  /** Told as results come in. */
  progress(counts: { completed: number; failed: number }): void;
}

/** Asks the requests of a batch, and keeps what is answered: a run that goes on later asks the rest. */
export class BatchRun {
  readonly #options: BatchRunOptions;
  readonly #stop: AbortController;
  readonly #save_ms: number;

  /** @param stop ends it before its time: what is under way is given up */
  constructor(options: BatchRunOptions, stop: AbortController) {
    this.#options = options;
    this.#stop = stop;
    this.#save_ms = options.save_ms ?? saveDefault_ms;
    setMaxListeners(2 * lanes, stop.signal);
  }

  /** Until all is answered, or it is stopped: what is not answered then has no result. @throws the system's error */
  async run(): Promise<void> {
    const { lines, results, expires_at_ms } = this.#options;
    await results.load();
    this.#tell();
    const open = [...lines.keys()].filter((at) => !results.has(at));
    const saving = setInterval(() => void results.save(), this.#save_ms);
    const expiry = setTimeout(() => this.#stop.abort(), Math.max(0, expires_at_ms - Date.now()));
    try {
      await Promise.all(
        Array.from({ length: lanes }, async () => {
          for (let at = open.shift(); at !== undefined && !this.#stopped; at = open.shift())
            await this.#ask(at);
        }),
      );
    } finally {
      clearInterval(saving);
      clearTimeout(expiry);
    }
    await this.#saveAll();
  }

  get #stopped(): boolean {
    return this.#stop.signal.aborted;
  }

  async #ask(at: number): Promise<void> {
    const { lines, ask } = this.#options;
    const { custom_id, body } = lines[at]!;
    const bytes = Buffer.from(JSON.stringify(body));
    for (let again_ms = again_ms_min; !this.#stopped; again_ms = Math.min(2 * again_ms, again_ms_max)) {
      const request_id = newId('req_');
      const answer = await ask(bytes, request_id, this.#stop.signal);
      if (this.#stopped && !answer) return;
      if (answer && isFinal(answer)) {
        await this.#take(at, custom_id, request_id, answer);
        return;
      }
      const told_ms = 1000 * Number(answer?.headers.get('retry-after') ?? 0);
      const pause_ms = Math.min(Math.max(again_ms, told_ms), again_ms_max);
      await pause(pause_ms, this.#stop.signal);
    }
  }

  async #take(
    at: number,
    custom_id: string,
    request_id: string,
    { status, body }: CollectedAnswer,
  ): Promise<void> {
    const ok = status < 400;
    const response = { status_code: status, request_id, body: jsonOr(body) };
    const line = JSON.stringify({ id: newId('batch_req_'), custom_id, response, error: null });
    const { results } = this.#options;
    results.add({ at, ok, line });
    this.#tell();
    // Where nothing can be kept, nothing more is asked either.
    while (results.isFull && !(await results.save()))
      if (!(await pause(this.#save_ms, this.#stop.signal))) return;
  }

  /** Also of a batch that is stopped: only the end of the gateway gives up what cannot be kept. */
  async #saveAll(): Promise<void> {
    const { results, closing } = this.#options;
    while (!(await results.save())) if (!(await pause(this.#save_ms, closing))) return;
  }

  #tell(): void {
    this.#options.progress({ ...this.#options.results.counts });
  }
}

/**
 * Asked again, a request that ends replicas would end more of them, for as long as its batch may last. A 429 that says
 * the same passes: its budget is there again with the next day or month.
 */
function isFinal({ status, headers }: CollectedAnswer): boolean {
  if (!passing.has(status)) return true;
  return status >= 500 && headers.get('x-should-retry')?.toLowerCase() === 'false';
}

/** @returns whether it passed: false where it was broken off */
async function pause(time_ms: number, signal: AbortSignal): Promise<boolean> {
  return wait(time_ms, true, { signal }).catch(() => false);
}

/** As the file tells it: JSON where it is that. */
function jsonOr(body: Buffer): unknown {
  const text = body.toString();
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
