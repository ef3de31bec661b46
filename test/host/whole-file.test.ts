import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { moveAside } from '../../host/move.ts';
import {
  readJsonIfThere,
  replaceLink,
  syncPath,
  writeFileAtomically,
  writeFileAtomicallyAsync,
} from '../../host/whole-file.ts';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-whole-file-'));
  path = join(folder, 'file.json');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const modeOf = (file: string): number => statSync(file).mode & 0o777;

describe.each([
  ['at once', async (...words: Parameters<typeof writeFileAtomically>) => writeFileAtomically(...words)],
  ['beside other work', writeFileAtomicallyAsync],
])('a whole file, written %s', (_, write) => {
  it.each(['name', 'content', 'nothing'] as const)(
    'replaces the old one; durable: %s',
    async (durability) => {
      writeFileSync(path, 'old, longer than the new one', { mode: 0o644 });
      await write(path, '{"new":1}', { durability });
      expect(readJsonIfThere(path)).toEqual({ new: 1 });
      expect(modeOf(path)).toBe(0o600);
      expect(readdirSync(folder)).toEqual(['file.json']);
    },
  );

  it('has the mode that is asked for, and any bytes', async () => {
    await write(path, Uint8Array.of(0, 255, 10), { mode: 0o700 });
    expect(modeOf(path)).toBe(0o700);
    expect([...readFileSync(path)]).toEqual([0, 255, 10]);
  });

  it('that cannot take its place leaves what is there, and nothing else', async () => {
    mkdirSync(join(path, 'full'), { recursive: true });
    await expect(write(path, 'x')).rejects.toThrow(/EISDIR|ENOTEMPTY|EEXIST/);
    expect(readdirSync(folder)).toEqual(['file.json']);
    const missing = join(folder, 'missing', 'x');
    await expect(write(missing, 'x')).rejects.toThrow(`open '${missing}'`);
  });
});

it('writes of one process at the same time do not take each other’s file away', async () => {
  const texts = Array.from({ length: 50 }, (_, index) => `${index}`.repeat(1000));
  await Promise.all(texts.map((text) => writeFileAtomicallyAsync(path, text)));
  expect(texts).toContain(readFileSync(path, 'utf8'));
  expect(readdirSync(folder)).toEqual(['file.json']);
});

it('a file whose last touch fails never appears', async () => {
  const finish = (): Promise<void> => Promise.reject(new Error('no such group'));
  await expect(writeFileAtomicallyAsync(path, 'x', { finish })).rejects.toThrow('no such group');
  expect(readdirSync(folder)).toEqual([]);
});

it('a link points elsewhere, also where there was none', async () => {
  await replaceLink(path, 'a');
  await replaceLink(path, 'b');
  expect(readlinkSync(path)).toBe('b');
  expect(readdirSync(folder)).toEqual(['file.json']);
});

it('what is in the way is set aside, where there is anything', () => {
  expect(moveAside(path, `${path}.old`)).toBe(false);
  writeFileSync(path, 'x');
  expect(moveAside(path, `${path}.old`)).toBe(true);
  expect(readdirSync(folder)).toEqual(['file.json.old']);
});

it('JSON of a file that is not there is undefined, of a damaged one an error', () => {
  expect(readJsonIfThere(path)).toBe(undefined);
  writeFileSync(path, '{');
  expect(() => readJsonIfThere(path)).toThrow(SyntaxError);
});

it('what somebody wrote is forced to disk, by file or folder', async () => {
  writeFileSync(path, 'x');
  await syncPath(path);
  await syncPath(folder);
  await expect(syncPath(`${path}.no`)).rejects.toThrow('ENOENT');
});
