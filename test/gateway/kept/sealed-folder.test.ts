/** What is kept sealed, whole and in pieces. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { SealedFolder } from '../../../gateway/kept/sealed-folder.ts';

const [owner, id] = ['key_1', 'file-1'];
const pieces = [3_000_000, 0, 1, 70_000].map((bytes) => randomBytes(bytes));
const whole = Buffer.concat(pieces);
let root: string;
let folder: SealedFolder;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-sealed-'));
  folder = new SealedFolder(root, randomBytes(32), { kept_ms: 3_600_000, owner_bytes_max: 1e9 });
});
afterEach(() => rmSync(root, { recursive: true }));

async function inPieces(of: string): Promise<Buffer | undefined> {
  const read = await folder.pieces(of, id);
  if (!read) return undefined;
  const found: Buffer[] = [];
  for await (const piece of read) found.push(piece);
  return Buffer.concat(found);
}

it('is the same however it is written and read', async () => {
  for (const write of [() => folder.put(owner, id, whole), () => folder.putPieces(owner, id, pieces)]) {
    await write();
    expect((await folder.get(owner, id))!.equals(whole)).toBe(true);
    expect((await inPieces(owner))!.equals(whole)).toBe(true);
    expect(readFileSync(join(root, owner, id)).includes(pieces[3]!)).toBe(false);
  }
});

it('is not given where it is damaged, cut off or of another owner, not even its first piece', async () => {
  await folder.putPieces(owner, id, pieces);
  const path = join(root, owner, id);
  const sealed = readFileSync(path);
  await folder.put('key_2', id, whole);
  writeFileSync(join(root, 'key_2', id), sealed);
  expect([await inPieces('key_2'), await inPieces('key_3')]).toEqual([undefined, undefined]);
  for (const at of [0, 12, 28, sealed.length - 1]) {
    const damaged = Buffer.from(sealed);
    damaged[at]! ^= 1;
    writeFileSync(path, damaged);
    expect(await inPieces(owner), `byte ${at}`).toBeUndefined();
  }
  for (const length of [0, 20, 28, sealed.length - 1]) {
    writeFileSync(path, sealed.subarray(0, length));
    expect(await inPieces(owner), `${length} bytes`).toBeUndefined();
  }
});

it('leaves nothing of pieces that end in an error', async () => {
  const broken = async function* (): AsyncGenerator<Buffer> {
    yield whole;
    throw new Error('no more');
  };
  await expect(folder.putPieces(owner, id, broken())).rejects.toThrow('no more');
  expect(readdirSync(join(root, owner))).toEqual([]);
});

it('keeps nothing of writes whose gateway was killed, once a day has passed, and lets others go on', async () => {
  await folder.put(owner, id, whole);
  const before = readdirSync(join(root, owner));
  let go = (): void => undefined;
  const held = new Promise<void>((resolve) => {
    go = resolve;
  });
  const slow = async function* (): AsyncGenerator<Buffer> {
    yield whole;
    await held;
  };
  const written = folder.putPieces(owner, 'file-2', slow());
  const unfinished = (): string[] => readdirSync(join(root, owner)).filter((one) => !before.includes(one));
  await expect.poll(unfinished).toHaveLength(1);
  // As one that was killed over another write a day ago left it.
  const killed = join(root, owner, unfinished()[0]!.replace(/.{16}$/, '0123456789abcdef'));
  writeFileSync(killed, whole);
  const now_ms = Date.now();
  const hour_ms = 3_600_000;
  utimesSync(killed, new Date(), new Date(now_ms - 23 * hour_ms));
  await folder.sweep(now_ms);
  expect(unfinished()).toHaveLength(2);
  utimesSync(killed, new Date(), new Date(now_ms - 25 * hour_ms));
  await folder.sweep(now_ms);
  expect(unfinished()).toHaveLength(1);
  go();
  await written;
  expect((await folder.list(owner)).map((entry) => entry.id).sort()).toEqual([id, 'file-2']);
});
