/** What a thread takes of a load that computes between its units: only what no disk has to bring. */
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, expect, test } from 'vitest';
import type { PoolMemory } from '../../../../agent/backend/pool-memory.ts';
import { fileVersion } from '../../../../agent/memory/file-version.ts';
import { LoadCounters, type LoadWork } from '../../../../agent/memory/load/load-work.ts';
import { OpenModelFile } from '../../../../agent/memory/load/open-model-file.ts';
import type { Unit } from '../../../../agent/memory/load/pieces.ts';
import { TensorLoader } from '../../../../agent/memory/load/tensor-loader.ts';
import { TensorLoading } from '../../../../agent/memory/load/tensor-loading.ts';
import { UnitLoader } from '../../../../agent/memory/load/unit-loader.ts';
import { makeHugePages } from '../../../../native/huge-pages.ts';
import { huge_bytes } from '../../../native/huge-bytes.ts';
import { testBackend } from '../../engine/test-backend.ts';
import { forgetFile, keepInMemory } from '../page-cache.ts';
import { mib } from '../support.ts';

const unit_count = 4;
const unit_bytes = mib;
const folder = mkdtempSync(join(tmpdir(), 'hpcserve-units-'));
const undo: (() => void)[] = [];
afterEach(() => {
  for (const one of undo.splice(0).reverse()) one();
});
afterAll(() => rmSync(folder, { recursive: true }));

const content = Buffer.alloc(unit_count * unit_bytes);
for (let at = 0; at < content.length; at += 4) content.writeUInt32LE(Math.imul(at, 2654435761) >>> 0, at);

/** A file that nothing of is in memory, and what a thread is told that brings it to the beginning of a pool. */
async function coldLoad() {
  const path = join(folder, 'weights');
  writeFileSync(path, content);
  await forgetFile(path);
  const backend = testBackend();
  const memory = backend.openPool(16 * mib);
  undo.push(() => memory.free());
  const source = new OpenModelFile(fileVersion(path, statSync(path, { bigint: true })), { mapped: true });
  const counters = new LoadCounters();
  const units = Array.from({ length: unit_count }, (_, index): Unit => {
    const offset = index * unit_bytes;
    return [{ kind: 'plain', file_offset: offset, pool_offset: offset, bytes: unit_bytes }];
  });
  const work: LoadWork = {
    descriptor: source.descriptor,
    path,
    size_bytes: content.length,
    mapping: source.mapping!.address,
    layouts: memory.layouts.map(({ spans }) => spans),
    upload: backend.upload,
    units,
    counters: counters.shared,
  };
  const loader = new UnitLoader(backend.ggml);
  undo.push(() => loader.free());
  return { path, source, memory, counters, work, loader };
}

function contentOf(memory: PoolMemory): Buffer {
  const bytes = Buffer.alloc(content.length);
  memory.read(0, bytes);
  return bytes;
}

test('what is not in memory is left to others; what is, it takes', async () => {
  const { path, source, memory, counters, work, loader } = await coldLoad();
  undo.push(() => source.close());
  const share = loader.open(work);
  undo.push(() => share.end());
  expect(share.step('in_memory')).toBe(false);
  expect(counters.bytes).toBe(0);
  const kept = keepInMemory(path);
  undo.push(() => kept[Symbol.dispose]());
  for (let unit = 0; unit < unit_count; unit++) expect(share.step('in_memory')).toBe(true);
  expect(share.step('in_memory')).toBe(false);
  expect(counters.legs.some(({ leg }) => leg === 'disk')).toBe(false);
  expect(contentOf(memory).equals(content)).toBe(true);
});

test('a load whose file only others read comes to its end', async () => {
  const { source, memory, counters, work, loader } = await coldLoad();
  const other = new UnitLoader(testBackend().ggml);
  undo.push(() => other.free());
  const loading = new TensorLoading({
    source,
    work,
    start: (begun) => loader.open(begun),
    fetching: undefined,
    onProgress: () => undefined,
    onDirectRefused: () => undefined,
    onHang: () => undefined,
  });
  expect(loading.advance(true, 'in_memory')).toBe(false);
  expect(counters.bytes).toBe(0);
  other.run(work);
  expect(loading.advance(true, 'in_memory')).toBe(true);
  expect(contentOf(memory).equals(content)).toBe(true);
});

test('places of tensors get huge pages before they are written, where the kernel makes any', async () => {
  const { path, source, memory } = await coldLoad();
  source.close();
  const loader = new TensorLoader(testBackend(), memory, { threads: 2, unit_bytes });
  const file = fileVersion(path, statSync(path, { bigint: true }));
  const load = loader.begin(file, [
    {
      name: 'weights',
      parts: [{ offset_bytes: 0, size_bytes: content.length }],
      type: 0,
      row_elements: content.length / 4,
      rows: 1,
      planes: 1,
      layout: 0,
      pool_offset: 0,
    },
  ]);
  try {
    await expect.poll(() => load.advance(false), { timeout: 20_000 }).toBe(true);
  } finally {
    await loader.close();
  }
  expect(contentOf(memory).equals(content)).toBe(true);
  // As much as can be made now was made then.
  for (const range of memory.hugeRanges?.([{ offset: 0, bytes: content.length }]) ?? [])
    expect(huge_bytes(range.address, range.bytes)).toBe(makeHugePages(range) ? range.bytes : 0);
});

test('of a load whose units are all taken nobody makes huge pages any more', async () => {
  const { source, memory, counters, work, loader } = await coldLoad();
  undo.push(() => source.close());
  const huge = memory.hugeRanges?.([{ offset: 8 * mib, bytes: 4 * mib }]) ?? [];
  while (counters.take(unit_count) !== undefined);
  const before_bytes = memory.resident_bytes;
  loader.run({ ...work, huge });
  expect(memory.resident_bytes).toBe(before_bytes);
  expect(counters.active).toBe(0);
});
