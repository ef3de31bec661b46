/**
 * Weights that are streamed through an arena of a quarter of the model. On the CPUs of this machine host memory and the
 * arena are one memory, so that what is measured is how well copies and arithmetic overlap; on a device of its own
 * memory (`--device`), what the link is used for.
 */
import { statSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import type { NativeEngine } from '../../agent/engine/native-engine.ts';
import { DevicePool } from '../../agent/memory/device-pool.ts';
import { TensorLoader } from '../../agent/memory/load/tensor-loader.ts';
import { type OpenedProducts, openHybridProducts } from '../../agent/streaming/hybrid-opening.ts';
import { openStreamingEngine } from '../../agent/streaming/open-streaming.ts';
import type { StreamMeter } from '../../agent/streaming/stream-meter.ts';
import { streamingThreads } from '../../agent/streaming/streamed-models.ts';
import { StreamingArena } from '../../agent/streaming/streaming-arena.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import { backendOf, deviceOptions, deviceRows, useLibraries } from '../device.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { coldStarts } from './cold-start.ts';
import { decodeSteps, mb } from './decode-steps.ts';
import { kernelAlone } from './kernel-alone.ts';
import { streamedModels } from './models.ts';
import { median, request } from './requests.ts';

const models = 8;
/** Of the model: ring and what stays. */
const arena_share = 0.25;
/** More than results of graphs take. */
const scratch_bytes = 64 * 2 ** 20;
/** On CPUs, half of them copy. Beside another device they all do, up to so many. */
const cpu_threads = 2;
const device_threads_max = 8;
/** Sequences that decode together: arithmetic takes longer than copies, and copies longer. */
const batches = [16, 1] as const;
const sequences_max = Math.max(...batches);
/** Few, so that copies count. */
const prompt_tokens = 16;

export const streamingBench: Bench = {
  name: 'streaming',
  describe:
    'a model four times the arena that its weights go through: tokens, throughput beside copies and arithmetic alone, first token after a switch between eight models and of one that was not there',
  run,
};

async function run({ log, args }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({
    args: [...args],
    options: { model: { type: 'string', multiple: true }, ...deviceOptions },
  });
  useLibraries(values.libraries);
  const backend = backendOf(values.device);
  const paths = values.model ?? (await streamedModels(models, log));
  const [path] = paths as [string];
  const file_bytes = statSync(path).size;
  const arena_bytes = arena_share * file_bytes;
  const isOnCpu = backend.upload === undefined;
  const threads = isOnCpu ? cpu_threads : Math.min(device_threads_max, availableParallelism());
  const { copy_threads, compute_threads } = streamingThreads(threads, isOnCpu);
  const pool = new DevicePool(backend, {
    pool_bytes: arena_bytes + scratch_bytes,
    threads: copy_threads,
  });
  const loader = new TensorLoader(pool.backend, pool.memory, { threads: copy_threads, stays_mapped: true });
  const arena = new StreamingArena(pool, loader, {
    ring_bytes: arena_bytes,
    resident_bytes: 0,
    copy_threads,
  });
  try {
    log(`an arena of ${mb(arena_bytes)} MB for models of ${mb(file_bytes)} MB`);
    const options = engineOptions(path, compute_threads);
    const steps = batches.flatMap((decoding) => decodeSteps(options, arena, decoding, log));
    const switched = paths.length > 1 ? [switches(options, paths, arena, log)] : [];
    const cold = await coldStarts({ path, file_bytes, options, threads }, arena, log);
    const products = (meter: StreamMeter): OpenedProducts | undefined =>
      openHybridProducts({ backend, meter, arena_bytes: arena.ring.bytes, locked_bytes: file_bytes });
    const kernel = kernelAlone(options, arena, products, batches, log);
    return [...deviceRows(values.device), ...steps, ...switched, ...cold, ...kernel];
  } finally {
    arena.close();
    await loader.close();
    await pool.close();
  }
}

function engineOptions(model_path: string, threads: number): EngineOptions {
  return {
    model_path,
    threads,
    context_tokens: 1024,
    max_sequences: sequences_max,
    prefill_chunk_tokens: 256,
    kv_tokens: 16_384,
    kv_type: 'f16',
    batch_invariant: false,
    kernels: 'ggml',
  };
}

/** The first token of a prompt, of a model that streamed before it and of one that did not. */
function switches(
  options: EngineOptions,
  paths: readonly string[],
  arena: StreamingArena,
  log: (line: string) => void,
): BenchResult {
  const engines = paths.map((model_path) => openStreamingEngine({ ...options, model_path }, arena).engine);
  let id = 1000;
  const first_ms = (engine: NativeEngine): number => {
    const began_ms = performance.now();
    engine.add(request(id, prompt_tokens, 1, id++));
    while (engine.busy) engine.step();
    return performance.now() - began_ms;
  };
  for (const engine of engines) first_ms(engine);
  const [same, switched]: [number[], number[]] = [[], []];
  for (let round = 0; round < 2; round++)
    for (const engine of engines) {
      switched.push(first_ms(engine));
      same.push(first_ms(engine));
    }
  for (const engine of engines) engine.close();
  const [same_ms, switched_ms] = [median(same), median(switched)];
  log(
    `first token of ${prompt_tokens}: ${same_ms.toFixed(1)} ms, after a switch ${switched_ms.toFixed(1)} ms`,
  );
  return {
    what: `first token of a prompt of ${prompt_tokens} after a switch among ${paths.length} models`,
    unit: 'ms',
    ours: switched_ms,
    peer: 'a model that streams already',
    theirs: same_ms,
    ratio: same_ms / switched_ms,
    bar: '≤ 1.2 times as long',
    holds: switched_ms <= 1.2 * same_ms,
  };
}
