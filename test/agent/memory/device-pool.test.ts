/**
 * Weights and KV of several models in one pool: the same bits as with memory of their own, whatever is taken, given up
 * and refused around them.
 */

import {
  closeSync,
  fstatSync,
  ftruncateSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  readSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs';
import { tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import type { KvStorage } from '../../../agent/engine/kv-storage.ts';
import type { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { ParkingDisk } from '../../../agent/engine/parking-disk.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import {
  type Asked,
  engineOptions,
  GreedyRecorder,
  generate,
  model,
  prompt,
  withEngine,
} from '../engine/support.ts';
import { slow_device, test_device, testBackend } from '../engine/test-backend.ts';
import { codeOf, mib, openIn } from './support.ts';

const pools: DevicePool[] = [];
const engines: NativeEngine[] = [];
const fillers: KvStorage[] = [];
afterEach(async () => {
  for (const engine of engines.splice(0)) {
    engine.verify();
    engine.close();
  }
  for (const filler of fillers.splice(0)) filler.free();
  for (const pool of pools.splice(0)) {
    pool.verify();
    expect(pool.report()).toMatchObject({ kv_bytes: 0, scratch_bytes: 0, weights_bytes: 0, models: [] });
    await pool.close();
  }
});

function newPool(pool_bytes: number, disk?: ParkingDisk): DevicePool {
  const pool = new DevicePool(testBackend(), { pool_bytes, threads: 1, disk });
  pools.push(pool);
  return pool;
}

function open(pool: DevicePool, path: string, more: Partial<EngineOptions> = {}, name = path): NativeEngine {
  const { engine } = openIn(pool, path, { model: name }, more);
  engines.push(engine);
  return engine;
}

function close(engine: NativeEngine): void {
  engines.splice(engines.indexOf(engine), 1);
  engine.close();
}

const invariant: Partial<EngineOptions> = { batch_invariant: true, kv_tokens: 2048 };
const ask = (lengths: readonly number[], seed = 7, max_new_tokens = 12): Asked[] =>
  lengths.map((length, index) => ({ prompt: prompt(length, 1000, seed + index), max_new_tokens }));
/** tiny-llama has two layers, each with keys and values. */
const matrices = 4;
const ofModel = (pool: DevicePool) => pool.report().models[0]!;

/** Tokens and bytes of a slab as the device has them, of a cache with these rows. */
function slabOf(pool: DevicePool, row_bytes: number, matrices: number): { tokens: number; bytes: number } {
  const probe = pool.kv('probe').open({ matrices, row_bytes, tokens: 1 });
  const slab = { tokens: probe.slab_rows, bytes: probe.slab_bytes };
  probe.free();
  return slab;
}

/** Takes what is free of the pool, as a running model's KV would, but for so many bytes. */
function fillPool(pool: DevicePool, left_bytes: number): void {
  const row_bytes = 64;
  const slab = slabOf(pool, row_bytes, 1);
  const slabs = Math.floor((pool.report().free_bytes - left_bytes) / slab.bytes) - 1;
  const filler = pool.kv('filler').open({ matrices: 1, row_bytes, tokens: slab.tokens * slabs });
  fillers.push(filler);
  expect(
    filler.commit(
      Array.from({ length: slabs }, (_, slab) => slab),
      'free',
    ),
  ).toBe(true);
}

describe('a KV cache in the pool', () => {
  test.each([
    ['tiny-llama', 'Q4_0', 'f16'],
    ['tiny-qwen3', 'F16', 'q8_0'],
    ['tiny-qwen3moe', 'Q4_K', 'f16'],
  ] as const)('%s %s with %s keys: the bits of a cache that is reserved', async (preset, type, kv_type) => {
    const path = await model(preset, type);
    const options = { ...invariant, kv_type };
    const lengths = [1, 17, 90, 300, 5];
    const expected = withEngine(engineOptions(path, options), (engine) => generate(engine, ask(lengths), 2));
    const pool = newPool(64 * mib);
    const engine = open(pool, path, options);
    for (let round = 0; round < 3; round++) {
      const found = generate(engine, ask(lengths), 2);
      pool.verify();
      found.forEach((result, index) => {
        expect(result.tokens).toEqual(expected[index]!.tokens);
        expect(result.rows).toEqual(expected[index]!.rows);
      });
    }
  });

  test('takes what sequences need, keeps it within the budget, and gives it back', async () => {
    const pool = newPool(64 * mib);
    const engine = open(pool, await model('tiny-llama', 'Q4_0'), invariant);
    const token_bytes = engine.stats().kv_bytes / engine.stats().kv_tokens_total;
    const slab = slabOf(pool, token_bytes / matrices, matrices);
    // On a device a region may begin between two rows, so that a slab is that much larger.
    if (test_device === undefined) expect(slab).toEqual({ tokens: 64, bytes: 64 * token_bytes });
    else expect(slab.tokens * token_bytes).toBeLessThanOrEqual(slab.bytes);
    const slabs = 2048 / slab.tokens;
    expect(ofModel(pool)).toMatchObject({ kv_bytes_used: 0, kv_bytes_cached: 0 });
    expect(engine.kv_bytes_budget).toBe(slabs * slab.bytes);
    engine.add({
      id: 1,
      prompt_tokens: prompt(slab.tokens + 36, 1000, 1),
      sampler: new GreedyRecorder(),
      max_new_tokens: slab.tokens - 34,
      stop_tokens: new Set(),
    });
    while (engine.kvBytesOf(1) === 0) engine.step();
    expect(engine.kv_bytes_used).toBe(2 * slab.bytes);
    // In whole blocks of 16 tokens.
    expect(engine.kvBytesOf(1)).toBe(((slab.tokens + 48) * slab.bytes) / slab.tokens);
    while (engine.busy) engine.step();
    expect(engine.kv_bytes_used).toBe(0);
    // One more than in two slabs, and the one that nobody computed on.
    expect(engine.kv_bytes_cached).toBe(3 * slab.bytes);
    expect(pool.report().kv_bytes).toBe(engine.kv_bytes_cached + scratchOf(slab));
    expect(engine.setKvBudget(2 * slab.bytes)).toBe(2 * slab.bytes);
    expect(engine.kv_bytes_cached).toBe(2 * slab.bytes);
    // The model's largest budget still decides what it accepts.
    expect(engine.stats().kv_tokens_total).toBe(2048);
    expect(engine.setKvBudget(slabs * slab.bytes)).toBe(slabs * slab.bytes);
  });

  test('keeps what running sequences have when its budget is lowered', async () => {
    const path = await model('tiny-llama', 'Q4_0');
    const expected = withEngine(engineOptions(path, invariant), (engine) => generate(engine, ask([200, 80])));
    const engine = open(newPool(64 * mib), path, invariant);
    const asked = ask([200, 80]);
    let lowered = 0;
    const steps = engine.step.bind(engine);
    engine.step = (plan) => {
      const report = steps(plan);
      if (engine.kv_bytes_used > 0 && lowered === 0) {
        lowered = engine.setKvBudget(1);
        expect(lowered).toBe(engine.kv_bytes_used);
      }
      return report;
    };
    expect(generate(engine, asked).map(({ tokens }) => tokens)).toEqual(expected.map(({ tokens }) => tokens));
    expect(lowered).toBeGreaterThan(0);
  });

  test('finds the beginning of a prompt again for as long as there is memory', async () => {
    const pool = newPool(64 * mib);
    const engine = open(pool, await model('tiny-llama', 'Q4_0'), invariant);
    const token_bytes = engine.stats().kv_bytes / engine.stats().kv_tokens_total;
    const { tokens } = slabOf(pool, token_bytes / matrices, matrices);
    const first = ask([3 * tokens + 8])[0]!;
    generate(engine, [first]);
    const cachedOf = (): number | undefined => {
      engine.add({
        id: 1,
        prompt_tokens: first.prompt,
        sampler: new GreedyRecorder(),
        max_new_tokens: 1,
        stop_tokens: new Set(),
      });
      let cached: number | undefined;
      while (engine.busy) for (const { cached_tokens } of engine.step().outputs) cached ??= cached_tokens;
      return cached;
    };
    expect(cachedOf()).toBe(first.prompt.length - 1);
    engine.setKvBudget(1);
    expect(cachedOf()).toBe(0);
  });

  test('is put behind sequences where tensors of models were that nobody uses any more', async () => {
    const pool = newPool(8 * mib);
    const path = await model('tiny-llama', 'F16');
    const small = await model('tiny-qwen2', 'Q4_0');
    const expected = withEngine(engineOptions(path, invariant), (engine) =>
      generate(engine, ask([700], 3, 200)),
    );
    close(open(pool, await model('tiny-llama', 'F32')));
    close(open(pool, small));
    const engine = open(pool, path, invariant);
    const before = pool.report();
    expect(before.reusable_bytes).toBeGreaterThan(0);
    expect(before.free_bytes).toBeLessThan(900 * (engine.stats().kv_bytes / 2048));
    expect(generate(engine, ask([700], 3, 200))[0]!.tokens).toEqual(expected[0]!.tokens);
    pool.verify();
    expect(pool.report().reusable_bytes).toBeLessThan(before.reusable_bytes);
  });

  test('makes way for a model that is loaded, except for what sequences use', async () => {
    const path = await model('tiny-llama', 'Q4_0');
    const pool = newPool(24 * mib);
    const engine = open(pool, path, { ...invariant, kv_tokens: 8192 });
    generate(engine, ask([1500, 1500, 1500], 50, 2));
    const cached = engine.kv_bytes_cached;
    fillPool(pool, 0.2 * mib);
    expect(cached).toBeGreaterThan(0);
    const large = open(pool, await model('tiny-qwen3', 'Q4_0'), { kv_tokens: 64 });
    expect(engine.kv_bytes_cached).toBeLessThan(cached);
    pool.verify();
    generate(large, ask([30]));
  });
});

test('what others keep for later is given up until it makes one piece, however scattered it goes', () => {
  const pool = newPool(8 * mib);
  const row_bytes = 64;
  const slab = slabOf(pool, row_bytes, 1);
  const kept = pool.kv('kept').open({ matrices: 1, row_bytes, tokens: 8 * slab.tokens });
  // Every second one goes first, as where requests ended in another order than they began.
  const left = [0, 2, 4, 6, 1, 3, 5, 7];
  expect(kept.commit([...left].sort(), 'free')).toBe(true);
  kept.attach({
    used_bytes: 0,
    cached_bytes: 0,
    budget_bytes: 0,
    reclaim: (bytes) => kept.release(left.splice(0, Math.ceil(bytes / slab.bytes))),
  });
  fillers.push(kept);
  fillPool(pool, 0);
  const larger = pool.kv('larger').open({ matrices: 1, row_bytes: 2 * row_bytes, tokens: 1 });
  fillers.push(larger);
  expect(larger.commit([0], 'evict')).toBe(true);
  pool.verify();
});

test('what a cache has for as long as it is there is nobody’s to wait for', () => {
  const pool = newPool(8 * mib);
  const shape = { matrices: 1, row_bytes: 64, tokens: 1 };
  const opened = () => {
    const cache = pool.kv('cache').open(shape);
    fillers.push(cache);
    return cache;
  };
  const one = opened();
  const most = (): number => {
    let slabs = 0;
    while (one.couldCommit(slabs + 1)) slabs++;
    return slabs;
  };
  const before = most();
  // Each has room for rows that only pad a batch: a slab's worth, in this shape.
  for (let count = 0; count < 5; count++) opened();
  expect(most()).toBe(before - 5);
});

test('an engine tells what it has of the pool beside weights and KV, which grows with what it computes', async () => {
  const pool = newPool(48 * mib);
  const path = await model('tiny-llama', 'Q4_0');
  const engine = open(pool, path, { kv_tokens: 4096, context_tokens: 4096, prefill_chunk_tokens: 256 });
  const told = (): number => engine.stats().working_bytes;
  const beside = (): number => {
    const { kv_bytes, scratch_bytes } = pool.report();
    return kv_bytes + scratch_bytes - engine.kv_bytes_used - engine.kv_bytes_cached;
  };
  expect(told()).toBe(beside());
  const seen = [told()];
  for (const length of [10, 1500]) {
    generate(engine, [{ prompt: prompt(length, engine.info.n_vocab, length), max_new_tokens: 4 }]);
    expect(told()).toBe(beside());
    seen.push(told());
  }
  expect(seen[0]).toBeGreaterThan(0);
  expect(seen[1]).toBeGreaterThan(seen[0]!);
  expect(seen[2]).toBeGreaterThanOrEqual(seen[1]!);
});

/** Empty where the file was closed meanwhile. */
function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}

/** Behind padding rows: one matrix of a slab where rows have addresses of their own, a slab where they have not. */
function scratchOf(slab: { tokens: number; bytes: number }): number {
  return test_device === undefined ? slab.bytes / matrices : slab.bytes;
}

describe('a sequence that is parked', () => {
  const run = async (disturb: (engine: NativeEngine) => void, disk?: ParkingDisk): Promise<number[]> => {
    const path = await model('tiny-llama', 'Q4_0');
    const engine = open(newPool(64 * mib, disk), path, invariant);
    const tokens: number[] = [];
    engine.add({
      id: 77,
      prompt_tokens: prompt(90, 1000, 4),
      sampler: new GreedyRecorder(),
      max_new_tokens: 40,
      stop_tokens: new Set(),
    });
    const until = (count: number): void => {
      while (tokens.length < count)
        for (const { token } of engine.step().outputs) if (token) tokens.push(token.token);
    };
    until(15);
    disturb(engine);
    until(40);
    return tokens;
  };

  test('goes on as if nothing had been, in other blocks', async () => {
    const undisturbed = await run(() => undefined);
    const parked = await run((engine) => {
      const blocks = [...engine.kvOf(77)!.blocks];
      expect(engine.parkSequence(77)).toBeGreaterThan(0);
      expect(engine.kv_bytes_used).toBe(0);
      expect(engine.step().outputs).toEqual([]);
      // Others write where it was.
      generate(engine, ask([300, 300], 90));
      engine.setKvBudget(1);
      engine.setKvBudget(1e9);
      expect(engine.restoreSequence(77)).toBe(true);
      expect(engine.kvOf(77)!.blocks).toHaveLength(blocks.length);
      expect(engine.restoreSequence(77)).toBe(false);
    });
    expect(parked).toEqual(undisturbed);
  });

  test('goes on the same where its KV is computed again, parked or not', async () => {
    const undisturbed = await run(() => undefined);
    for (const parks of [true, false]) {
      const again = await run((engine) => {
        if (parks) engine.parkSequence(77);
        engine.recomputeSequence(77);
        expect(engine.progress()).toMatchObject([{ id: 77, waiting: true, generated_tokens: 15 }]);
        expect([engine.kv_bytes_used, engine.restoreSequence(77)]).toEqual([0, false]);
      });
      expect(again).toEqual(undisturbed);
    }
  });

  describe('on disk', () => {
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-parking-test-'));
    afterAll(() => rmSync(folder, { recursive: true, force: true }));

    /** Open files of this process in the folder, which have no name there. */
    const files = (): string[] =>
      readdirSync('/proc/self/fd')
        .map((descriptor) => `/proc/self/fd/${descriptor}`)
        .filter((path) => linkOf(path).startsWith(folder));

    test('goes on as if nothing had been, and leaves nothing there', async () => {
      const undisturbed = await run(() => undefined);
      const disk = new ParkingDisk(folder, 1e9);
      const parked = await run((engine) => {
        expect(engine.parks_on_disk).toBe(true);
        const bytes = engine.parkSequence(77, 'disk')!;
        expect([engine.kv_bytes_used, readdirSync(folder)]).toEqual([0, []]);
        const [file] = files();
        expect([files().length, statSync(file!).size, statSync(file!).mode & 0o777]).toEqual([
          1,
          bytes,
          0o600,
        ]);
        // Others write where it was.
        generate(engine, ask([300, 300], 90));
        engine.setKvBudget(1);
        engine.setKvBudget(1e9);
        expect(engine.restoreSequence(77)).toBe(true);
        expect(engine.progress()).toMatchObject([{ id: 77, waiting: false, pending_tokens: 1 }]);
        expect(files()).toEqual([]);
      }, disk);
      expect(parked).toEqual(undisturbed);
      expect(disk.trouble).toBeUndefined();
    });

    test.each(['changed', 'cut off'] as const)(
      'is computed again where its bytes were %s there, and goes on the same',
      async (how) => {
        const undisturbed = await run(() => undefined);
        const again = await run((engine) => {
          engine.parkSequence(77, 'disk');
          const descriptor = openSync(files()[0]!, 'r+');
          const { size } = fstatSync(descriptor);
          if (how === 'cut off') ftruncateSync(descriptor, size / 2);
          else {
            const byte = Buffer.alloc(1);
            readSync(descriptor, byte, 0, 1, size / 2);
            writeSync(descriptor, Buffer.from([byte[0]! ^ 0x40]), 0, 1, size / 2);
          }
          closeSync(descriptor);
          expect(engine.restoreSequence(77)).toBe(true);
          expect(engine.progress()).toMatchObject([{ id: 77, waiting: true, generated_tokens: 15 }]);
          expect([engine.kv_bytes_used, files()]).toEqual([0, []]);
        }, new ParkingDisk(folder, 1e9));
        expect(again).toEqual(undisturbed);
      },
    );

    test('runs on where the disk does not take it, and nothing is tried there for a minute', async () => {
      let now_ms = 0;
      const gone = new ParkingDisk(join(folder, 'gone'), 1e9, () => now_ms);
      const undisturbed = await run(() => undefined);
      const tokens = await run((engine) => {
        const used_bytes = engine.kv_bytes_used;
        expect(engine.parkSequence(77, 'disk')).toBeUndefined();
        expect([engine.kv_bytes_used, engine.parks_on_disk]).toEqual([used_bytes, false]);
        expect(gone.trouble).toMatch(/ENOENT/);
        now_ms = 61_000;
        expect(engine.parks_on_disk).toBe(true);
      }, gone);
      expect(tokens).toEqual(undisturbed);
    });

    test('leaves no file behind where it is cancelled, computed again, or its engine ends', async () => {
      const engine = open(
        newPool(64 * mib, new ParkingDisk(folder, 1e9)),
        await model('tiny-llama', 'Q4_0'),
        {
          ...invariant,
        },
      );
      for (const id of [1, 2, 3])
        engine.add({
          id,
          prompt_tokens: prompt(20, 1000, id),
          sampler: new GreedyRecorder(),
          max_new_tokens: 50,
          stop_tokens: new Set(),
        });
      engine.step();
      for (const id of [1, 2, 3]) engine.parkSequence(id, 'disk');
      expect(files()).toHaveLength(3);
      engine.cancel(1);
      engine.recomputeSequence(2);
      expect(files()).toHaveLength(1);
      close(engine);
      expect(files()).toEqual([]);
    });
  });

  test('is gone when it is cancelled, and stays parked while there is no room', async () => {
    const engine = open(newPool(64 * mib), await model('tiny-llama', 'Q4_0'), {
      ...invariant,
      max_sequences: 1,
    });
    const start = (id: number): void =>
      engine.add({
        id,
        prompt_tokens: prompt(20, 1000, id),
        sampler: new GreedyRecorder(),
        max_new_tokens: 50,
        stop_tokens: new Set(),
      });
    start(1);
    engine.step();
    engine.parkSequence(1);
    start(2);
    engine.step();
    expect(engine.restoreSequence(1)).toBe(false);
    engine.cancel(1);
    expect(engine.step().outputs).toContainEqual({ id: 1, finish: 'cancelled' });
    expect(engine.restoreSequence(1)).toBe(false);
  });
});

describe('a pool that the kernel or the driver refuses', () => {
  test('is made smaller until it is not, and serves', async () => {
    const backend = testBackend();
    const pool_bytes = backend.addressable ? 4 * totalmem() : 2 * backend.memory().total_bytes;
    // Addresses for special layouts are private memory: more than there is is refused, but by vm.overcommit_memory 1.
    const overcommits = readFileSync('/proc/sys/vm/overcommit_memory', 'utf8').trim() === '1';
    const pool = DevicePool.largest(backend, { pool_bytes, threads: 1 });
    pools.push(pool);
    if (!backend.addressable || (!overcommits && pool.memory.layouts.length > 1))
      expect(pool.report().pool_bytes).toBeLessThan(pool_bytes);
    generate(open(pool, await model('tiny-llama', 'Q4_0')), ask([30]));
  });

  test('is an error where even little of it is refused', () => {
    expect(codeOf(() => DevicePool.largest(testBackend(), { pool_bytes: 2 ** 52, threads: 1 }))).toBe(
      'E_NATIVE_MEMORY',
    );
  });
});

describe('a pool that is full', () => {
  test('refuses what does not fit among ten models, and the others do not notice', async () => {
    const copies = await Promise.all(
      Array.from({ length: 10 }, (_, seed) => model('tiny-llama', 'F16', seed + 1)),
    );
    const pool = newPool(3 * statSync(copies[0]!).size);
    const expected = copies.map((copy) =>
      withEngine(
        engineOptions(copy, { ...invariant, kv_tokens: 256 }),
        (engine) => generate(engine, ask([40]))[0]!.tokens,
      ),
    );
    const live: { engine: NativeEngine; index: number }[] = [];
    const refused: string[] = [];
    copies.forEach((copy, index) => {
      refused.push(
        codeOf(() => live.push({ engine: open(pool, copy, { ...invariant, kv_tokens: 256 }), index })),
      );
      pool.verify();
      for (const one of live.slice(0, 2))
        expect(generate(one.engine, ask([40]))[0]!.tokens).toEqual(expected[one.index]);
    });
    expect(refused.slice(0, 2)).toEqual(['none', 'none']);
    expect(refused.at(-1)).toBe('E_POOL_FULL');
    close(live.shift()!.engine);
    expect(codeOf(() => open(pool, copies[9]!, { kv_tokens: 64 }))).toBe('none');
  });

  test('ends a request that can never have its KV, and no other', async () => {
    const pool = newPool(4 * mib);
    const limits = { kv_tokens: 65_536, context_tokens: 65_536 };
    const engine = open(pool, await model('tiny-llama', 'Q4_0'), { ...invariant, ...limits });
    const expected = generate(engine, ask([60]))[0]!.tokens;
    const token_bytes = engine.stats().kv_bytes / limits.kv_tokens;
    const tokens = Math.ceil((1.2 * (pool.report().free_bytes + pool.report().kv_bytes)) / token_bytes);
    expect(tokens).toBeLessThan(limits.context_tokens);
    engine.add({
      id: 9,
      prompt_tokens: prompt(tokens, 1000, 3),
      sampler: new GreedyRecorder(),
      max_new_tokens: 90,
      stop_tokens: new Set(),
    });
    const outputs = [];
    for (let step = 0; engine.busy && step < 100; step++) outputs.push(...engine.step().outputs);
    expect(outputs).toEqual([
      {
        id: 9,
        finish: 'error',
        error: expect.stringContaining(`no room for the KV of ${tokens} tokens`),
        short_of_memory: true,
      },
    ]);
    expect(generate(engine, ask([60]))[0]!.tokens).toEqual(expected);
  });

  test('lets a request wait for what another model still computes with', async () => {
    const path = await model('tiny-llama', 'Q4_0');
    // A slow device has less to compute.
    const pool = newPool((slow_device ? 3 : 6) * mib);
    const options = { ...invariant, kv_tokens: 8192, context_tokens: 8192 };
    const [one, two] = [open(pool, path, options, 'one'), open(pool, path, options, 'two')];
    const length = slow_device ? 1200 : 3000;
    const long = ask([length], 5, 2)[0]!;
    const token_bytes = one.stats().kv_bytes / 8192;
    expect(pool.report().free_bytes).toBeLessThan(2 * length * token_bytes);
    one.add({
      id: 1,
      prompt_tokens: long.prompt,
      sampler: new GreedyRecorder(),
      max_new_tokens: 4,
      stop_tokens: new Set(),
    });
    one.step();
    two.add({
      id: 2,
      prompt_tokens: long.prompt,
      sampler: new GreedyRecorder(),
      max_new_tokens: 4,
      stop_tokens: new Set(),
    });
    expect(two.step().outputs).toEqual([]);
    expect(two.busy).toBe(true);
    const tokens: Record<number, number[]> = { 1: [], 2: [] };
    while (one.busy) for (const { token } of one.step().outputs) if (token) tokens[1]!.push(token.token);
    while (two.busy) for (const { token } of two.step().outputs) if (token) tokens[2]!.push(token.token);
    expect(tokens[1]).toHaveLength(4);
    expect(tokens[2]).toEqual(tokens[1]);
  });
});
