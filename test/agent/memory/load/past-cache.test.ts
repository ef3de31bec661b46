/** Loads past the page cache: the same weights, nothing of them kept by the node, and the same errors. */
import { execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, statSync, truncateSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import { describeLoad } from '../../../../agent/memory/describe-load.ts';
import { DevicePool, type DevicePoolOptions } from '../../../../agent/memory/device-pool.ts';
import type { WeightLoad } from '../../../../agent/memory/pooled-loading.ts';
import { engineOptions, generate, model, prompt } from '../../engine/support.ts';
import { testBackend } from '../../engine/test-backend.ts';
import { forgetFile } from '../page-cache.ts';
import { codeOf, finish, mib, openIn } from '../support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-direct-'));
const asked = [{ prompt: prompt(40, 1000, 9), max_new_tokens: 8 }];
let pool: DevicePool | undefined;
afterEach(async () => {
  pool?.verify();
  await pool?.close();
  pool = undefined;
});
afterAll(() => rmSync(folder, { recursive: true }));

/** Whose page cache keeps nothing, unless `more` says otherwise. */
function newPool(more: Partial<DevicePoolOptions> = {}): DevicePool {
  pool = new DevicePool(testBackend(), {
    pool_bytes: 192 * mib,
    threads: 2,
    past_cache: () => true,
    ...more,
  });
  return pool;
}

function residentSize(path: string): number {
  return Number(execFileSync('fincore', ['--bytes', '--noheadings', '--output=RES', path]));
}

/** A file that nobody has in memory. */
async function coldCopy(of: string, name: string): Promise<string> {
  const path = join(folder, name);
  copyFileSync(of, path);
  await forgetFile(path);
  return path;
}

function expectSameAnswer(from: DevicePool, path: string): WeightLoad {
  const { engine, load } = openIn(from, path);
  const alone = new NativeEngine(engineOptions(path, { kv_tokens: 512 }), testBackend());
  try {
    expect(generate(engine, asked)).toEqual(generate(alone, asked));
  } finally {
    engine.close();
    alone.close();
  }
  return load;
}

const legOf = ({ legs }: WeightLoad, name: string): number =>
  legs.find(({ leg }) => leg === name)?.bytes ?? 0;

describe('a load past the page cache', () => {
  test.each([
    ['small-llama', 'F32'],
    ['small-llama', 'Q4_0'],
    ['tiny-mixtral', 'Q4_0'],
  ] as const)('of %s in %s leaves none of its weights there, and they are right', async (preset, type) => {
    const path = await coldCopy(await model(preset, type), `${preset}-${type}.gguf`);
    const from = newPool({ unit_bytes: 256 * 1024 });
    const { engine, load } = openIn(from, path);
    // Its header is there, and what the kernel reads with it; and its end, where that fills no page.
    expect(residentSize(path)).toBeLessThan(statSync(path).size / 4 + mib);
    engine.close();
    expect(legOf(load, 'disk')).toBeGreaterThan(
      (load.missing_bytes > 8 * mib ? 0.7 : 0.3) * load.missing_bytes,
    );
    expect(describeLoad(load)).toMatch(/; past the page cache, which could not keep it; a thread: disk \d/);
    from.store.clear();
    expectSameAnswer(from, path);
  });

  test('takes from the page cache what is there', async () => {
    const path = await coldCopy(await model('small-llama', 'F32'), 'warm.gguf');
    execFileSync('cat', [path], { maxBuffer: 2 ** 30 });
    const load = expectSameAnswer(newPool(), path);
    expect(legOf(load, 'cache')).toBeGreaterThan(0.9 * load.missing_bytes);
  });

  test('is none where the page cache keeps them', async () => {
    const path = await coldCopy(await model('small-llama', 'F32'), 'kept.gguf');
    const wanted: number[] = [];
    const from = newPool({
      past_cache: (bytes) => {
        wanted.push(bytes);
        return false;
      },
    });
    const { engine, load } = openIn(from, path);
    engine.close();
    expect(load.past_cache).toBeUndefined();
    expect(wanted).toEqual([load.missing_bytes]);
    expect(residentSize(path)).toBeGreaterThan(0.9 * statSync(path).size);
  });

  test('ends where the file is cut off meanwhile, and leaves nothing', async () => {
    const path = await coldCopy(await model('small-llama', 'F32'), 'cut.gguf');
    // Within a lease, whoever cuts it off would wait for the load's end.
    const from = newPool({ unit_bytes: 64 * 1024, mapped: false });
    const options = engineOptions(path, {
      kv_tokens: 512,
      on_progress: ({ bytes_loaded }) => {
        if (bytes_loaded > 0 && statSync(path).size > mib) truncateSync(path, mib / 4);
      },
    });
    expect(codeOf(() => finish(from.open(options)))).toBe('E_POOL_LOAD');
    from.verify();
    expect(from.store.stats()).toMatchObject({ reusable_bytes: 0, active_bytes: 0, lost_bytes: 0 });
  });

  test('ends where the file is another at its end', async () => {
    const path = await coldCopy(await model('small-llama', 'F32'), 'touched.gguf');
    const from = newPool({ unit_bytes: 64 * 1024 });
    let touched = false;
    const options = engineOptions(path, {
      kv_tokens: 512,
      on_progress: () => {
        if (!touched) expect(spawnSync('touch', [path]).status).toBe(0);
        touched = true;
      },
    });
    expect(codeOf(() => finish(from.open(options)))).toBe('E_POOL_LOAD');
    expect(from.store.stats()).toMatchObject({ reusable_bytes: 0, active_bytes: 0 });
  });

  test('that is given up half-way leaves nothing under way', async () => {
    const path = await coldCopy(await model('small-llama', 'F32'), 'aborted.gguf');
    const from = newPool({ unit_bytes: 64 * 1024 });
    let loaded_bytes = 0;
    const options = engineOptions(path, {
      kv_tokens: 512,
      on_progress: (progress) => (loaded_bytes = progress.bytes_loaded),
    });
    const opening = from.open(options);
    while (loaded_bytes === 0) expect(opening.advance(true)).toBeUndefined();
    opening.abort();
    expect(from.store.stats()).toMatchObject({ active_bytes: 0, reusable_bytes: 0, lost_bytes: 0 });
    expectSameAnswer(from, path);
  });
});

/** A filesystem without direct reads. */
const plainFolder = join(folder, 'ramfs');
mkdirSync(plainFolder);
const mounted = spawnSync('mount', ['-t', 'ramfs', 'ramfs', plainFolder]).status === 0;
afterAll(() => {
  if (mounted) execFileSync('umount', [plainFolder]);
});

test.skipIf(!mounted)(
  `is one through it where the filesystem refuses, which is said once${mounted ? '' : ' (needs root: mount)'}`,
  async () => {
    const path = join(plainFolder, 'model.gguf');
    copyFileSync(await model('tiny-llama', 'F16'), path);
    const from = newPool();
    const first = expectSameAnswer(from, path);
    expect(describeLoad(first)).toMatch(
      /; through the page cache, which cannot keep it: its filesystem refuses direct reads \(EINVAL\)/,
    );
    from.store.clear();
    expect(expectSameAnswer(from, path).past_cache).toBeUndefined();
  },
);
