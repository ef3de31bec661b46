/**
 * The folder lock on a local filesystem: by several processes, on several hosts by name; see
 * folder-lock-network.test.ts.
 */
import { spawn, spawnSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { FolderLock, type FolderLockOptions, type LockTrouble } from '../../host/folder-lock.ts';
import { LockCandidate } from '../../host/lock-candidate.ts';
import { holderOf, readLock, removeDead } from '../../host/lock-state.ts';
import { bootId, identityOf } from '../../host/process-identity.ts';
import { installPrograms } from '../cluster/install.ts';
import { contend, isRoot, LockProcess } from './lock-support.ts';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-lock-'));
  path = join(folder, 'lock');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** Short, for who waits for it; long, for who must not. */
const quick = { heartbeat_ms: 100, stale_ms: 700 };
const slow = { heartbeat_ms: 100, stale_ms: 60_000 };

const error = ({ kind, holder }: LockTrouble): Error =>
  Object.assign(new Error(`${kind} by ${holder?.command} on ${holder?.host}`), { kind });

function take(timeout_ms = 0, options: Partial<FolderLockOptions> = {}): Promise<FolderLock> {
  return FolderLock.acquire(path, { command: 'test', timeout_ms, times: quick, error, ...options });
}

/** What a holder of another host leaves behind. */
function abandoned(facts: object = {}): string {
  const entry = '0123456789abcdef01234567.41';
  const holder = { pid: 1, start_ticks: 1, boot_id: 'another', host: 'login99', command: 'stop', ...facts };
  mkdirSync(path);
  writeFileSync(join(path, entry), JSON.stringify(holder));
  return entry;
}

async function taken_ms(lock: Promise<FolderLock>): Promise<number> {
  const began_ms = performance.now();
  const held = await lock;
  held.assertHeld();
  held.release();
  return performance.now() - began_ms;
}

const lackingRoot = isRoot ? '' : ' [skipped: needs root]';

describe('one holder', () => {
  it('at a time; who waits gets it at its release, and nothing is left behind', async () => {
    const first = await take();
    await expect(take()).rejects.toThrow(`taken by test on ${hostname()}`);
    const waiting = take(5_000);
    first.release();
    const second = await waiting;
    expect(() => second.assertHeld()).not.toThrow();
    expect(() => first.assertHeld()).toThrow(/^lost/);
    second.release();
    expect(readdirSync(folder)).toEqual([]);
  });

  it('is known to those who look, by host and process', async () => {
    expect(holderOf(path)).toBe(undefined);
    const lock = await take(0, { job_id: '4711' });
    expect(holderOf(path)).toMatchObject({ ...identityOf(process.pid), host: hostname(), job_id: '4711' });
    lock.release();
    expect(holderOf(path)).toBe(undefined);
  });

  it('asserts it as often as it likes, also while a heartbeat is on its way', async () => {
    const lost: string[] = [];
    const lock = await take(0, {
      times: { heartbeat_ms: 1, stale_ms: 1000 },
      onLost: (why) => lost.push(why),
    });
    for (let index = 0; index < 500; index++) {
      lock.assertHeld();
      if (index % 10 === 0) await delay(1);
    }
    lock.release();
    await delay(20);
    expect(lost).toEqual([]);
    expect(readdirSync(folder)).toEqual([]);
  });

  it('learns that its lock was removed, and by whom it was taken', async () => {
    const lost: string[] = [];
    await take(0, { onLost: (why) => lost.push(why) });
    rmSync(path, { recursive: true });
    await expect.poll(() => lost).toEqual([`${path} was removed`]);
  });

  it('is refused with the same words each time where there is no folder for it', async () => {
    path = join(folder, 'missing', 'lock');
    const words = `ENOENT: no such file or directory, mkdir '${path}'`;
    await expect(take()).rejects.toThrow(words);
    writeFileSync(join(folder, 'missing'), 'a file');
    await expect(take()).rejects.toThrow(`ENOTDIR: not a directory, mkdir '${path}'`);
    expect(holderOf(path)).toBe(undefined);
  });

  it('may give up its waiting', async () => {
    const lock = await take();
    const stop = new AbortController();
    const waiting = take(60_000, { signal: stop.signal });
    stop.abort(new Error('enough'));
    await expect(waiting).rejects.toMatchObject({ name: 'AbortError' });
    lock.release();
    expect(readdirSync(folder)).toEqual([]);
  });
});

describe('processes that contend', () => {
  it('are never in it together', async () => {
    const found = await contend([path], slow, join(folder, 'mark'), { processes: 6, time_ms: 4000 });
    expect(found.together).toBe(0);
    expect(found.rounds).toBeGreaterThan(20);
    expect(readdirSync(folder)).toEqual([]);
  });
});

describe('a dead holder of this host', () => {
  it('killed: is followed at once', async () => {
    await using holder = new LockProcess(path, slow);
    expect(await holder.ask('acquire 0')).toMatchObject({ word: 'held' });
    await expect(take()).rejects.toThrow(/^taken/);
    holder.signal('SIGKILL');
    await new Promise((resolve) => holder.process.once('exit', resolve));
    expect(await taken_ms(take(0, { times: slow }))).toBeLessThan(1000);
  });

  it('a zombie: is followed at once', async () => {
    const script = `${process.execPath} -e 'process.stdout.write(String(process.pid))' & exec sleep 60`;
    const parent = spawn('sh', ['-c', script], { stdio: ['ignore', 'pipe', 'inherit'] });
    try {
      const pid = Number(await new Promise<Buffer>((resolve) => parent.stdout.once('data', resolve)));
      await expect.poll(() => readFileSync(`/proc/${pid}/stat`, 'utf8')).toContain(') Z ');
      abandoned({ ...identityOf(pid), host: hostname() });
      expect(holderOf(path)).toBe(undefined);
      expect(await taken_ms(take(0, { times: slow }))).toBeLessThan(1000);
    } finally {
      parent.kill('SIGKILL');
    }
  });

  it('is followed by exactly one of twenty', async () => {
    abandoned({ pid: spawnSync(process.execPath, ['-e', '']).pid, boot_id: bootId(), host: hostname() });
    const outcomes = await Promise.allSettled(Array.from({ length: 20 }, () => take()));
    const won = outcomes.filter((outcome) => outcome.status === 'fulfilled');
    expect(won).toHaveLength(1);
    won[0]!.value.assertHeld();
    won[0]!.value.release();
    expect(readdirSync(folder)).toEqual([]);
  });
});

describe.skipIf(!isRoot)(`people of one group${lackingRoot}`, () => {
  const people = [60_001, 60_002].map((uid) => ({ uid, group: 60_000 }));

  it.each([
    ['0', /^EACCES/],
    ['0 shared', undefined],
  ])('follow a dead one of them where the lock is shared: acquire %s', async (words, refused) => {
    // The umask of who takes it says nothing of the folder, which another made for the group.
    const umask = process.umask(0o077);
    try {
      chownSync(folder, people[0]!.uid, people[0]!.group);
      chmodSync(folder, 0o2770);
      await using holder = new LockProcess(path, slow, people[0]);
      await using other = new LockProcess(path, slow, people[1]);
      expect(await holder.ask(`acquire ${words}`)).toMatchObject({ word: 'held' });
      if (refused === undefined)
        expect(await other.ask(`acquire ${words}`)).toMatchObject({
          word: 'taken',
          pid: holder.process.pid,
        });
      holder.signal('SIGKILL');
      await new Promise((resolve) => holder.process.once('exit', resolve));
      const said = await other.ask(`acquire ${words}`);
      expect(said.message ?? said.word).toMatch(refused ?? 'held');
    } finally {
      process.umask(umask);
    }
  });
});

describe('a holder that only its heartbeat tells of', () => {
  it.each([
    ['on another host', {}],
    // Either it was rebooted, or another machine has its name.
    [
      'of this host’s name in another boot',
      { host: hostname(), ...identityOf(process.pid), boot_id: 'before' },
    ],
    ['of this host in a container', { host: hostname(), ...identityOf(1), pid_namespace: 'pid:[1]' }],
  ])('%s is followed when it stands still, and no sooner', async (_, facts) => {
    const entry = abandoned(facts);
    let count = 41;
    const beats = setInterval(() => {
      const name = (at: number): string => join(path, entry.replace('41', String(at)));
      renameSync(name(count), name(count + 1));
      count++;
    }, quick.heartbeat_ms);
    await expect(take(2 * quick.stale_ms)).rejects.toThrow(/^taken by (stop|undefined)/);
    clearInterval(beats);
    const waited_ms = await taken_ms(take());
    expect(waited_ms).toBeGreaterThan(quick.stale_ms - 1);
    expect(waited_ms).toBeLessThan(5000);
    expect(readdirSync(folder)).toEqual([]);
  });

  it('shown until a minute has passed without one', () => {
    abandoned();
    expect(holderOf(path)).toMatchObject({ host: 'login99' });
    const old = new Date(Date.now() - 120_000);
    utimesSync(path, old, old);
    expect(holderOf(path)).toBe(undefined);
  });

  it('goes on: what was seen of it before says nothing any more', async () => {
    const lock = await take(0, { times: { heartbeat_ms: 60_000, stale_ms: 60_000 } });
    const seen = readLock(path)!;
    lock.assertHeld();
    expect(removeDead(path, seen)).toBe(false);
    lock.assertHeld();
    lock.release();
  });

  it('was taken over: who saw it before that does no harm, nor does who had begun to take it', async () => {
    abandoned();
    const seen = readLock(path)!;
    const late = new LockCandidate(path, { command: 'late' });
    const lock = await take();
    expect(removeDead(path, seen)).toBe(false);
    expect(late.take()).toBe(false);
    late.discard();
    lock.assertHeld();
    lock.release();
    expect(readdirSync(folder)).toEqual([]);
  });

  it('is taken by one of twenty that wait for it', async () => {
    abandoned();
    const outcomes = await Promise.allSettled(Array.from({ length: 20 }, () => take()));
    expect(outcomes.filter((outcome) => outcome.status === 'fulfilled')).toHaveLength(1);
  });
});

describe('what a filesystem keeps of an entry that was removed while it was read', () => {
  const kept = ['.fuse_hidden0000074700000003', '.nfs00000000001a2b3c00000001'];

  it.each(kept)('%s is no holder, and not waited for', async (name) => {
    renameSync(join(path, abandoned()), join(path, name));
    const waited_ms = await taken_ms(take(0, { times: slow }));
    expect(waited_ms).toBeLessThan(5000);
    expect(readdirSync(folder)).toEqual([]);
  });

  it.each(kept)('%s beside the entry of a holder changes nothing for that one', async (name) => {
    const lock = await take();
    writeFileSync(join(path, name), '');
    await expect(take()).rejects.toThrow(/^taken by test/);
    lock.assertHeld();
    lock.release();
  });
});

it('what was killed while it took the lock leaves nothing for long', async () => {
  const token = '0123456789abcdef01234567';
  const left = join(folder, `.lock.${token}.taking`);
  mkdirSync(left);
  const holder = { pid: 1, start_ticks: 1, boot_id: bootId(), host: hostname(), command: 'x' };
  writeFileSync(join(left, `${token}.0`), JSON.stringify(holder));
  (await take()).release();
  expect(readdirSync(folder)).toEqual([]);
});

describe('a lock of the former release, which is a file', () => {
  const ofControl = {
    pid: 1,
    start_ticks: 1,
    boot_id: 'x',
    host: 'login99',
    nonce: 'x',
    command: 'hpcserve stop',
  };
  const ofGateway = { token: 't', hostname: 'login99', pid: 1, process_start: '1', since_ms: 1, beat: 7 };

  it('of a dead process of this host: is replaced at once', async () => {
    writeFileSync(path, JSON.stringify({ ...ofControl, boot_id: bootId(), host: hostname() }));
    expect(holderOf(path)).toBe(undefined);
    expect(await taken_ms(take(0, { times: slow }))).toBeLessThan(1000);
  });

  it('of a process that lives: is respected', async () => {
    const holder = { ...ofControl, ...identityOf(process.pid), host: hostname() };
    writeFileSync(path, JSON.stringify(holder));
    await expect(take()).rejects.toThrow('taken by hpcserve stop');
    expect(holderOf(path)).toMatchObject({ command: 'hpcserve stop' });
  });

  it.each([
    ['of a command', JSON.stringify(ofControl)],
    ['of a gateway', JSON.stringify(ofGateway)],
    ['that was cut off', ''],
  ])('%s on another host: is respected while it is written to, and then replaced', async (_, text) => {
    writeFileSync(path, text);
    let at_s = 1_000_000;
    const beats = setInterval(() => utimesSync(path, ++at_s, at_s), quick.heartbeat_ms);
    await expect(take(2 * quick.stale_ms)).rejects.toThrow(/^taken/);
    clearInterval(beats);
    expect(await taken_ms(take())).toBeGreaterThan(quick.stale_ms - 1);
    expect(existsSync(path)).toBe(false);
  });
});

describe.skipIf(!isRoot)(`several hosts${lackingRoot}`, () => {
  it('a stopped holder that is taken over notices before its next effect, and says so', async () => {
    await using first = new LockProcess(path, quick, { host: 'login1' });
    await using second = new LockProcess(path, quick, { host: 'login2' });
    expect(await first.ask('acquire 0')).toMatchObject({ word: 'held' });
    expect(await second.ask('acquire 0')).toMatchObject({ word: 'taken', host: 'login1' });
    first.signal('SIGSTOP');
    expect(await second.ask('acquire 0')).toMatchObject({ word: 'held' });
    first.signal('SIGCONT');
    const said = [await first.ask('assert'), await first.next()];
    expect(said.find(({ word }) => word === 'lost')).toMatchObject({ host: 'login2' });
    expect(said.find(({ word }) => word === 'onLost')?.reason).toMatch(/on login2 took /);
    expect(await second.ask('assert')).toMatchObject({ word: 'asserted' });
    // It cannot take away what is no longer its own.
    expect(await first.ask('release')).toMatchObject({ word: 'released' });
    expect(await second.ask('assert')).toMatchObject({ word: 'asserted' });
  });

  it('a stopped holder that nobody has followed goes on', async () => {
    await using holder = new LockProcess(path, quick, { host: 'login1' });
    await holder.ask('acquire 0');
    holder.signal('SIGSTOP');
    await delay(2 * quick.stale_ms);
    holder.signal('SIGCONT');
    expect(await holder.ask('assert')).toMatchObject({ word: 'asserted' });
  });

  it('a killed holder is followed by exactly one, however often', async () => {
    const names = ['login1', 'login2', 'login3', 'login4'];
    let holders: LockProcess[] = names.map((host) => new LockProcess(path, quick, { host }));
    try {
      for (let round = 0; round < 8; round++) {
        const said = await Promise.all(holders.map((each) => each.ask('acquire 0')));
        expect(said.map(({ word }) => word).sort()).toEqual(['held', 'taken', 'taken', 'taken']);
        const won = said.findIndex(({ word }) => word === 'held');
        expect(await holders[won]!.ask('assert')).toMatchObject({ word: 'asserted' });
        await holders[won]![Symbol.asyncDispose]();
        holders = holders.with(won, new LockProcess(path, quick, { host: names[won]! }));
      }
    } finally {
      for (const each of holders) await each[Symbol.asyncDispose]();
    }
  }, 60_000);
});

const clocks = await installPrograms(['faketime'], ['faketime']);
const lacking = isRoot ? (clocks.ready ? '' : ` [skipped: ${clocks.missing}]`) : lackingRoot;

describe.skipIf(lacking !== '')(`hosts whose clocks are wrong${lacking}`, () => {
  it.each([
    ['-1h', '+1h'],
    ['+1h', '-1h'],
  ])(
    'a holder at %s, one that wants it at %s: it is taken when it stands still, and no sooner',
    async (a, b) => {
      await using holder = new LockProcess(path, quick, { host: 'login1', clock: a });
      await using other = new LockProcess(path, quick, { host: 'login2', clock: b });
      await holder.ask('acquire 0');
      expect(await other.ask(`acquire ${2 * quick.stale_ms}`)).toMatchObject({
        word: 'taken',
        host: 'login1',
      });
      expect(await holder.ask('assert')).toMatchObject({ word: 'asserted' });
      holder.signal('SIGKILL');
      expect(await other.ask('acquire 0')).toMatchObject({ word: 'held' });
    },
  );
});
