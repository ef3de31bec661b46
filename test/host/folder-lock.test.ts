import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { FolderLock } from '../../host/folder-lock.ts';
import { bootId } from '../../host/process-identity.ts';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-lock-'));
  path = join(folder, 'lock');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const take = (timeout_ms = 0): Promise<FolderLock> =>
  FolderLock.acquire(path, { command: 'test', timeout_ms });

it('is held by one at a time, and waits for its release', async () => {
  const first = await take();
  await expect(take()).rejects.toMatchObject({ code: 'E_DEPLOYMENT_LOCKED' });
  const waiting = take(5_000);
  first.release();
  const second = await waiting;
  expect(() => second.assertHeld()).not.toThrow();
  expect(() => first.assertHeld()).toThrow(/lost/);
  second.release();
  expect(readdirSync(folder)).toEqual([]);
});

it('is taken over at once from a dead process of this host', async () => {
  const dead = spawnSync(process.execPath, ['-e', '']).pid;
  const host = (await import('node:os')).hostname();
  const owner = {
    pid: dead,
    start_ticks: 1,
    boot_id: bootId(),
    host,
    nonce: 'x',
    command: 'hpcserve deploy',
  };
  writeFileSync(path, JSON.stringify(owner));
  const lock = await take();
  lock.assertHeld();
  lock.release();
});

it('is taken over from another host only when its heartbeat is old', async () => {
  const owner = {
    pid: 1,
    start_ticks: 1,
    boot_id: 'another',
    host: 'login99',
    nonce: 'x',
    command: 'hpcserve stop',
  };
  writeFileSync(path, JSON.stringify(owner));
  await expect(take()).rejects.toThrowError(
    expect.objectContaining({ because: [expect.stringMatching(/login99/)] }),
  );
  const old = new Date(Date.now() - 120_000);
  utimesSync(path, old, old);
  (await take()).release();
  expect(existsSync(path)).toBe(false);
});

it('goes to exactly one of many that find it stale', async () => {
  const owner = { pid: 1, start_ticks: 1, boot_id: 'another', host: 'login99', nonce: 'x', command: 'c' };
  writeFileSync(path, JSON.stringify(owner));
  const old = new Date(Date.now() - 120_000);
  utimesSync(path, old, old);
  const outcomes = await Promise.allSettled(Array.from({ length: 20 }, () => take()));
  const won = outcomes.filter((outcome) => outcome.status === 'fulfilled');
  expect(won).toHaveLength(1);
  for (const outcome of won) outcome.value.release();
});
