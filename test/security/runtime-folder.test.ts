import { chmodSync, existsSync, mkdirSync, readdirSync, rmdirSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { OrphanGuard } from '../../agent/node/orphan-guard.ts';
import { makeRuntimeFolder } from '../../agent/node/runtime-folder.ts';
import { eventually, scratchFolder } from '../mesh/support.ts';

const unguarded = () => ({ abandon: () => undefined });
const make = (chosen: string | undefined, environment: NodeJS.ProcessEnv = {}): string =>
  makeRuntimeFolder(chosen, environment, unguarded).folder;

describe('the folder for sockets and keys on a node', () => {
  test('is 0700 under a name of its own each time, whatever the umask', async () => {
    await using scratch = await scratchFolder();
    const before = process.umask(0);
    const folders = Array.from({ length: 50 }, () => make(scratch.path));
    process.umask(before);
    expect(new Set(folders).size).toBe(50);
    for (const folder of folders) expect(statSync(folder).mode & 0o777).toBe(0o700);
  });

  test('is not made where others could put another in its place', async () => {
    await using scratch = await scratchFolder();
    chmodSync(scratch.path, 0o777);
    expect(() => make(scratch.path)).toThrow(
      expect.objectContaining({
        code: 'E_AGENT_RUNTIME_FOLDER',
        because: [expect.stringContaining('no sticky bit')],
      }),
    );
    expect(readdirSync(scratch.path)).toEqual([]);
    chmodSync(scratch.path, 0o1777);
    expect(make(scratch.path)).toContain(scratch.path);
    const link = join(scratch.path, 'link');
    chmodSync(scratch.path, 0o777);
    symlinkSync(scratch.path, link);
    expect(() => make(link)).toThrow('hold the sockets');
  });

  test('a folder that was chosen is used or refused, never passed over; $TMPDIR is only a wish', async () => {
    await using scratch = await scratchFolder();
    const long = join(scratch.path, 'x'.repeat(100));
    mkdirSync(long);
    expect(() => make(long)).toThrow('hold the sockets');
    expect(() => make(join(scratch.path, 'absent'))).toThrow('hold the sockets');
    const folder = make(undefined, { TMPDIR: long });
    expect(folder).toMatch(/^\/tmp\/hpcserve-/);
    expect(make(undefined, { TMPDIR: scratch.path })).toContain(scratch.path);
    rmdirSync(folder);
  });

  test('has its guard before it is there, and the guard removes nothing where it could not be made', async () => {
    await using scratch = await scratchFolder();
    const guarded: string[] = [];
    const { folder, guard } = makeRuntimeFolder(scratch.path, {}, (path) => {
      expect(readdirSync(scratch.path)).toEqual([]);
      guarded.push(path);
      return new OrphanGuard(path);
    });
    expect(guarded).toEqual([folder]);
    guard.close(); // as when the agent is killed
    await eventually(() => readdirSync(scratch.path).length === 0, 'the folder is gone');

    const others: string[] = [];
    const guards: OrphanGuard[] = [];
    const quicker = (path: string): OrphanGuard => {
      mkdirSync(path); // by somebody else
      others.push(path);
      guards.push(new OrphanGuard(path));
      return guards.at(-1)!;
    };
    expect(() => makeRuntimeFolder(scratch.path, {}, quicker)).toThrow(
      expect.objectContaining({ because: [expect.stringContaining('EEXIST')] }),
    );
    expect(others).toHaveLength(3);
    for (const { pid } of guards) await eventually(() => !existsSync(`/proc/${pid}`), 'its guard is gone');
    expect(statSync(others[0]!).isDirectory()).toBe(true);
  });
});
