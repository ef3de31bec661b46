/**
 * How fast weights come from the page cache into a pool whose memory is there, on all cores and on one, beside the same
 * bytes copied or converted by as many threads. On a device with memory of its own, beside bytes that come to it from
 * page-locked memory.
 */
import { Worker } from 'node:worker_threads';
import type { Backend } from '../../agent/backend/backend.ts';
import { DevicePool } from '../../agent/memory/device-pool.ts';
import type { WeightLoad } from '../../agent/memory/pooled-loading.ts';
import type { PeerAnswer, PeerWork } from './peer-thread.ts';

const attempts = 7;
const gb = 1e9;

export interface LoadRate {
  /** GB a second: medians. */
  ours: number;
  theirs: number;
  ratio: number;
}

export interface LoadRates {
  plain: LoadRate;
  /** Absent where this CPU has no special layout for the type. */
  converted?: LoadRate;
}

/** @param threads of the load, and of what stands beside it */
export async function measureLoads(
  backend: Backend,
  plain_path: string,
  quantized_path: string,
  threads: number,
): Promise<LoadRates> {
  const pool = new DevicePool(backend, { pool_bytes: 1.2e9, threads, populate: true });
  try {
    load(pool, plain_path, threads);
    load(pool, quantized_path, threads);
    const special = pool.memory.layouts[1];
    // One copies to a device as fast as the link is.
    const [peer, peers]: [PeerWork, number] = backend.upload
      ? [{ kind: 'upload', device: backend.name }, 1]
      : [{ kind: 'copy' }, threads];
    const rates: LoadRates = { plain: await pairs(() => load(pool, plain_path, threads), peer, peers) };
    if (special)
      rates.converted = await pairs(
        () => load(pool, quantized_path, threads),
        { kind: 'conversion' },
        threads,
      );
    return rates;
  } finally {
    await pool.close();
  }
}

async function pairs(ours: () => number, work: PeerWork, threads: number): Promise<LoadRate> {
  const peers = await Peers.start(work, threads);
  const mine: number[] = [];
  const theirs: number[] = [];
  try {
    for (let attempt = 0; attempt < attempts; attempt++) {
      mine.push(ours());
      theirs.push(await peers.rate());
    }
  } finally {
    await peers.end();
  }
  const ratios = mine.map((rate, index) => rate / theirs[index]!);
  return { ours: median(mine), theirs: median(theirs), ratio: median(ratios) };
}

/** Threads that copy or convert memory of their own, all at once. */
class Peers {
  readonly #workers: Worker[];

  private constructor(workers: Worker[]) {
    this.#workers = workers;
  }

  static async start(work: PeerWork, threads: number): Promise<Peers> {
    const path = new URL('./peer-thread.js', import.meta.url);
    const peers = new Peers(Array.from({ length: threads }, () => new Worker(path, { workerData: work })));
    // Pages are taken and code is compiled before anything counts.
    await peers.rate();
    return peers;
  }

  /** GB a second of all together, from the first that starts to the last that ends. */
  async rate(): Promise<number> {
    const answers = await Promise.all(this.#workers.map(askOnce));
    const bytes = answers.reduce((sum, answer) => sum + answer.bytes, 0);
    const started_ms = Math.min(...answers.map((answer) => answer.started_ms));
    const ended_ms = Math.max(...answers.map((answer) => answer.ended_ms));
    return bytes / gb / ((ended_ms - started_ms) / 1000);
  }

  async end(): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker.terminate()));
  }
}

function askOnce(worker: Worker): Promise<PeerAnswer> {
  return new Promise((resolve, reject) => {
    const failed = (error: Error): void => reject(error);
    worker.once('error', failed).once('message', (answer: PeerAnswer) => {
      worker.off('error', failed);
      resolve(answer);
    });
    worker.postMessage('go');
  });
}

/** @returns GB a second of the whole model, planning included */
function load(pool: DevicePool, model_path: string, threads: number): number {
  pool.store.clear();
  let done: WeightLoad | undefined;
  const options = {
    model_path,
    threads,
    context_tokens: 64,
    max_sequences: 1,
    prefill_chunk_tokens: 16,
    kv_tokens: 64,
    kv_type: 'f16' as const,
    batch_invariant: false,
  };
  const opening = pool.open(options, { on_loaded: (told) => (done = told) });
  let engine = opening.advance(true);
  while (!engine) engine = opening.advance(true);
  engine.close();
  return done!.missing_bytes / gb / (done!.read_ms / 1000);
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
}
