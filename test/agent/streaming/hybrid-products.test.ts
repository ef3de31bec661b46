/**
 * Products that read their weights in host memory, in the executor: by the library whose device is emulated, on a
 * device whose memory it can read.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { compileEmulatedHybridGemm } from '../../../.ci/compile-cuda.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { TensorLoader } from '../../../agent/memory/load/tensor-loader.ts';
import { measuredRates, openHybridProducts } from '../../../agent/streaming/hybrid-opening.ts';
import { HybridProducts } from '../../../agent/streaming/hybrid-products.ts';
import { openStreamingEngine } from '../../../agent/streaming/open-streaming.ts';
import { StreamMeter } from '../../../agent/streaming/stream-meter.ts';
import { StreamingArena } from '../../../agent/streaming/streaming-arena.ts';
import type { StreamingExecutor } from '../../../agent/streaming/streaming-executor.ts';
import {
  HybridDevice,
  type HybridGemm,
  HybridGemmError,
  loadHybridGemm,
} from '../../../native/cuda/hybrid-gemm.ts';
import { hybridGemmFile } from '../../../native/cuda/library-file.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import { type Generated, generate, prompt, rootMeanSquare } from '../engine/support.ts';
import { mib } from '../memory/support.ts';
import { deepModel, expectSame, options, partedBackend } from './support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-hybrid-'));
let library: HybridGemm;
beforeAll(() => {
  compileEmulatedHybridGemm(folder, 'g++');
  library = loadHybridGemm(join(folder, hybridGemmFile))!;
}, 300_000);
const open: { close(): void | Promise<void> }[] = [];
afterEach(async () => {
  vi.restoreAllMocks();
  for (const one of open.splice(0).reverse()) await one.close();
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Operators of ours are for CPUs that compute whole graphs. */
function onDevice(path: string, more: Partial<EngineOptions>): EngineOptions {
  return options(path, { kernels: 'ggml', ...more });
}

const matrices = 9;
/** Emulated products take a tenth of a second each: two layers, nine matrices. */
async function shallow(quantization: 'Q8_0' | 'BF16'): Promise<string> {
  return await deepModel('tiny-llama', quantization, 1, 2);
}

/** Whatever is asked, reading in place is as fast as a copy before it, and needs no room. */
const rates = { flops_per_s: 1e15, memory_bytes_per_s: 1e15, processors: 100 };

function streamed(
  path: string,
  {
    product_rates = rates,
    counts = true,
    locked_bytes = Number.POSITIVE_INFINITY,
    ...more
  }: Partial<EngineOptions> & {
    product_rates?: typeof rates;
    counts?: boolean;
    locked_bytes?: number;
  } = {},
): { engine: NativeEngine; executor: StreamingExecutor; products: HybridProducts | undefined } {
  const pool = new DevicePool(partedBackend(), { pool_bytes: 20 * mib, threads: 1 });
  open.push(pool);
  const loader = new TensorLoader(pool.backend, pool.memory, { threads: 1 });
  open.push(loader);
  const arena = new StreamingArena(pool, loader, { ring_bytes: 4 * mib, resident_bytes: 0, copy_threads: 1 });
  open.push(arena);
  let products: HybridProducts | undefined;
  const opened = openStreamingEngine(onDevice(path, more), arena, {
    products: (meter) => {
      products = new HybridProducts({
        ggml: pool.backend.ggml,
        library,
        device: library.open(),
        rates: product_rates,
        arena_bytes: arena.ring.bytes,
        locked_bytes,
        link_bytes_per_s: () => meter.statistics.link?.bytes_per_s,
        counted_bytes_per_s: () => (counts ? meter.statistics.link?.bytes_per_s : undefined),
        on_read: (bytes, seconds) => meter.read(bytes, seconds),
      });
      return { products };
    },
  });
  open.push(opened.engine);
  // One with each step, else.
  for (let matrix = 0; matrix < matrices; matrix++) products?.packNext();
  return { ...opened, products };
}

function resident(path: string, more: Partial<EngineOptions> = {}): NativeEngine {
  const engine = new NativeEngine(onDevice(path, more), partedBackend());
  open.push(engine);
  return engine;
}

function ask(engine: NativeEngine, max_new_tokens = 4): Generated[] {
  return generate(engine, [{ prompt: prompt(12, 1000, 4), max_new_tokens }]);
}

describe.each(['Q8_0', 'BF16'] as const)('weights in %s', (quantization) => {
  it('are multiplied where they are, once every shape was compared with the device’s own product', async () => {
    const path = await shallow(quantization);
    const { engine, executor, products } = streamed(path);
    const first = ask(engine);
    const before = { products: products!.products, bytes: executor.statistics.streamed_bytes };
    const second = ask(engine, 3);
    expect(products!.because).toBeUndefined();
    expect(products!.products - before.products).toBe(3 * matrices);
    // What crosses is what it was: it is read, and not copied.
    const step_bytes = executor.streamed.step_bytes;
    const crossed = (executor.statistics.streamed_bytes - before.bytes) / step_bytes;
    expect(crossed).toBeGreaterThan(2);
    expect(crossed).toBeLessThan(6);
    const engineOnDevice = resident(path);
    for (const [own, max_new_tokens] of [
      [first, 4],
      [second, 3],
    ] as const) {
      const expected = ask(engineOnDevice, max_new_tokens);
      // As long as both said the same, they were asked the same.
      const same = own[0]!.tokens.findIndex((token, at) => token !== expected[0]!.tokens[at]);
      const rows = same < 0 ? own[0]!.rows.length : same + 1;
      for (let row = 0; row < rows; row++) {
        const theirs = expected[0]!.rows[row]!;
        const size = rootMeanSquare(theirs, new Float32Array(theirs.length));
        expect(rootMeanSquare(own[0]!.rows[row]!, theirs)).toBeLessThan(0.1 * size);
      }
    }
  });
});

it('a product that differs turns all of it off, says so, and no token is other than without it', async () => {
  const path = await shallow('Q8_0');
  const multiply = HybridDevice.prototype.multiply;
  vi.spyOn(HybridDevice.prototype, 'multiply').mockImplementation(function (this: HybridDevice, own) {
    // Of each row, it takes four numbers of the next one for its last.
    multiply.call(this, { ...own, x: (own.x as bigint) + 16n });
  });
  const { engine, executor, products } = streamed(path);
  expectSame(ask(engine), ask(resident(path)));
  expect(products!.products).toBe(0);
  expect(executor.streamed.because?.join()).toMatch(
    /HybridGEMM is off.*its product of Q8_0 \d+ × \d+ differs from the backend's by \d+\.\d %/,
  );
});

it('without page-locked memory weights are copied, and that is said', async () => {
  const path = await shallow('Q8_0');
  vi.spyOn(library, 'allocateHost').mockImplementation(() => {
    throw new HybridGemmError('hg_host_allocate', 8, 'no page-locked memory');
  });
  const { engine, executor, products } = streamed(path);
  expectSame(ask(engine), ask(resident(path)));
  expect(products!.products).toBe(0);
  expect(executor.streamed.because?.join()).toMatch(/weights are copied.*no page-locked memory/);
});

it('copies take what the plan counted of the host, other weights are copied to the device, and that is said', async () => {
  const path = await shallow('Q8_0');
  const locked = vi.spyOn(library, 'allocateHost');
  const { engine, executor, products } = streamed(path, { locked_bytes: 0.5 * mib });
  ask(engine);
  const before = products!.products;
  ask(engine, 3);
  const read = (products!.products - before) / 3;
  expect(read).toBeGreaterThan(0);
  expect(read).toBeLessThan(matrices);
  const locked_bytes = locked.mock.calls.reduce((sum, [bytes]) => sum + bytes, 0);
  expect(locked_bytes).toBeGreaterThan(0.2 * mib);
  expect(locked_bytes).toBeLessThanOrEqual(0.5 * mib);
  expect(executor.streamed.because).toEqual([
    'some weights are copied, and not read in place: the plan has 0.5 MiB of host memory for page-locked copies',
  ]);
});

it('without memory for copies nothing is opened, and with nothing to copy nothing is said', () => {
  const opened = vi.spyOn(library, 'open');
  const { ggml } = partedBackend();
  const asked = { backend: { ggml, hybridGemm: () => library }, meter: new StreamMeter(1), arena_bytes: mib };
  expect(openHybridProducts({ ...asked, locked_bytes: 0 })).toEqual({
    because: 'HybridGEMM is off, and weights are copied: its node has no memory for copies of them',
  });
  expect(openHybridProducts(asked)).toBeUndefined();
  expect(opened).not.toHaveBeenCalled();
});

it('a product that fails ends the step by name', async () => {
  const path = await shallow('Q8_0');
  const { engine, products } = streamed(path);
  ask(engine);
  expect(products!.products).toBeGreaterThan(0);
  vi.spyOn(HybridDevice.prototype, 'wait').mockImplementation(() => {
    throw new HybridGemmError('hg_wait', 9, 'an illegal address');
  });
  expect(() => ask(engine)).toThrow(/E_DEVICE_FAILED|illegal address|weights in host memory failed/);
});

it('how to multiply is chosen by what may be counted on of the link, and not by what it gives', async () => {
  const path = await shallow('Q8_0');
  const { engine, executor, products } = streamed(path, { counts: false });
  expectSame(ask(engine), ask(resident(path)));
  expect(executor.statistics.link?.bytes_per_s).toBeGreaterThan(0);
  expect(products!.products).toBe(0);
});

it('nothing is multiplied so where batches may not change a row', async () => {
  const path = await shallow('Q8_0');
  const { engine, products } = streamed(path, { batch_invariant: true });
  expectSame(ask(engine), ask(resident(path, { batch_invariant: true })));
  expect(products).toBeUndefined();
});

it('rates are those of products with weights on the device', () => {
  const device = library.open();
  const { memory_bytes_per_s, flops_per_s, processors } = measuredRates(library, device, 128, 64);
  expect(processors).toBe(device.figures.processors);
  expect(memory_bytes_per_s).toBeGreaterThan(1e4);
  expect(flops_per_s).toBeGreaterThan(1e5);
  device.close();
});

it.each([
  ['said', new HybridGemmError('hg_allocate', 7, 'no memory of the device')],
  ['thrown on', new TypeError('a defect of ours')],
])(
  'where rates cannot be measured, all that was opened for it is given back, and why is %s',
  (_, failure) => {
    const closed = vi.spyOn(HybridDevice.prototype, 'close');
    const locked = vi.spyOn(library, 'allocateHost');
    const unlocked = vi.spyOn(library, 'freeHost');
    vi.spyOn(HybridDevice.prototype, 'allocate').mockImplementation(() => {
      throw failure;
    });
    const { ggml } = partedBackend();
    const asked = {
      backend: { ggml, hybridGemm: () => library },
      meter: new StreamMeter(1),
      arena_bytes: mib,
      locked_bytes: mib,
    };
    const open = () => openHybridProducts(asked);
    if (failure instanceof HybridGemmError)
      expect(open()).toEqual({
        because: 'HybridGEMM is off, and weights are copied: hg_allocate: no memory of the device (7)',
      });
    else expect(open).toThrow(failure);
    expect(closed).toHaveBeenCalledTimes(1);
    expect(locked).toHaveBeenCalledTimes(1);
    expect(unlocked.mock.calls).toEqual(locked.mock.results.map(({ value }) => [value]));
  },
);
