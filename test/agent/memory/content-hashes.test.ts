import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { ContentHashCache, hashContents, rangeKey } from '../../../agent/memory/content-hashes.ts';
import { type FileVersion, fileVersion } from '../../../agent/memory/file-version.ts';
import { fingerprints, type TensorIdentity } from '../../../agent/memory/fingerprint.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-hashes-'));
afterAll(() => rmSync(folder, { recursive: true }));

const write = (name: string, text: string): FileVersion => {
  const path = join(folder, name);
  writeFileSync(path, text);
  return fileVersion(path, statSync(path, { bigint: true }));
};
const range = (offset_bytes: number, size_bytes: number) => ({ offset_bytes, size_bytes });
const tensor = (more: Partial<TensorIdentity> = {}): TensorIdentity => ({
  layout: 'CPU',
  type: 'F32',
  row_elements: 1,
  rows: 1,
  parts: [range(2, 4)],
  ...more,
});

describe('hashes of contents', () => {
  it('are SHA-256 of each range', () => {
    const hashes = hashContents(write('a', 'xxabcdxx'), [range(2, 4), range(0, 2)]);
    expect(hashes.get(rangeKey(range(2, 4)))).toBe(createHash('sha256').update('abcd').digest('base64url'));
    expect(hashes.size).toBe(2);
  });

  it('are kept until the file changes in any way', () => {
    const cache = new ContentHashCache(join(folder, 'cache'));
    const file = write('b', 'xxabcdxx');
    expect(cache.read(file)).toBeUndefined();
    cache.write(file, hashContents(file, [range(2, 4)]));
    expect(cache.read(file)).toEqual(hashContents(file, [range(2, 4)]));
    // Another content of the same size, with the time of modification set back.
    writeFileSync(file.path, 'xxefghxx');
    utimesSync(file.path, Number(file.mtime_ns) / 1e9, Number(file.mtime_ns) / 1e9);
    expect(cache.read(fileVersion(file.path, statSync(file.path, { bigint: true })))).toBeUndefined();
  });

  it('are taken again where the entry is damaged, and readable by nobody else', () => {
    const cache = new ContentHashCache(join(folder, 'cache-2'));
    const file = write('c', 'xxabcdxx');
    cache.write(file, hashContents(file, [range(2, 4)]));
    const entry = join(folder, 'cache-2', readdirSync(join(folder, 'cache-2'))[0]!);
    expect(statSync(entry).mode & 0o777).toBe(0o600);
    for (const text of ['', '{', 'null', '{"version":1}', '{"version":"x","hashes":[["a"]]}']) {
      writeFileSync(entry, text);
      expect(cache.read(file), text).toBeUndefined();
    }
  });

  it('are refused of a file that is no longer what it was', () => {
    const file = write('d', 'xxabcdxx');
    writeFileSync(file.path, 'xxab');
    expect(() => hashContents(file, [range(2, 4)])).toThrow('changed while its tensors were hashed');
    expect(() => hashContents({ ...file, size_bytes: 4n }, [range(0, 2)])).toThrow('changed while');
  });
});

describe('fingerprints', () => {
  it('are of the file at once, and of the content as soon as it is known', () => {
    const [one, two] = [write('e', 'xxabcdxx'), write('f', 'yyabcdyyyy')];
    const keysOf = (file: FileVersion) => fingerprints(tensor(), file, hashContents(file, [range(2, 4)]));
    expect(fingerprints(tensor(), one, undefined)).toHaveLength(1);
    expect(keysOf(one)[1]).toBe(fingerprints(tensor(), one, undefined)[0]);
    expect(keysOf(one)[0]).toBe(keysOf(two)[0]);
    expect(keysOf(one)[1]).not.toBe(keysOf(two)[1]);
  });

  it('differ where type, shape, layout or place differ', () => {
    const file = write('g', 'xxabcdxx');
    const hashes = hashContents(file, [range(2, 4), range(2, 2), range(4, 2)]);
    const variants: Partial<TensorIdentity>[] = [
      {},
      { layout: 'CPU_REPACK' },
      { type: 'I32' },
      { row_elements: 2 },
      { rows: 2 },
      { parts: [range(2, 2), range(4, 2)] },
      { parts: [range(4, 2), range(2, 2)] },
    ];
    const keys = variants.flatMap((variant) => fingerprints(tensor(variant), file, hashes));
    expect(new Set(keys).size).toBe(2 * variants.length);
  });
});
