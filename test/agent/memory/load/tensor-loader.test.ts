/** Files that stay mapped from load to load. */
import { mkdtempSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, expect, test } from 'vitest';
import { fileVersion } from '../../../../agent/memory/file-version.ts';
import { TensorLoader } from '../../../../agent/memory/load/tensor-loader.ts';
import { testBackend } from '../../engine/test-backend.ts';
import { mappingsOf } from '../page-cache.ts';
import { mib } from '../support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-mapped-'));
const undo: (() => void | Promise<void>)[] = [];
afterEach(async () => {
  for (const one of undo.splice(0).reverse()) await one();
});
afterAll(() => rmSync(folder, { recursive: true }));

const content = Buffer.alloc(2 * mib);
for (let at = 0; at < content.length; at += 4) content.writeUInt32LE(Math.imul(at, 2654435761) >>> 0, at);

function setUp(name: string, stays_mapped: boolean) {
  const path = join(folder, name);
  writeFileSync(path, content);
  const backend = testBackend();
  const memory = backend.openPool(4 * mib);
  undo.push(() => memory.free());
  const loader = new TensorLoader(backend, memory, { threads: 1, stays_mapped, past_cache: () => false });
  undo.push(() => loader.close());
  const begin = () => {
    const file = fileVersion(path, statSync(path, { bigint: true }));
    const parts = [{ offset_bytes: 0, size_bytes: content.length }];
    const place = { parts, type: 0, row_elements: content.length / 4, rows: 1, planes: 1, layout: 0 };
    return loader.begin(file, [{ name: 'weights', ...place, pool_offset: 0 }]);
  };
  const bring = (): Buffer => {
    memory.zero(0, content.length);
    const load = begin();
    while (!load.advance(true));
    const bytes = Buffer.alloc(content.length);
    memory.read(0, bytes);
    return bytes;
  };
  return { path, loader, begin, bring };
}

test('a file stays mapped for the loads that follow, until it is to be unmapped', () => {
  const { path, loader, bring } = setUp('stays', true);
  expect(bring().equals(content)).toBe(true);
  const first = mappingsOf(path);
  expect(first).toHaveLength(1);
  expect(bring().equals(content)).toBe(true);
  expect(mappingsOf(path)).toEqual(first);
  loader.unmapFiles();
  expect(mappingsOf(path)).toEqual([]);
  expect(bring().equals(content)).toBe(true);
  expect(mappingsOf(path)).toHaveLength(1);
});

test('it is unmapped once no load reads it any more', () => {
  const { path, loader, begin } = setUp('held', true);
  const load = begin();
  loader.unmapFiles();
  expect(mappingsOf(path)).toHaveLength(1);
  while (!load.advance(true));
  expect(mappingsOf(path)).toEqual([]);
});

test('another version of the file is mapped anew', () => {
  const { path, bring } = setUp('changes', true);
  bring();
  const other = Buffer.from(content).reverse();
  // Another file of that name, as models are replaced.
  rmSync(path);
  writeFileSync(path, other);
  utimesSync(path, 1, 1);
  expect(bring().equals(other)).toBe(true);
  expect(mappingsOf(path)).toHaveLength(1);
  expect(mappingsOf(`${path} (deleted)`)).toEqual([]);
});

test('else a load leaves nothing mapped', () => {
  const { path, bring } = setUp('goes', false);
  expect(bring().equals(content)).toBe(true);
  expect(mappingsOf(path)).toEqual([]);
});
