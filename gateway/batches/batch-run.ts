import { setMaxListeners } from 'node:events';
import { setTimeout as wait } from 'node:timers/promises';
import { newId } from '../kept/sealed-folder.ts';
import type { BatchLine } from './batch-input.ts';
import type { CollectedAnswer } from './collected-response.ts';
import { type BatchResult, ResultParts, type ResultPartsOptions } from './result-parts.ts';

/** Requests of one batch that are asked at a time. Lower: others of the tier wait less; higher: fuller nodes. */
const lanes = 16;
/** Results that may be lost with the gateway, and are computed again. Lower: fewer; higher: fewer files. */
const unsaved_max = 64;
const saveDefault_ms = 5000;
/** Before a request is asked again that found no place. */
const again_ms_min = 2000;
const again_ms_max = 60_000;

/** Statuses by which a request is to be asked again: no node is idle now, or its node was taken. */
const passing = new Set([408, 429, 500, 502, 503, 504]);

/** Its folder is where results are kept until all are there. */
export interface BatchRunOptions extends ResultPartsOptions {
  lines: readonly BatchLine[];
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
  readonly #results = new Map<number, BatchResult>();
  readonly #parts: ResultParts;
  readonly #save_ms: number;

  /** @param stop ends it before its time: what is under way is given up */
  constructor(options: BatchRunOptions, stop: AbortController) {
    this.#options = options;
    this.#stop = stop;
    this.#parts = new ResultParts(options);
    this.#save_ms = options.save_ms ?? saveDefault_ms;
    setMaxListeners(2 * lanes, stop.signal);
  }

  /** @returns what there is, in the order of the requests; those that are not answered are missing */
  async run(): Promise<BatchResult[]> {
    await this.#load();
    const { lines, expires_at_ms } = this.#options;
    const open = [...lines.keys()].filter((at) => !this.#results.has(at));
    const saving = setInterval(() => void this.#parts.save(), this.#save_ms);
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
    return [...this.#results.values()].sort((a, b) => a.at - b.at);
  }

  /** What was kept on the way is in the files of the batch now. */
  async forget(): Promise<void> {
    await this.#parts.remove();
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
      if (answer && !passing.has(answer.status)) {
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
    const result = { at, ok, line };
    this.#results.set(at, result);
    this.#parts.add(result);
    this.#tell();
    // Where nothing can be kept, nothing more is asked either.
    while (this.#parts.unsaved >= unsaved_max && !(await this.#parts.save()))
      if (!(await pause(this.#save_ms, this.#stop.signal))) return;
  }

  /** Also of a batch that is stopped: only the end of the gateway gives up what cannot be kept. */
  async #saveAll(): Promise<void> {
    while (!(await this.#parts.save())) if (!(await pause(this.#save_ms, this.#options.closing))) return;
  }

  #tell(): void {
    const all = [...this.#results.values()];
    const completed = all.filter(({ ok }) => ok).length;
    this.#options.progress({ completed, failed: all.length - completed });
  }

  async #load(): Promise<void> {
    for await (const result of this.#parts.load()) this.#results.set(result.at, result);
    if (this.#results.size > 0) this.#tell();
  }
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
