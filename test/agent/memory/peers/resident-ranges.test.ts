/** Which ranges of a file are in the page cache, asked all at once and by turns. */
import {
  mkdirSync,
  mkdtempSync,
  openSync,
  readSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterAll, describe, expect, it } from 'vitest';
import { fileVersion } from '../../../../agent/memory/file-version.ts';
import { residentRanges, residentRangesInTurns } from '../../../../agent/memory/peers/shared-tensors.ts';
import { packageRoot } from '../../../../host/package-root.ts';

const mib = 2 ** 20;
// Not in /tmp, which may be memory: files there are always in the page cache.
const builds = join(packageRoot, 'build');
mkdirSync(builds, { recursive: true });
const folder = mkdtempSync(join(builds, 'resident-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** A file without bytes on the disk, and what reads so much of its beginning. */
function sparseFile(bytes: number, read_bytes: number) {
  const path = join(folder, 'file');
  writeFileSync(path, '');
  truncateSync(path, bytes);
  const descriptor = openSync(path, 'r');
  const piece = Buffer.alloc(4 * mib);
  const read = (): void => {
    for (let at = 0; at < read_bytes; at += piece.length) readSync(descriptor, piece, 0, piece.length, at);
  };
  return { file: fileVersion(path, statSync(path, { bigint: true })), read };
}

describe('ranges in the page cache', () => {
  it('are the same by turns, in which others come to their work', async () => {
    const { file, read } = sparseFile(800 * mib, 300 * mib);
    const range = (from_mib: number, size_mib: number) => ({
      offset_bytes: from_mib * mib + 77,
      size_bytes: size_mib * mib - 77,
    });
    const ranges = [range(0, 300), range(250, 40), range(250, 100), range(0, 800), range(640, 3)];
    const expected = [true, true, false, false, false];
    // A kernel that gives memory back early may have dropped a page since: it is read again then.
    const residentNow = () => {
      read();
      return residentRanges(file, ranges);
    };
    await expect.poll(residentNow).toEqual(expected);
    let over = false;
    const others = (async () => {
      let turns = 0;
      for (; !over; turns++) await nextTurn();
      return turns;
    })();
    const residentInTurns = () => {
      read();
      return residentRangesInTurns(file, ranges);
    };
    await expect.poll(residentInTurns).toEqual(expected);
    over = true;
    // One even where nobody let it come to its work before.
    expect(await others).toBeGreaterThan(1);
  });
});
