import { chmodSync, mkdirSync, readdirSync, rmdirSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { makeRuntimeFolder } from '../../agent/node/runtime-folder.ts';
import { scratchFolder } from '../mesh/support.ts';

describe('the folder for sockets and keys on a node', () => {
  test('is 0700 under a name of its own each time, whatever the umask', async () => {
    await using scratch = await scratchFolder();
    const before = process.umask(0);
    const folders = Array.from({ length: 50 }, () => makeRuntimeFolder(scratch.path, {}));
    process.umask(before);
    expect(new Set(folders).size).toBe(50);
    for (const folder of folders) expect(statSync(folder).mode & 0o777).toBe(0o700);
  });

  test('is not made where others could put another in its place', async () => {
    await using scratch = await scratchFolder();
    chmodSync(scratch.path, 0o777);
    expect(() => makeRuntimeFolder(scratch.path, {})).toThrow(
      expect.objectContaining({
        code: 'E_AGENT_RUNTIME_FOLDER',
        because: [expect.stringContaining('no sticky bit')],
      }),
    );
    expect(readdirSync(scratch.path)).toEqual([]);
    chmodSync(scratch.path, 0o1777);
    expect(makeRuntimeFolder(scratch.path, {})).toContain(scratch.path);
    const link = join(scratch.path, 'link');
    chmodSync(scratch.path, 0o777);
    symlinkSync(scratch.path, link);
    expect(() => makeRuntimeFolder(link, {})).toThrow('hold the sockets');
  });

  test('a folder that was chosen is used or refused, never passed over; $TMPDIR is only a wish', async () => {
    await using scratch = await scratchFolder();
    const long = join(scratch.path, 'x'.repeat(100));
    mkdirSync(long);
    expect(() => makeRuntimeFolder(long, {})).toThrow('hold the sockets');
    expect(() => makeRuntimeFolder(join(scratch.path, 'absent'), {})).toThrow('hold the sockets');
    const folder = makeRuntimeFolder(undefined, { TMPDIR: long });
    expect(folder).toMatch(/^\/tmp\/hpcserve-/);
    expect(makeRuntimeFolder(undefined, { TMPDIR: scratch.path })).toContain(scratch.path);
    rmdirSync(folder);
  });
});
