/** Tensors of a pool by the SHA-256 of their bytes: what peers are given is what they named, or nothing. */
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { ContentHashCache, rangeOfKey } from '../../../agent/memory/content-hashes.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { fileVersion } from '../../../agent/memory/file-version.ts';
import { learnContents } from '../../../agent/memory/learn-contents.ts';
import { engineOptions, model } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';
import { mib, openIn } from './support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-contents-'));
const hashes = new ContentHashCache(join(folder, 'tensors'));
/** Weights in 32 bits lie in every pool as in their file. */
const paths: string[] = [];
let pool: DevicePool | undefined;

beforeAll(async () => {
  for (const seed of [1, 2, 3]) paths.push(await model('tiny-llama', 'F32', seed));
});
afterEach(async () => {
  pool?.verify();
  await pool?.close();
  pool = undefined;
});
afterAll(() => rmSync(folder, { recursive: true }));

function newPool(pool_bytes: number): DevicePool {
  pool = new DevicePool(testBackend(), { pool_bytes, threads: 1, content_hashes: hashes });
  return pool;
}

/** Names of a file's tensors, and how many bytes each has. */
async function tensorsOf(path: string): Promise<Map<string, number>> {
  await learnContents(hashes, path);
  const known = hashes.read(fileVersion(path, statSync(path, { bigint: true })))!;
  return new Map([...known].map(([key, content]) => [content, rangeOfKey(key).size_bytes]));
}

function nameOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('base64url');
}

test('those of a model are offered whole, byte for byte, once its file was hashed', async () => {
  const from = newPool(64 * mib);
  const { engine } = openIn(from, paths[0]!);
  const tensors = await tensorsOf(paths[0]!);
  const names = [...tensors.keys()];
  expect(from.heldContents(names)).toEqual([]);
  from.adoptContents(paths[0]!);
  expect(from.heldContents(['A'.repeat(43), ...names])).toEqual(names.map((_, index) => index + 1));
  for (const [content, bytes] of tensors) {
    const whole = from.readContent({ content, offset: 0, bytes })!;
    expect(nameOf(whole)).toBe(content);
    const part = from.readContent({ content, offset: 5, bytes: bytes - 9 })!;
    expect(Buffer.compare(part, whole.subarray(5, bytes - 4))).toBe(0);
    expect(from.readContent({ content, offset: 1, bytes })).toBeUndefined();
  }
  engine.close();
  // Nobody uses them, and they are there.
  expect(from.heldContents(names)).toHaveLength(names.length);
  from.store.clear();
  expect(from.heldContents(names)).toEqual([]);
  expect(from.readContent({ content: names[0]!, offset: 0, bytes: 4 })).toBeUndefined();
});

test('what moved, gave way to others or is still on its way is never taken for another', async () => {
  const models = await Promise.all(paths.map(async (path) => ({ path, tensors: await tensorsOf(path) })));
  const bytes = [...models[0]!.tensors.values()].reduce((sum, size) => sum + size, 0);
  const from = newPool(Math.ceil((1.6 * bytes) / (2 * mib)) * 2 * mib + 2 * mib);
  const seen = new Set<number>();
  for (const index of [0, 1, 2, 1, 0, 2, 0]) {
    const { path, tensors } = models[index]!;
    const opening = from.open(engineOptions(path, { kv_tokens: 64 }));
    const held = from.heldContents([...tensors.keys()]).length;
    // Of a model that comes anew nothing is offered before all of it is there.
    if (!seen.has(index)) expect(held).toBe(0);
    seen.add(index);
    let engine = opening.advance(true);
    while (!engine) engine = opening.advance(true);
    engine.close();
    let offered = 0;
    for (const { tensors: known } of models)
      for (const [content, size] of known) {
        const found = from.readContent({ content, offset: 0, bytes: size });
        if (!found) continue;
        offered++;
        expect(nameOf(found)).toBe(content);
      }
    expect(offered).toBeGreaterThanOrEqual(tensors.size);
  }
  expect(from.heldContents(models.flatMap(({ tensors }) => [...tensors.keys()])).length).toBeLessThan(
    models.reduce((sum, { tensors }) => sum + tensors.size, 0),
  );
});
