/** What is kept sealed, whole and in pieces. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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
