import { existsSync, mkdirSync, renameSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { Backend } from '../../../agent/backend/backend.ts';
import { DeviceBackend } from '../../../agent/backend/device/device-backend.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { TensorLoader } from '../../../agent/memory/load/tensor-loader.ts';
import { openStreamingEngine } from '../../../agent/streaming/open-streaming.ts';
import { type ArenaOptions, StreamingArena } from '../../../agent/streaming/streaming-arena.ts';
import { ggmlDevices, loadGgml } from '../../../native/ggml.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import type { SynthQuantization } from '../../../native/synth/quantization.ts';
import type { SynthShape } from '../../../native/synth/shape.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import { engineOptions, type Generated, generate, prompt } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';
import { mib } from '../memory/support.ts';

const open: { close(): void | Promise<void> }[] = [];

/** Closes what a test has opened, behind it. */
export async function closeAll(): Promise<void> {
  for (const one of open.splice(0).reverse()) await one.close();
}

/** A model of so many layers that four parts fit nowhere together; it is kept for later runs. @returns its path */
export async function deepModel(
  preset: string,
  quantization: SynthQuantization,
  seed = 1,
  n_layer = 6,
): Promise<string> {
  const depth = n_layer === 6 ? 'deep' : `deep${n_layer}`;
  return await keptModel(`${depth}-${preset}`, { ...synthPresets[preset]!, n_layer }, quantization, seed);
}

/** A mixture of many small experts, of which a token needs few. @returns its path */
export async function wideMixture(quantization: SynthQuantization, seed = 1): Promise<string> {
  const shape = {
    ...synthPresets['tiny-qwen3moe']!,
    n_layer: 6,
    experts: { count: 32, used_per_token: 2, n_ff: 256 },
  };
  return await keptModel('wide-mixture', shape, quantization, seed);
}

/** A mixture whose matrices have no whole groups of rows. @returns its path */
export async function oddMixture(): Promise<string> {
  const shape = {
    ...synthPresets['tiny-qwen3moe']!,
    n_layer: 6,
    experts: { count: 8, used_per_token: 2, n_ff: 80 },
  };
  return await keptModel('odd-mixture', shape, 'BF16', 1);
}

async function keptModel(
  name: string,
  shape: SynthShape,
  quantization: SynthQuantization,
  seed: number,
): Promise<string> {
  const kept = join(tmpdir(), `hpcserve-test-models-${process.getuid?.() ?? 0}`);
  mkdirSync(kept, { recursive: true, mode: 0o700 });
  const path = join(kept, `${name}-${quantization}-${seed}.gguf`);
  if (existsSync(path)) return path;
  const partial = `${path}.${process.pid}`;
  await synthesize({ path: partial, shape, quantization, seed });
  renameSync(partial, path);
  return path;
}

let parted: DeviceBackend | undefined;

/** The CPU as a device that computes graphs in parts, and whose weights all lie as in their file. */
export function partedBackend(): DeviceBackend {
  const ggml = loadGgml();
  parted ??= new DeviceBackend(ggml, ggmlDevices(ggml).find(({ pointer }) => pointer === ggml.cpuDevice)!);
  return parted;
}

export function newArena(more: Partial<ArenaOptions> = {}, backend: Backend = testBackend()): StreamingArena {
  const options = { ring_bytes: 2 * mib, resident_bytes: 0, copy_threads: 1, ...more };
  const pool_bytes = options.ring_bytes + options.resident_bytes + 16 * mib;
  const pool = new DevicePool(backend, { pool_bytes, threads: 1 });
  open.push(pool);
  const loader = new TensorLoader(pool.backend, pool.memory, { threads: 1, stays_mapped: true });
  open.push(loader);
  const arena = new StreamingArena(pool, loader, options);
  open.push(arena);
  return arena;
}

/**
 * From now on, whoever gives up a load of this arena hears that a thread is still in a read: no filesystem hangs when a
 * test wants it to.
 * @returns ends that, for loads that begin behind it
 */
export function hangOnCancel({ loader }: StreamingArena): () => void {
  const begin = loader.begin.bind(loader);
  loader.begin = (...asked) => {
    const load = begin(...asked);
    const cancel = load.cancel.bind(load);
    load.cancel = () => cancel() && false;
    return load;
  };
  return () => {
    loader.begin = begin;
  };
}

export function streamed(
  path: string,
  arena: StreamingArena,
  more: Partial<EngineOptions> = {},
  resident_bytes = 0,
) {
  const opened = openStreamingEngine(options(path, more), arena, { resident_bytes });
  open.push(opened.engine);
  return opened;
}

export function options(path: string, more: Partial<EngineOptions>): EngineOptions {
  return engineOptions(path, { kv_tokens: 1024, max_sequences: 4, prefill_chunk_tokens: 64, ...more });
}

export function resident(
  path: string,
  more: Partial<EngineOptions> = {},
  backend: Backend = testBackend(),
): NativeEngine {
  const engine = new NativeEngine(options(path, more), backend);
  open.push(engine);
  return engine;
}

/** Prompts of several chunks, one of them a part of another, and decoding beside them. */
export function ask(engine: NativeEngine, seed = 3): Generated[] {
  const long = prompt(150, 1000, seed);
  return generate(
    engine,
    [
      { prompt: prompt(20, 1000, seed + 1), max_new_tokens: 24 },
      { prompt: long, max_new_tokens: 12 },
      { prompt: long.slice(0, 70), max_new_tokens: 12 },
    ],
    3,
  );
}

export function expectSame(own: readonly Generated[], theirs: readonly Generated[]): void {
  expect(own.map(({ tokens }) => tokens)).toEqual(theirs.map(({ tokens }) => tokens));
  for (const [index, { rows }] of own.entries())
    for (const [at, row] of rows.entries())
      expect(Buffer.from(row.buffer).equals(Buffer.from(theirs[index]!.rows[at]!.buffer))).toBe(true);
}
