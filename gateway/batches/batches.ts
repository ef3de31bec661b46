import { basename, dirname, join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { type ApiKey, type KeyStore, limitsKeyOf } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { isSystemError, systemMessage } from '../../spec/errors/system-error.ts';
import { isGatewayThere } from '../gateway-lock.ts';
import type { KeptForKeys } from '../kept/kept-for-keys.ts';
import { newId, type SealedFolder } from '../kept/sealed-folder.ts';
import { unknownKept } from '../kept/unknown-kept.ts';
import type { GatewayLog } from '../log.ts';
import { type BatchProblem, batchSchema, isEnded, isOfBatch, type KeptBatch, now_s } from './batch.ts';
import { areProblems, type BatchLine, readBatchInput } from './batch-input.ts';
import { BatchLanes } from './batch-lanes.ts';
import { BatchRun, type BatchRunOptions } from './batch-run.ts';
import { Cancellations } from './cancellations.ts';
import type { CollectedAnswer, InnerRequest } from './collected-response.ts';
import { FileStore } from './file-store.ts';
import { ResultParts } from './result-parts.ts';

/** Batches that one gateway works on at a time; others wait. Each holds its file in memory. */
const runningDefault_max = 4;
/** Of one key, that run or wait at one gateway. Lower: shorter lines; higher: more that is sent at once. */
const openDefault_max = 100;
/** How often counts of a batch that runs are written down. */
const told_ms = 2000;
/**
 * Between two looks whether a batch that waits was cancelled at another gateway. Lower: it ends sooner; higher: fewer
 * looks, of which there is one for each.
 */
const lookWaitingDefault_ms = 10_000;
/** Before a batch is taken up again whose files could not be read or written. */
const again_ms = 30_000;
/** What is kept of batches that run is renewed so often, or sooner where it is kept for a shorter time. */
const renew_ms = 600_000;
/** Renewed so often within the time that it is kept: one may fail. */
const renewals = 4;
/** Between two looks for what gateways left that are gone. Lower: it ends sooner; higher: fewer files are read. */
const lookForLeft_ms = 600_000;
/**
 * What another gateway left is this one's when it still is after so long: who works on a batch writes it down more
 * often (`told_ms`), and of several that would end it the last to write is seen by all. Lower: its end comes sooner;
 * higher: slower filesystems.
 */
const claimDefault_ms = 5000;
const window_s = { '24h': 86_400 } as const;

export interface BatchesOptions {
  gateway_folder: string;
  kept: KeptForKeys;
  keys: Pick<KeyStore, 'list' | 'valid'>;
  log: GatewayLog;
  /** Batches that are worked on at a time, of all keys. */
  running_max?: number;
  /** Batches of one key, and those derived from it, that run or wait. */
  open_max?: number;
  /** Until what another gateway left is this one's. */
  claim_ms?: number;
  /** Between two looks whether a batch that waits was cancelled at another gateway. */
  look_waiting_ms?: number;
  ask(key: ApiKey, path: string, asked: InnerRequest): Promise<CollectedAnswer | undefined>;
}

/** A batch that this gateway works on, or is about to. */
interface Running {
  key_id: string;
  input_file_id: string;
  /** The key whose limits its key has: keys that are derived from it get no more lanes than it. */
  owner: string;
  stop: AbortController;
  /** From when on it is to end, Unix s. */
  cancelling_at: number | undefined;
  /** Why it cannot go on. */
  problem: BatchProblem | undefined;
  ended: Promise<void>;
}

type ResultFiles = Partial<Pick<KeptBatch, 'output_file_id' | 'error_file_id'>>;
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
  readonly #lanes: BatchLanes;
  readonly #closing = new AbortController();
  readonly #renewing: NodeJS.Timeout | undefined;
  readonly #lookingForLeft: NodeJS.Timeout | undefined;

  constructor(options: BatchesOptions) {
    this.#options = options;
    const folder = options.kept.batches;
    if (folder) {
      const interval_ms = Math.min(renew_ms, folder.kept_ms / renewals);
      this.#renewing = setInterval(() => void this.#renew(folder), interval_ms).unref();
      this.#lookingForLeft = setInterval(() => void this.endLeft(), lookForLeft_ms).unref();
    }
    this.#gateway = basename(options.gateway_folder);
    this.#lanes = new BatchLanes(options.running_max ?? runningDefault_max);
  }

  /** Goes on with what this gateway worked on before; what the system does not let it read now, it looks for again. */
  async resume(): Promise<void> {
    const folder = this.#options.kept.batches;
    if (!folder) return;
    while (!this.#isClosing) {
      let isUnread = false;
      // Also those of keys that are not valid any more: these end.
      for (const key of this.#options.keys.list()) if (!(await this.#resumeOf(folder, key))) isUnread = true;
      if (!isUnread) return;
      await wait(again_ms, undefined, { signal: this.#closing.signal }).catch(() => undefined);
    }
  }

  /** @returns whether all that is kept of a key could be read, or never can */
  async #resumeOf(folder: SealedFolder, key: ApiKey): Promise<boolean> {
    let isRead = true;
    const onUnreadable = (error: unknown, batch_id?: string): void => {
      const told = { key: key.id, batch: batch_id, reason: systemMessage(error) };
      this.#options.log.error(told, 'what is kept of batches cannot be read, and does not go on');
      if (isSystemError(error)) isRead = false;
    };
    try {
      for (const batch of await this.#all(folder, key.id, onUnreadable))
        if (!isEnded(batch) && batch.gateway === this.#gateway && !this.#running.has(batch.id))
          this.#begin(key.id, batch, this.#enter(key, batch));
    } catch (error) {
      onUnreadable(error);
    }
    return isRead;
  }

  /** @throws E_KEPT_UNKNOWN for its file, E_KEY_BATCHES, the system's error */
  async create(key: ApiKey, asked: New): Promise<KeptBatch> {
    const { batches } = this.#folders();
    await this.#files(key.id).content(asked.input_file_id, 'input_file_id');
    this.#requireRoom(key);
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
    // Counted before it is written down: others of the key may come meanwhile.
    const run = this.#enter(key, batch);
    try {
      await put(batches, key.id, batch);
    } catch (error) {
      this.#running.delete(batch.id);
      throw error;
    }
    this.#begin(key.id, batch, run);
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
    const cancelled: KeptBatch = { ...batch, status: 'cancelling', cancelling_at };
    void this.#endIfLeft(key, cancelled);
    return cancelled;
  }

  /** Ends what gateways left that are gone, where it was cancelled or its window is over. */
  async endLeft(): Promise<void> {
    const folder = this.#options.kept.batches;
    for (const key of folder ? this.#options.keys.list() : [])
      try {
        const batches = await this.#all(folder!, key.id);
        await Promise.all(batches.map((batch) => this.#endIfLeft(key, batch)));
      } catch (error) {
        this.#logUnended(key, error as Error);
      }
  }

  /** Gateways of one site lie side by side. */
  async #endIfLeft(key: ApiKey, batch: KeptBatch): Promise<void> {
    const { id, gateway, status, expires_at } = batch;
    const isDue = status === 'cancelling' || (!isEnded(batch) && expires_at < now_s());
    if (!isDue || gateway === this.#gateway) return;
    const { gateway_folder, claim_ms = claimDefault_ms, log } = this.#options;
    try {
      if (isGatewayThere(join(dirname(gateway_folder), gateway))) return;
      await put(this.#folders().batches, key.id, { ...batch, gateway: this.#gateway });
      await wait(claim_ms, undefined, { signal: this.#closing.signal }).catch(() => undefined);
      const claimed = await this.find(key, id);
      const isOther = claimed.gateway !== this.#gateway || isEnded(claimed) || this.#running.has(id);
      if (isOther || this.#isClosing) return;
      log.info({ batch: id, gateway }, 'a batch is ended whose gateway is gone');
      const run = this.#enter(key, claimed);
      // Nothing more is asked: it has what was answered.
      run.stop.abort();
      this.#begin(key.id, claimed, run);
    } catch (error) {
      this.#logUnended(key, error as Error, id);
    }
  }

  #logUnended(key: ApiKey, error: Error, batch_id?: string): void {
    const told = { key: key.id, batch: batch_id, reason: systemMessage(error) };
    this.#options.log.warn(told, 'what a gateway left cannot be ended');
  }

  /** What is under way is given up, and asked again when the gateway is back. */
  async close(): Promise<void> {
    clearInterval(this.#renewing);
    clearInterval(this.#lookingForLeft);
    this.#closing.abort();
    for (const { stop } of this.#running.values()) stop.abort();
    await Promise.all([...this.#running.values()].map(({ ended }) => ended));
  }

  /** @throws E_KEY_BATCHES */
  #requireRoom(key: ApiKey): void {
    const { open_max = openDefault_max } = this.#options;
    const owner = limitsKeyOf(key);
    const open = [...this.#running.values()].filter((run) => run.owner === owner).length;
    if (open >= open_max)
      throw new HpcserveError('E_KEY_BATCHES', {
        what: `${open} batches of the key ${key.name} run or wait at this gateway, and one key may have ${open_max}`,
      });
  }

  #enter(key: ApiKey, { id, input_file_id }: KeptBatch): Running {
    const run: Running = {
      key_id: key.id,
      input_file_id,
      owner: limitsKeyOf(key),
      stop: new AbortController(),
      cancelling_at: undefined,
      problem: undefined,
      ended: Promise.resolve(),
    };
    this.#running.set(id, run);
    return run;
  }

  #begin(key_id: string, batch: KeptBatch, run: Running): void {
    if (batch.status === 'cancelling') cancelRun(run, batch.cancelling_at ?? now_s());
    run.ended = this.#work(key_id, batch, run).finally(() => this.#running.delete(batch.id));
  }

  /** However long a batch runs or waits, nothing of it is over its time; nor are its requests, read when it begins. */
  async #renew(folder: SealedFolder): Promise<void> {
    for (const [batch_id, { key_id, input_file_id }] of this.#running)
      try {
        await folder.renew(key_id, (id) => isOfBatch(id, batch_id));
        await this.#files(key_id).renew(input_file_id);
      } catch (error) {
        const reason = systemMessage(error as Error);
        this.#options.log.warn({ batch: batch_id, reason }, 'what is kept of a batch cannot be renewed');
      }
  }

  get #isClosing(): boolean {
    return this.#closing.signal.aborted;
  }

  /** Until it is ended: a disk that is full has room again some day, and a server that is away comes back. */
  async #work(key_id: string, batch: KeptBatch, run: Running): Promise<void> {
    while (!this.#isClosing) {
      try {
        await this.#runInTurn(key_id, batch, run);
        return;
      } catch (error) {
        const reason = systemMessage(error as Error);
        this.#options.log.error({ batch: batch.id, reason }, 'a batch stopped');
      }
      await wait(again_ms, undefined, { signal: this.#closing.signal }).catch(() => undefined);
    }
  }

  async #runInTurn(key_id: string, batch: KeptBatch, run: Running): Promise<void> {
    const { look_waiting_ms = lookWaitingDefault_ms } = this.#options;
    const watching = setInterval(() => this.#stopIfCancelled(key_id, batch.id, run), look_waiting_ms);
    const leave = await this.#lanes.take(run.owner, run.stop.signal).finally(() => clearInterval(watching));
    try {
      if (!this.#isClosing) await this.#run(key_id, batch, run);
    } finally {
      leave();
    }
  }

  async #run(key_id: string, batch: KeptBatch, run: Running): Promise<void> {
    const { batches } = this.#folders();
    const lines = await this.#linesOf(key_id, batch);
    if (areProblems(lines)) {
      await this.#end(key_id, { ...batch, ...failedBy(lines) });
      return;
    }
    let current: KeptBatch = {
      ...batch,
      status: 'in_progress',
      in_progress_at: batch.in_progress_at ?? now_s(),
      request_counts: { ...batch.request_counts, total: lines.length },
    };
    await put(batches, key_id, current);
    const watching = setInterval(() => this.#watch(key_id, current, run), told_ms);
    const { id: batch_id } = batch;
    const { log } = this.#options;
    const results = new ResultParts({ key_id, batch_id, requests: lines.length, folder: batches, log });
    const asking = new BatchRun(
      {
        lines,
        results,
        closing: this.#closing.signal,
        expires_at_ms: 1000 * batch.expires_at,
        ask: this.#askerOf(key_id, batch, run),
        progress: (counts) => {
          current = { ...current, request_counts: { total: lines.length, ...counts } };
          if (results.bytes > batches.owner_bytes_max) failRun(run, tooLarge(batches));
        },
      },
      run.stop,
    );
    await asking.run().finally(() => clearInterval(watching));
    if (this.#isClosing && run.cancelling_at === undefined && !run.problem) {
      await put(batches, key_id, current);
      return;
    }
    await this.#finish(key_id, current, run, results);
    await this.#cleanUp(batch_id, () => results.remove());
  }

  /** The requests of a batch, or why there are none. @throws the system's error */
  async #linesOf(key_id: string, batch: KeptBatch): Promise<BatchLine[] | BatchProblem[]> {
    try {
      return readBatchInput(await this.#files(key_id).content(batch.input_file_id), batch.endpoint);
    } catch (error) {
      // Deleted meanwhile, or gone to make room.
      if (!(error instanceof HpcserveError) || error.code !== 'E_KEPT_UNKNOWN') throw error;
      return [problemOf('missing_file', error.message)];
    }
  }

  /** Asks with the key as it is then: it may be revoked, blocked or changed, or expire, while its batch runs. */
  #askerOf(key_id: string, batch: KeptBatch, run: Running): BatchRunOptions['ask'] {
    let known: ApiKey | undefined;
    let waiting: ApiKey | undefined;
    return async (body, request_id, signal) => {
      const key = this.#validKey(key_id, run);
      if (!key) return undefined;
      // What can wait leaves stable replicas to what cannot. The same key stays the same: its filter is kept by it.
      if (key !== known) waiting = { ...key, settings: { ...key.settings, batch: true } };
      known = key;
      return this.#options.ask(waiting!, batch.endpoint, { body, request_id, signal });
    };
  }

  /** The key as it is now; where it is not valid any more, its batch stops. */
  #validKey(key_id: string, run: Running): ApiKey | undefined {
    const key = this.#options.keys.valid(key_id);
    if (!key) failRun(run, problemOf('invalid_key', 'the API key of the batch is not valid any more'));
    return key;
  }

  /** Writes down what there is of a batch that runs, and stops it where it is to end. */
  #watch(key_id: string, current: KeptBatch, run: Running): void {
    this.#validKey(key_id, run);
    void put(this.#folders().batches, key_id, current).catch(() => undefined);
    this.#stopIfCancelled(key_id, current.id, run);
  }

  /** Another gateway of the site may have been told to end it. */
  #stopIfCancelled(key_id: string, batch_id: string, run: Running): void {
    void this.#cancellations(key_id)
      .markedAt(batch_id)
      .then((at) => at !== undefined && cancelRun(run, at))
      .catch(() => undefined);
  }

  /** Puts results into files, whatever the batch ended by. */
  async #finish(
    key_id: string,
    batch: KeptBatch,
    { cancelling_at, problem }: Running,
    results: ResultParts,
  ): Promise<void> {
    const isCancelled = cancelling_at !== undefined;
    const current: KeptBatch = isCancelled
      ? { ...batch, status: 'cancelling', cancelling_at }
      : { ...batch, status: 'finalizing', finalizing_at: now_s() };
    await put(this.#folders().batches, key_id, current);
    const { files, missing } = await this.#filesOf(key_id, batch, results);
    const why = problem ?? missing;
    const { total, completed, failed } = batch.request_counts;
    const end = why && !isCancelled ? failedBy([why]) : endOf(isCancelled, completed + failed < total);
    await this.#end(key_id, { ...current, ...files, ...end });
  }

  /** Files of the results there are, and why some are missing where some are. @throws the system's error */
  async #filesOf(
    key_id: string,
    { id, request_counts }: KeptBatch,
    results: ResultParts,
  ): Promise<{ files: ResultFiles; missing?: BatchProblem }> {
    const folder = this.#folders().files;
    const files: ResultFiles = {};
    if (results.bytes > folder.owner_bytes_max) return { files, missing: tooLarge(folder) };
    const store = new FileStore(folder, key_id);
    const made = async (name: string, ok: boolean): Promise<string> =>
      (await store.put(`${id}_${name}.jsonl`, 'batch_output', results.lines(ok))).id;
    try {
      if (request_counts.completed > 0) files.output_file_id = await made('output', true);
      if (request_counts.failed > 0) files.error_file_id = await made('error', false);
    } catch (error) {
      if (!(error instanceof HpcserveError) || error.code !== 'E_KEPT_UNKNOWN') throw error;
      const message = 'results were removed to make room for what the API key kept later';
      return { files, missing: problemOf('lost_results', message) };
    }
    return { files };
  }

  async #end(key_id: string, batch: KeptBatch): Promise<void> {
    await put(this.#folders().batches, key_id, batch);
    await this.#cleanUp(batch.id, () => this.#cancellations(key_id).forget(batch.id));
  }

  /** A batch that has ended does not run again because something of it stays until it is over its time. */
  async #cleanUp(batch_id: string, remove: () => Promise<void>): Promise<void> {
    await remove().catch((error: Error) => {
      const reason = systemMessage(error);
      this.#options.log.warn({ batch: batch_id, reason }, 'what is left of a batch cannot be removed');
    });
  }

  /** The oldest first. @param onUnreadable told of each that is left out @throws the system's error */
  async #all(
    folder: SealedFolder,
    key_id: string,
    onUnreadable?: (error: unknown, batch_id: string) => void,
  ): Promise<KeptBatch[]> {
    const found: KeptBatch[] = [];
    for (const { id } of await folder.list(key_id)) {
      try {
        const bytes = id.startsWith('batch_') ? await folder.get(key_id, id) : undefined;
        if (bytes) found.push(await this.#asItIs(key_id, batchSchema.parse(JSON.parse(bytes.toString()))));
      } catch (error) {
        onUnreadable?.(error, id);
      }
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

/** The same, of one that cannot go on. */
function failRun(run: Running, problem: BatchProblem): void {
  run.problem ??= problem;
  run.stop.abort();
}

function problemOf(code: string, message: string): BatchProblem {
  return { code, message, line: null, param: null };
}

function tooLarge({ owner_bytes_max }: SealedFolder): BatchProblem {
  const message = `the results of the batch pass what may be kept for an API key, ${owner_bytes_max / 1e9} GB`;
  return problemOf('results_too_large', message);
}

function failedBy(problems: BatchProblem[]): Partial<KeptBatch> {
  return { status: 'failed', failed_at: now_s(), errors: { object: 'list', data: problems } };
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
