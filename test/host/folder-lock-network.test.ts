/**
 * The folder lock on a network filesystem: one folder of an OpenSSH server, mounted twice by sshfs, as two hosts would.
 * sshfs keeps lists and attributes for 20 s without asking (here 2 s), which is longer than NFS does for a folder that
 * is opened, and than Lustre, which does not; and it knows no error for a folder that is not empty but EPERM.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { filesystemOf } from '../../host/filesystem.ts';
import { sshfsArguments, sshfsLacking } from '../cluster/network-folder.ts';
import { type SshServer, startSshServer } from '../slurm/ssh/server.ts';
import { contend, LockProcess } from './lock-support.ts';

const missing = await sshfsLacking();
const lacking = missing === '' ? '' : ` [skipped: ${missing}]`;
const times = { heartbeat_ms: 100, stale_ms: 1000 };
const cached_ms = 2000;

describe.skipIf(lacking !== '').each([
  ['that asks its server each time', ['-o', 'dir_cache=no', '-o', 'attr_timeout=0', '-o', 'entry_timeout=0']],
  ['that keeps what it heard', ['-o', `dcache_timeout=${cached_ms / 1000}`]],
])(`a network filesystem %s${lacking}`, (name, options) => {
  let server: SshServer;
  let base: string;
  /** The same folder, as two hosts have it. */
  let here: string;
  let there: string;
  const caches = name.includes('keeps');

  beforeAll(async () => {
    server = await startSshServer();
    base = mkdtempSync(join(tmpdir(), 'hpcserve-sshfs-'));
    for (const folder of ['data', 'here', 'there']) mkdirSync(join(base, folder));
    [here, there] = [join(base, 'here'), join(base, 'there')];
    for (const mount of [here, there])
      execFileSync('sshfs', sshfsArguments(server, join(base, 'data'), mount, options));
  }, 60_000);
  afterAll(async () => {
    for (const mount of [here, there]) if (mount) execFileSync('fusermount3', ['-u', '-z', mount]);
    await server?.stop();
    if (base) rmSync(base, { recursive: true, force: true });
  });

  it('is one, and has the caches that these tests are about', async () => {
    expect(filesystemOf(here)).toMatchObject({ network: true });
    mkdirSync(join(here, 'seen'));
    writeFileSync(join(here, 'seen', 'a.1'), '');
    expect(readdirSync(join(there, 'seen'))).toEqual(['a.1']);
    renameSync(join(here, 'seen', 'a.1'), join(here, 'seen', 'a.2'));
    expect(readdirSync(join(there, 'seen'))).toEqual([caches ? 'a.1' : 'a.2']);
    rmSync(join(here, 'seen'), { recursive: true });
  });

  it('lets one of several processes in at a time', async () => {
    const paths = [join(here, 'contended'), join(there, 'contended')];
    const mark = join(base, 'mark');
    const found = await contend(paths, { ...times, stale_ms: 60_000 }, mark, { processes: 4, time_ms: 5000 });
    expect(found.together).toBe(0);
    expect(found.rounds).toBeGreaterThan(4);
    expect(readdirSync(join(base, 'data'))).toEqual([]);
  }, 120_000);

  it('a holder that lives is not taken over, also by one whose list of the folder stands still', async () => {
    await using holder = new LockProcess(join(here, 'lives'), times, { host: 'login1' });
    await using other = new LockProcess(join(there, 'lives'), times, { host: 'login2' });
    expect(await holder.ask('acquire 0')).toMatchObject({ word: 'held' });
    // As long as what it heard is kept, and as it takes for a dead holder besides.
    expect(await other.ask(`acquire ${cached_ms + 1.5 * times.stale_ms}`)).toMatchObject({ word: 'taken' });
    expect(await holder.ask('assert')).toMatchObject({ word: 'asserted' });
    expect(await holder.ask('release')).toMatchObject({ word: 'released' });
    expect(await other.ask('acquire 30000')).toMatchObject({ word: 'held' });
  }, 60_000);

  it('a stopped holder is followed, notices before its next effect, and cannot take it back', async () => {
    await using first = new LockProcess(join(here, 'stopped'), times, { host: 'login1' });
    await using second = new LockProcess(join(there, 'stopped'), times, { host: 'login2' });
    expect(await first.ask('acquire 0')).toMatchObject({ word: 'held' });
    first.signal('SIGSTOP');
    expect(await second.ask('acquire 0')).toMatchObject({ word: 'held' });
    first.signal('SIGCONT');
    const said = [await first.ask('assert'), await first.next()].map(({ word }) => word);
    expect(said.sort()).toEqual(['lost', 'onLost']);
    expect(await second.ask('assert')).toMatchObject({ word: 'asserted' });
    expect(await first.ask('release')).toMatchObject({ word: 'released' });
    expect(await second.ask('assert')).toMatchObject({ word: 'asserted' });
  }, 60_000);

  it('a killed holder is followed by exactly one', async () => {
    const names = ['login1', 'login2', 'login3', 'login4'];
    let holders = names.map(
      (host, index) => new LockProcess(join(index % 2 ? there : here, 'killed'), times, { host }),
    );
    try {
      for (let round = 0; round < 3; round++) {
        const said = await Promise.all(holders.map((each) => each.ask('acquire 0')));
        expect(said.map(({ word }) => word).sort()).toEqual(['held', 'taken', 'taken', 'taken']);
        const won = said.findIndex(({ word }) => word === 'held');
        await holders[won]![Symbol.asyncDispose]();
        const path = join(won % 2 ? there : here, 'killed');
        holders = holders.with(won, new LockProcess(path, times, { host: names[won]! }));
      }
    } finally {
      for (const each of holders) await each[Symbol.asyncDispose]();
    }
  }, 180_000);
});
