/**
 * How fast weights come from the page cache into a pool whose memory is there, on one thread, beside the same bytes
 * copied or converted.
 */
import { DevicePool } from '../../agent/memory/device-pool.ts';
import type { WeightLoad } from '../../agent/memory/pooled-loading.ts';
import { GgmlType, loadGgml } from '../../native/ggml.ts';
import { moveMemory, SharedMemory, unmap } from '../../native/memory-map.ts';

const attempts = 7;
const mib = 2 ** 20;
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

export async function measureLoads(plain_path: string, quantized_path: string): Promise<LoadRates> {
  const pool = new DevicePool(loadGgml(), { pool_bytes: 1.2e9, threads: 1, populate: true });
  try {
    load(pool, plain_path);
    load(pool, quantized_path);
    const special = pool.memory.layouts[1];
    return {
      plain: pairs(() => load(pool, plain_path), copyRate()),
      ...(special && { converted: pairs(() => load(pool, quantized_path), conversionRate()) }),
    };
  } finally {
    await pool.close();
  }
}

function pairs(ours: () => number, peer: { rate: () => number; free: () => void }): LoadRate {
  const mine: number[] = [];
  const theirs: number[] = [];
  for (let attempt = 0; attempt < attempts; attempt++) {
    mine.push(ours());
    theirs.push(peer.rate());
  }
  peer.free();
  const ratios = mine.map((rate, index) => rate / theirs[index]!);
  return { ours: median(mine), theirs: median(theirs), ratio: median(ratios) };
}

/** @returns GB a second of the whole model, planning included */
function load(pool: DevicePool, model_path: string): number {
  pool.store.clear();
  let done: WeightLoad | undefined;
  const options = {
    model_path,
    threads: 1,
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

function copyRate(): { rate: () => number; free: () => void } {
  const bytes = 256 * mib;
  const memories = [0, 1].map(() => {
    const memory = SharedMemory.create('bench', bytes);
    return { memory, address: memory.map() };
  });
  const [to, from] = memories as [(typeof memories)[0], (typeof memories)[0]];
  moveMemory(to.address, from.address, bytes);
  moveMemory(from.address, to.address, bytes);
  return {
    rate: () => {
      const started = performance.now();
      moveMemory(to.address, from.address, bytes);
      return bytes / gb / ((performance.now() - started) / 1000);
    },
    free: () => {
      for (const { memory, address } of memories) {
        unmap(address, bytes);
        memory.close();
      }
    },
  };
}

/** ggml's own conversion of a matrix that is in memory. */
function conversionRate(): { rate: () => number; free: () => void } {
  const ggml = loadGgml();
  const [columns, rows] = [2048, 8192];
  const bufferType = ggml.cpuExtraBufferTypes[0]!;
  const context = ggml.ggml_init({ mem_size: 4096, mem_buffer: null, no_alloc: true })!;
  const tensor = ggml.ggml_new_tensor_2d(context, GgmlType.Q4_0, columns, rows)!;
  const bytes = Number(ggml.ggml_nbytes(tensor));
  const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, bytes + 64)!;
  ggml.ggml_backend_tensor_alloc(buffer, tensor, ggml.ggml_backend_buffer_get_base(buffer));
  const source = new Uint8Array(bytes).fill(0x35);
  ggml.ggml_backend_tensor_set(tensor, source, 0, bytes);
  const times = 16;
  return {
    rate: () => {
      const started = performance.now();
      for (let time = 0; time < times; time++) ggml.ggml_backend_tensor_set(tensor, source, 0, bytes);
      return (times * bytes) / gb / ((performance.now() - started) / 1000);
    },
    free: () => {
      ggml.ggml_backend_buffer_free(buffer);
      ggml.ggml_free(context);
    },
  };
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
}
