import { basename } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import type { ApiKey, KeyStore } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { systemMessage } from '../../spec/errors/system-error.ts';
import type { KeptForKeys } from '../kept/kept-for-keys.ts';
import { newId, type SealedFolder } from '../kept/sealed-folder.ts';
import { unknownKept } from '../kept/unknown-kept.ts';
import type { GatewayLog } from '../log.ts';
import { batchSchema, isEnded, type KeptBatch, now_s } from './batch.ts';
import { areProblems, readBatchInput } from './batch-input.ts';
import { BatchRun } from './batch-run.ts';
import { Cancellations } from './cancellations.ts';
import type { CollectedAnswer, InnerRequest } from './collected-response.ts';
import { FileStore } from './file-store.ts';

/** Batches that one gateway works on at a time; others wait. Each holds its file in memory. */
const running_max = 4;
/** How often counts of a batch that runs are written down. */
const told_ms = 2000;
/** Before a batch is taken up again whose files could not be read or written. */
const again_ms = 30_000;
const window_s = { '24h': 86_400 } as const;

export interface BatchesOptions {
  gateway_folder: string;
  kept: KeptForKeys;
  keys: Pick<KeyStore, 'list'>;
  log: GatewayLog;
  ask(key: ApiKey, path: string, asked: InnerRequest): Promise<CollectedAnswer | undefined>;
}

/** A batch that this gateway works on, or is about to. */
interface Running {
  stop: AbortController;
  /** From when on it is to end, Unix s. */
  cancelling_at: number | undefined;
  ended: Promise<void>;
}

type New = Pick<KeptBatch, 'endpoint' | 'input_file_id' | 'metadata'> & { completion_window: '24h' };

/**
 * Batches of requests that can wait: on replicas of the scavenger tier, for as long as their window is open, and on
 * from where they were after a restart of the gateway.
 *
 * ```
 *   validating ─► in_progress ─► finalizing ─► completed, expired
 *        │             └──► cancelling ─────► cancelled
 *        └──► failed
 * ```
 */
export class Batches {
  readonly #options: BatchesOptions;
  readonly #gateway: string;
  /** By id. */
  readonly #running = new Map<string, Running>();
  readonly #queue: (() => void)[] = [];
  #lanes = running_max;
  readonly #closing = new AbortController();

  constructor(options: BatchesOptions) {
    this.#options = options;
    this.#gateway = basename(options.gateway_folder);
  }

  /** Goes on with what this gateway worked on before. */
  async resume(): Promise<void> {
    const folder = this.#options.kept.batches;
    if (!folder) return;
    for (const key of this.#options.keys.list())
      for (const batch of await this.#all(folder, key.id))
        if (!isEnded(batch) && batch.gateway === this.#gateway) this.#begin(key, batch);
  }

  /** @throws E_KEPT_UNKNOWN for its file */
  async create(key: ApiKey, asked: New): Promise<KeptBatch> {
    const { batches } = this.#folders();
    await this.#files(key.id).content(asked.input_file_id, 'input_file_id');
    const created_at = now_s();
    const batch: KeptBatch = {
      id: newId('batch_'),
      object: 'batch',
      errors: null,
      status: 'validating',
      output_file_id: null,
      error_file_id: null,
      created_at,
      in_progress_at: null,
      expires_at: created_at + window_s[asked.completion_window],
      finalizing_at: null,
      completed_at: null,
      failed_at: null,
      expired_at: null,
      cancelling_at: null,
      cancelled_at: null,
      request_counts: { total: 0, completed: 0, failed: 0 },
      gateway: this.#gateway,
      ...asked,
    };
    await put(batches, key.id, batch);
    this.#begin(key, batch);
    return batch;
  }

  /** The newest first. */
  async list(key: ApiKey): Promise<KeptBatch[]> {
    return (await this.#all(this.#folders().batches, key.id)).reverse();
  }

  /** @throws E_KEPT_UNKNOWN */
  async find(key: ApiKey, id: string): Promise<KeptBatch> {
    const bytes = id.startsWith('batch_') ? await this.#folders().batches.get(key.id, id) : undefined;
    if (!bytes) throw unknownKept('batch', id, null);
    return this.#asItIs(key.id, batchSchema.parse(JSON.parse(bytes.toString())));
  }

  /** @throws E_KEPT_UNKNOWN */
  async cancel(key: ApiKey, id: string): Promise<KeptBatch> {
    const batch = await this.find(key, id);
    if (isEnded(batch) || batch.status === 'cancelling') return batch;
    const cancelling_at = await this.#cancellations(key.id).mark(id);
    const run = this.#running.get(id);
    if (run) cancelRun(run, cancelling_at);
    return { ...batch, status: 'cancelling', cancelling_at };
  }

  /** What is under way is given up, and asked again when the gateway is back. */
  async close(): Promise<void> {
    this.#closing.abort();
    for (const { stop } of this.#running.values()) stop.abort();
    for (const next of this.#queue.splice(0)) next();
    await Promise.all([...this.#running.values()].map(({ ended }) => ended));
  }

  #begin(key: ApiKey, batch: KeptBatch): void {
    const run: Running = { stop: new AbortController(), cancelling_at: undefined, ended: Promise.resolve() };
    if (batch.status === 'cancelling') cancelRun(run, batch.cancelling_at ?? now_s());
    this.#running.set(batch.id, run);
    run.ended = this.#work(key, batch, run).finally(() => this.#running.delete(batch.id));
  }

  get #isClosing(): boolean {
    return this.#closing.signal.aborted;
  }

  /** Until it is ended: a disk that is full has room again some day, and a server that is away comes back. */
  async #work(key: ApiKey, batch: KeptBatch, run: Running): Promise<void> {
    while (!this.#isClosing) {
      try {
        await this.#runInTurn(key, batch, run);
        return;
      } catch (error) {
        const reason = systemMessage(error as Error);
        this.#options.log.error({ batch: batch.id, reason }, 'a batch stopped');
      }
      await wait(again_ms, undefined, { signal: this.#closing.signal }).catch(() => undefined);
    }
  }

  async #runInTurn(key: ApiKey, batch: KeptBatch, run: Running): Promise<void> {
    if (this.#lanes === 0) await new Promise<void>((resolve) => void this.#queue.push(resolve));
    else this.#lanes--;
    try {
      if (!this.#isClosing) await this.#run(key, batch, run);
    } finally {
      const next = this.#queue.shift();
      if (next) next();
      else this.#lanes++;
    }
  }

  async #run(key: ApiKey, batch: KeptBatch, run: Running): Promise<void> {
    const { batches } = this.#folders();
    const lines = readBatchInput(await this.#files(key.id).content(batch.input_file_id), batch.endpoint);
    if (areProblems(lines)) {
      const failed = {
        status: 'failed',
        failed_at: now_s(),
        errors: { object: 'list', data: lines },
      } as const;
      await put(batches, key.id, { ...batch, ...failed });
      await this.#cancellations(key.id).forget(batch.id);
      return;
    }
    let current: KeptBatch = {
      ...batch,
      status: 'in_progress',
      in_progress_at: batch.in_progress_at ?? now_s(),
      request_counts: { ...batch.request_counts, total: lines.length },
    };
    await put(batches, key.id, current);
    // What can wait leaves stable replicas to what cannot.
    const waiting: ApiKey = { ...key, settings: { ...key.settings, batch: true } };
    const telling = setInterval(() => {
      void put(batches, key.id, current).catch(() => undefined);
      // Another gateway of the site may have been told to end it.
      void this.#cancellations(key.id)
        .markedAt(batch.id)
        .then((at) => at !== undefined && cancelRun(run, at))
        .catch(() => undefined);
    }, told_ms);
    const asking = new BatchRun(
      {
        key_id: key.id,
        batch_id: batch.id,
        lines,
        folder: batches,
        log: this.#options.log,
        closing: this.#closing.signal,
        expires_at_ms: 1000 * batch.expires_at,
        ask: (body, request_id, signal) =>
          this.#options.ask(waiting, batch.endpoint, { body, request_id, signal }),
        progress: (counts) => {
          current = { ...current, request_counts: { total: lines.length, ...counts } };
        },
      },
      run.stop,
    );
    const results = await asking.run().finally(() => clearInterval(telling));
    const { cancelling_at } = run;
    if (this.#isClosing && cancelling_at === undefined) {
      await put(batches, key.id, current);
      return;
    }
    const isCancelled = cancelling_at !== undefined;
    current = isCancelled
      ? { ...current, status: 'cancelling', cancelling_at }
      : { ...current, status: 'finalizing', finalizing_at: now_s() };
    await put(batches, key.id, current);
    const files = { output_file_id: true, error_file_id: false } as const;
    for (const [name, ok] of Object.entries(files) as ['output_file_id' | 'error_file_id', boolean][]) {
      const told = results.filter((result) => result.ok === ok).map(({ line }) => `${line}\n`);
      if (told.length === 0) continue;
      const filename = `${batch.id}_${ok ? 'output' : 'error'}.jsonl`;
      const file = await this.#files(key.id).put(filename, 'batch_output', Buffer.from(told.join('')));
      current = { ...current, [name]: file.id };
    }
    await put(batches, key.id, { ...current, ...endOf(isCancelled, results.length < lines.length) });
    await asking.forget();
    await this.#cancellations(key.id).forget(batch.id);
  }

  async #all(folder: SealedFolder, key_id: string): Promise<KeptBatch[]> {
    const found: KeptBatch[] = [];
    for (const { id } of await folder.list(key_id)) {
      const bytes = id.startsWith('batch_') ? await folder.get(key_id, id) : undefined;
      if (bytes) found.push(await this.#asItIs(key_id, batchSchema.parse(JSON.parse(bytes.toString()))));
    }
    return found.sort((a, b) => a.created_at - b.created_at);
  }

  /** What is written down of a batch says later than its mark that it is to end. */
  async #asItIs(key_id: string, batch: KeptBatch): Promise<KeptBatch> {
    const cancelling_at = isEnded(batch) ? undefined : await this.#cancellations(key_id).markedAt(batch.id);
    return cancelling_at === undefined ? batch : { ...batch, status: 'cancelling', cancelling_at };
  }

  #cancellations(key_id: string): Cancellations {
    return new Cancellations(this.#folders().batches, key_id);
  }

  #files(key_id: string): FileStore {
    return new FileStore(this.#folders().files, key_id);
  }

  /** @throws E_KEPT_UNKNOWN where the site keeps none */
  #folders(): { batches: SealedFolder; files: SealedFolder } {
    const { batches, files } = this.#options.kept;
    if (batches && files) return { batches, files };
    throw new HpcserveError('E_KEPT_UNKNOWN', {
      what: 'there are no files and batches here',
      because: 'gateway.files_kept_d of the site config is 0',
    });
  }
}

/** What is under way of it is given up. */
function cancelRun(run: Running, at_s: number): void {
  run.cancelling_at ??= at_s;
  run.stop.abort();
}

function endOf(cancelled: boolean, incomplete: boolean): Partial<KeptBatch> {
  if (cancelled) return { status: 'cancelled', cancelled_at: now_s() };
  return incomplete
    ? { status: 'expired', expired_at: now_s() }
    : { status: 'completed', completed_at: now_s() };
}

async function put(folder: SealedFolder, key_id: string, batch: KeptBatch): Promise<void> {
  await folder.put(key_id, batch.id, Buffer.from(JSON.stringify(batch)));
}
