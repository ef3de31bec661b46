/**
 * What lies behind the last row of a quantized matrix, where a backend's kernels read on to a multiple of 512 numbers,
 * as CUDA's do: zeros, whatever the ring had there before. No CUDA is at hand, so here ggml counts and writes as its
 * CUDA backend does, over a device of which all weights lie as in their file.
 */
import koffi from 'koffi';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { Backend } from '../../../agent/backend/backend.ts';
import type { TensorLoad } from '../../../agent/memory/load/pieces.ts';
import { ExpertStream } from '../../../agent/streaming/expert-stream.ts';
import { ExpertWindow } from '../../../agent/streaming/expert-window.ts';
import { PartStream } from '../../../agent/streaming/part-stream.ts';
import type { ArenaOptions, StreamingArena } from '../../../agent/streaming/streaming-arena.ts';
import { GgmlType, tensorLayout } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { generate, prompt } from '../engine/support.ts';
import { test_device, testBackend } from '../engine/test-backend.ts';
import { mib } from '../memory/support.ts';
import { closeAll, deepModel, expectSame, newArena, partedBackend, resident, streamed } from './support.ts';

const backend: Backend = test_device === undefined ? partedBackend() : testBackend();
const onDevice = { kernels: 'ggml' } as const;
/** MATRIX_ROW_PADDING of ggml-cuda. */
const row_padding = 512;
const quantized: readonly number[] = [GgmlType.Q4_0, GgmlType.Q8_0];

function behind_bytes({ type, row_elements }: Pick<TensorLoad, 'type' | 'row_elements'>): number {
  const over = row_elements % row_padding;
  if (!quantized.includes(type) || over === 0) return 0;
  return Number(backend.ggml.ggml_row_size(type, row_padding - over));
}

function tensorBehind_bytes(tensor: Pointer): number {
  const type = koffi.decode(tensor, 'int32_t') as number;
  return behind_bytes({ type, row_elements: Number(koffi.decode(tensor, tensorLayout.ne, 'int64_t')) });
}

const ofPools = new Set<Pointer>();

function arenaOnDevice(more: Partial<ArenaOptions>): StreamingArena {
  const arena = newArena(more, backend);
  for (const { buffer } of arena.memory.plain.spans) ofPools.add(buffer);
  return arena;
}

beforeEach(() => {
  const { ggml } = backend;
  const { ggml_backend_buft_get_alloc_size: sizeOf, ggml_backend_tensor_alloc: place } = ggml;
  vi.spyOn(ggml, 'ggml_backend_buft_get_alloc_size').mockImplementation((type, tensor) => {
    const behind = type === backend.plain ? tensorBehind_bytes(tensor as Pointer) : 0;
    return sizeOf(type, tensor) + behind;
  });
  vi.spyOn(ggml, 'ggml_backend_tensor_alloc').mockImplementation((buffer, tensor, address) => {
    const status = place(buffer, tensor, address);
    // Memory of the host beside it has its own rules there, too.
    if (!ofPools.has(buffer as Pointer)) return status;
    const behind = (address as Pointer) + BigInt(ggml.ggml_nbytes(tensor));
    backend.write(buffer as Pointer, behind, new Uint8Array(tensorBehind_bytes(tensor as Pointer)));
    return status;
  });
});
afterEach(async () => {
  vi.restoreAllMocks();
  ofPools.clear();
  await closeAll();
});

/** Of scales, NaN: what is multiplied by them is no number, by zero neither. */
function spoil({ memory }: StreamingArena, offset: number, bytes: number): void {
  memory.write(offset, new Uint8Array(bytes).fill(0xff));
}

function bytesBehind({ memory }: StreamingArena, load: TensorLoad): Uint8Array {
  const behind = new Uint8Array(behind_bytes(load));
  const bytes = load.parts.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
  if (behind.length > 0) memory.read(load.pool_offset + bytes, behind);
  return behind;
}

test.each([
  ['Q4_0', 0.6],
  ['Q8_0', 1.2],
] as const)('zeros lie behind every matrix in %s that is computed with', async (type, staying_mib) => {
  const path = await deepModel('tiny-llama', type);
  const arena = arenaOnDevice({ ring_bytes: 2.5 * mib, resident_bytes: 8 * mib });
  const { engine } = streamed(path, arena, onDevice, staying_mib * mib);
  spoil(arena, arena.ring.offset, arena.bytes);
  const looked = { staying: 0, streamed: 0 };
  const wrong = new Set<string>();
  const { awaitPart } = PartStream.prototype;
  vi.spyOn(PartStream.prototype, 'awaitPart').mockImplementation(function (this: PartStream, part) {
    awaitPart.call(this, part);
    const { weights, ring } = this.parts[part]!;
    for (const load of weights.loads()) {
      const behind = bytesBehind(arena, load);
      if (behind.length > 0) looked[ring ? 'streamed' : 'staying']++;
      if (behind.some((byte) => byte !== 0)) wrong.add(load.name);
    }
  });
  const question = { prompt: prompt(1, 1000, 4), max_new_tokens: 4 };
  const answer = generate(engine, [{ ...question }]);
  expectSame(answer, generate(resident(path, onDevice, backend), [{ ...question }]));
  expect([...wrong]).toEqual([]);
  // In each of four steps three matrices of each layer: the rows of the others have 512 numbers.
  expect(looked.streamed).toBeGreaterThanOrEqual(60);
  expect(looked.staying).toBeGreaterThan(10);
});

test('a model that is opened writes nothing where another one’s weights lie', async () => {
  const paths = await Promise.all([deepModel('tiny-llama', 'Q8_0'), deepModel('tiny-qwen3moe', 'Q8_0')]);
  const arena = arenaOnDevice({ ring_bytes: 6.5 * mib });
  spoil(arena, arena.ring.offset, arena.ring.bytes);
  for (const path of paths) streamed(path, arena, onDevice);
  const ring = new Uint8Array(arena.ring.bytes);
  arena.memory.read(arena.ring.offset, ring);
  expect(ring.findIndex((byte) => byte !== 0xff)).toBe(-1);
});

describe('a mixture', () => {
  test('has numbers behind each expert that is computed with, in each of its turns', async () => {
    const path = await deepModel('tiny-qwen3moe', 'Q8_0');
    const arena = arenaOnDevice({ ring_bytes: 6.5 * mib, resident_bytes: 8 * mib });
    // What stays is this model's from now on, and the ring whenever it is its turn.
    spoil(arena, arena.ring.offset, arena.bytes);
    const { engine, executor } = streamed(path, arena, onDevice, 4 * mib);
    const asked = new Map<string, TensorLoad>();
    const { loads } = ExpertWindow.prototype;
    vi.spyOn(ExpertWindow.prototype, 'loads').mockImplementation(function (this: ExpertWindow, ...which) {
      const own = loads.apply(this, which);
      for (const load of own) asked.set(`${load.pool_offset}`, load);
      return own;
    });
    let looked = 0;
    const wrong = new Set<string>();
    const { bring } = ExpertStream.prototype;
    vi.spyOn(ExpertStream.prototype, 'bring').mockImplementation(function (this: ExpertStream, ...which) {
      const slots = bring.apply(this, which);
      for (const load of asked.values()) {
        const behind = bytesBehind(arena, load);
        looked++;
        if (behind.length > 0 && behind.every((byte) => byte === 0xff)) wrong.add(load.name);
      }
      return slots;
    });
    for (const seed of [1, 2]) {
      arena.rest();
      asked.clear();
      spoil(arena, arena.ring.offset, arena.ring.bytes);
      generate(engine, [{ prompt: prompt(1, 1000, seed), max_new_tokens: 3 }]);
    }
    expect(executor.streamed.resident_bytes).toBeGreaterThan(mib);
    expect([...wrong]).toEqual([]);
    expect(looked).toBeGreaterThan(50);
  });
});
