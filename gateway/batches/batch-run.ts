import { setMaxListeners } from 'node:events';
import { setTimeout as wait } from 'node:timers/promises';
import { z } from 'zod';
import type { ApiKey } from '../../ledger/index.ts';
import { newId, type SealedFolder } from '../kept/sealed-folder.ts';
import type { BatchLine } from './batch-input.ts';
import type { CollectedAnswer } from './collected-response.ts';

/** Requests of one batch that are asked at a time. Lower: others of the tier wait less; higher: fuller nodes. */
const lanes = 16;
/** Results that may be lost with the gateway, and are computed again. Lower: fewer; higher: fewer files. */
const unsaved_max = 64;
const save_ms = 5000;
/** Before a request is asked again that found no place. */
const again_ms_min = 2000;
const again_ms_max = 60_000;

/** Statuses by which a request is to be asked again: no node is idle now, or its node was taken. */
const passing = new Set([408, 429, 500, 502, 503, 504]);

const resultSchema = z.object({ at: z.number(), ok: z.boolean(), line: z.string() });
type Result = z.infer<typeof resultSchema>;

export interface BatchRunOptions {
  key: ApiKey;
  batch_id: string;
  lines: readonly BatchLine[];
  /** Where results are kept until all are there. */
  folder: SealedFolder;
  /** Unix ms. */
  expires_at_ms: number;
  /** Undefined where it broke off. */
  ask(body: Buffer, request_id: string, signal: AbortSignal): Promise<CollectedAnswer | undefined>;
  /** Told as results come in. */
  progress(counts: { completed: number; failed: number }): void;
}

/** Asks the requests of a batch, and keeps what is answered: a run that goes on later asks the rest. */
export class BatchRun {
  readonly #options: BatchRunOptions;
  readonly #stop: AbortController;
  readonly #results = new Map<number, Result>();
  #unsaved: Result[] = [];
  #parts = 0;
  #saving: Promise<void> = Promise.resolve();

  /** @param stop ends it before its time: what is under way is given up */
  constructor(options: BatchRunOptions, stop: AbortController) {
    this.#options = options;
    this.#stop = stop;
    setMaxListeners(2 * lanes, stop.signal);
  }

  /** @returns what there is, in the order of the requests; those that are not answered are missing */
  async run(): Promise<Result[]> {
    await this.#load();
    const { lines, expires_at_ms } = this.#options;
    const open = [...lines.keys()].filter((at) => !this.#results.has(at));
    const saving = setInterval(() => void this.#save(), save_ms);
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
      await this.#save();
    }
    return [...this.#results.values()].sort((a, b) => a.at - b.at);
  }

  /** What was kept on the way is in the files of the batch now. */
  async forget(): Promise<void> {
    const { folder, key } = this.#options;
    for (let part = 0; part < this.#parts; part++) await folder.remove(key.id, this.#partId(part));
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
      await wait(pause_ms, undefined, { signal: this.#stop.signal }).catch(() => undefined);
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
    this.#unsaved.push(result);
    this.#tell();
    if (this.#unsaved.length >= unsaved_max) await this.#save();
  }

  #tell(): void {
    const all = [...this.#results.values()];
    const completed = all.filter(({ ok }) => ok).length;
    this.#options.progress({ completed, failed: all.length - completed });
  }

  #save(): Promise<void> {
    const part = this.#unsaved;
    if (part.length > 0) {
      this.#unsaved = [];
      const { folder, key } = this.#options;
      const id = this.#partId(this.#parts++);
      this.#saving = this.#saving.then(() => folder.put(key.id, id, Buffer.from(JSON.stringify(part))));
    }
    return this.#saving;
  }

  async #load(): Promise<void> {
    const { folder, key } = this.#options;
    for (; ; this.#parts++) {
      const bytes = await folder.get(key.id, this.#partId(this.#parts));
      if (!bytes) break;
      for (const result of z.array(resultSchema).parse(JSON.parse(bytes.toString())))
        this.#results.set(result.at, result);
    }
    if (this.#results.size > 0) this.#tell();
  }

  #partId(part: number): string {
    return `part-${this.#options.batch_id.replace(/^batch_/, '')}x${part}`;
  }
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
