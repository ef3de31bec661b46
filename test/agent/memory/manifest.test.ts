/**
 * What a worker had in its pool is in the page cache of whoever takes its place, in the order of who is asked for most.
 */
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it, test } from 'vitest';
import { warmCache } from '../../../agent/device-worker/cache-warmer.ts';
import { readManifest, writeManifest } from '../../../agent/device-worker/manifest-file.ts';
import { fileVersion, sharedVersionText } from '../../../agent/memory/file-version.ts';
import { residentRanges } from '../../../agent/memory/peers/shared-tensors.ts';
import { type ManifestModel, mergeRanges } from '../../../agent/memory/pool-manifest.ts';
import { packageRoot } from '../../../host/package-root.ts';
import { WorkerHarness } from '../device-worker/support.ts';
import { model } from '../engine/support.ts';
import { forgetFile } from './page-cache.ts';

// Not in /tmp, which may be memory: files there are always in the page cache.
const builds = join(packageRoot, 'build');
mkdirSync(builds, { recursive: true });
const folder = mkdtempSync(join(builds, 'manifest-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** Of the ranges of a model how many are in the page cache. */
function resident({ path, ranges }: ManifestModel): number {
  const file = fileVersion(path, statSync(path, { bigint: true }));
  return residentRanges(file, ranges).filter((all) => all).length;
}

function copyOf(path: string, name: string): string {
  const copy = join(folder, name);
  copyFileSync(path, copy);
  return copy;
}

function entryOf(path: string, probability: number): ManifestModel {
  const file = fileVersion(path, statSync(path, { bigint: true }));
  const ranges = [{ offset_bytes: 0, size_bytes: Number(file.size_bytes) }];
  return { path, version: sharedVersionText(file), probability, ranges };
}

test('a worker that is drained tells what it had, and its successor reads it ahead in that order', async () => {
  const manifest_file = join(folder, 'manifests', 'a.json');
  const often = copyOf(await model('tiny-llama', 'F16'), 'often.gguf');
  const seldom = copyOf(await model('tiny-qwen2', 'F16'), 'seldom.gguf');
  const first = new WorkerHarness();
  try {
    await first.configure({}, { manifest_file });
    await first.load({ name: 'often', model_path: often });
    await first.load({ name: 'seldom', model_path: seldom });
    // Each load counts as a request for the model.
    await first.load({ name: 'often-too', model_path: often });
    first.send({ type: 'drain' });
    await first.message(({ type }) => type === 'drained');
  } finally {
    await first.close();
  }
  const told = readManifest(manifest_file);
  expect(told.map(({ path }) => path)).toEqual([often, seldom, often]);
  expect(told.every(({ probability }, at) => probability <= (told[at - 1]?.probability ?? 1))).toBe(true);
  for (const { path, ranges } of told) {
    const bytes = ranges.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
    expect(bytes).toBeGreaterThan(0.5 * statSync(path).size);
    expect(bytes).toBeLessThan(statSync(path).size);
  }
  for (const path of [often, seldom]) await forgetFile(path);
  expect(told.map(resident)).toEqual([0, 0, 0]);

  const second = new WorkerHarness();
  try {
    await second.configure({}, { manifest_file });
    await second.load({ name: 'other', model_path: await model('tiny-qwen3', 'F16') });
    const read = await second.logged(({ msg }) => msg === 'read ahead', 3);
    expect(read.map(({ path }) => path)).toEqual([often, seldom, often]);
    expect(read[0]!.read_bytes).toBeGreaterThan(0);
    // It was there by then.
    expect(read[2]!.read_bytes).toBe(0);
    expect(told.map(resident)).toEqual(told.map(({ ranges }) => ranges.length));
  } finally {
    await second.close();
  }
}, 60_000);

describe('reading ahead', () => {
  const quiet = { loading: () => false, busy: () => false, warn: (text: string) => expect.fail(text) };

  it('waits while models are loaded, ends when it is told to, and takes no more memory than it may', async () => {
    const paths = ['a', 'b'].map((name) => join(folder, name));
    for (const path of paths) {
      writeFileSync(path, Buffer.alloc(4 * 2 ** 20, 1));
      await forgetFile(path);
    }
    const [a, b] = paths.map((path) => entryOf(path, 0.5)) as [ManifestModel, ManifestModel];
    const loads = new AbortController();
    let looks = 0;
    const around = {
      ...quiet,
      loading: () => {
        if (++looks === 3) loads.abort();
        return true;
      },
      warmed: () => expect.fail('it read'),
    };
    await warmCache([a, b], around, loads.signal);
    expect(looks).toBe(3);
    expect(resident(a)).toBe(0);
    const read: [string, number][] = [];
    const warmed = (path: string, bytes: number): unknown => read.push([path, bytes]);
    await warmCache([a, b], { ...quiet, warmed }, new AbortController().signal, 5 * 2 ** 20);
    expect(read).toEqual([
      [a.path, 4 * 2 ** 20],
      [b.path, 2 ** 20],
    ]);
    expect([a, b].map(resident)).toEqual([1, 0]);
  });

  it('leaves files alone that are gone or others by now', async () => {
    const path = join(folder, 'changed');
    writeFileSync(path, 'before');
    const models = [entryOf(path, 0.5), { ...entryOf(path, 0.4), path: join(folder, 'gone') }];
    writeFileSync(path, 'afterwards');
    const warmed = () => expect.fail('it read');
    await warmCache(models, { ...quiet, warmed }, new AbortController().signal);
  });
});

describe('the manifest', () => {
  it('has neighbours as one range, in the order of the file', () => {
    const range = (offset_bytes: number, size_bytes: number) => ({ offset_bytes, size_bytes });
    const page = 4096;
    const scattered = [range(20 * page, page), range(page, page), range(0, 100), range(20 * page, 10)];
    expect(mergeRanges(scattered)).toEqual([range(0, 2 * page), range(20 * page, page)]);
  });

  it('keeps the likeliest models and the newest mixes, and is nothing where it cannot be read', () => {
    const path = join(folder, 'bounded', 'mix.json');
    const models = Array.from({ length: 300 }, (_, index) => ({
      ...{ path: `/models/${index}`, version: '1', probability: index / 300 },
      ranges: [{ offset_bytes: 0, size_bytes: 1 }],
    }));
    writeManifest(path, models);
    expect(readManifest(path)).toEqual(models.toReversed().slice(0, 256));
    for (let mix = 0; mix < 40; mix++) writeManifest(join(folder, 'bounded', `${mix}.json`), []);
    expect(readdirSync(join(folder, 'bounded'))).toHaveLength(32);
    expect(readManifest(join(folder, 'nobody.json'))).toEqual([]);
    for (const text of ['{', '{"format":2}', '{"format":1,"models":[{"path":1}]}']) {
      writeFileSync(path, text);
      expect(readManifest(path)).toEqual([]);
    }
    // Whatever the filesystem says: a folder cannot be read.
    expect(readManifest(join(folder, 'bounded'))).toEqual([]);
  });
});
