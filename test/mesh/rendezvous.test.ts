import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { symlinkSync } from 'node:fs';
import { chmod, mkdir, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { LocalSession, type RegistryChange, RendezvousRegistry, SessionIdentity } from '../../mesh/index.ts';
import { loadOrCreateNetworkKey } from '../../mesh/network-key.ts';
import { sealRecord } from '../../mesh/record-codec.ts';
import { RendezvousFolder } from '../../mesh/rendezvous-folder.ts';
import type { RendezvousOptions } from '../../mesh/rendezvous-registry.ts';
import { eventually, metadata, recordOf, scratchFolder } from './support.ts';

async function openRegistry(
  folder: string,
  options: Partial<RendezvousOptions> = {},
): Promise<RendezvousRegistry & AsyncDisposable> {
  const registry = await RendezvousRegistry.open(folder, {
    create: true,
    poll_ms: 50,
    refresh_min_ms: 0,
    ...options,
  });
  return Object.assign(registry, { [Symbol.asyncDispose]: () => registry.close() });
}

describe('the network key', () => {
  test('is one key for all who start at once, 0600 in a 0700 folder, and leaves nothing behind', async () => {
    await using scratch = await scratchFolder();
    const folder = join(scratch.path, 'mesh');
    const keys = await Promise.all(Array.from({ length: 20 }, () => loadOrCreateNetworkKey(folder)));
    expect(new Set(keys.map((key) => Buffer.from(key).toString('hex'))).size).toBe(1);
    expect(keys[0]).toHaveLength(32);
    expect(await readdir(folder)).toEqual(['network.key']);
    expect((await stat(join(folder, 'network.key'))).mode & 0o777).toBe(0o600);
    expect((await stat(folder)).mode & 0o777).toBe(0o700);
  });

  test.each([
    ['readable by others', 32, 0o644],
    ['writable by the group', 32, 0o660],
    ['cut off', 31, 0o600],
  ])('that is %s is refused', async (_what, bytes, mode) => {
    await using scratch = await scratchFolder();
    const path = join(scratch.path, 'network.key');
    await writeFile(path, randomBytes(bytes));
    await chmod(path, mode);
    await expect(loadOrCreateNetworkKey(scratch.path)).rejects.toMatchObject({ code: 'E_MESH_KEY' });
  });

  test('may be read by the group of a group mesh', async () => {
    await using scratch = await scratchFolder();
    const path = join(scratch.path, 'network.key');
    await writeFile(path, randomBytes(32));
    await chmod(path, 0o640);
    expect(await loadOrCreateNetworkKey(scratch.path)).toHaveLength(32);
  });
});

describe('a rendezvous folder', () => {
  test('with more files than are read forgets none that it knows', async () => {
    await using scratch = await scratchFolder();
    const folder = new RendezvousFolder(scratch.path, randomBytes(32), () => performance.now());
    await folder.prepare();
    const ids = Array.from({ length: 50 }, () => randomBytes(16).toString('hex'));
    for (const id of ids) await folder.write(id, 'rec', Buffer.from('first'));
    expect((await folder.scan(true)).changed).toHaveLength(50);
    for (let at = 0; at < 25_000; at++)
      symlinkSync('nothing', join(folder.sessions_folder, `${randomBytes(16).toString('hex')}.rec`));
    for (const id of ids) await folder.write(id, 'rec', Buffer.from('second'));
    for (const id of ids) await folder.write(id, 'left', Buffer.from('third'));
    const { present, changed, rejected } = await folder.scan(true);
    const files = ids.flatMap((id) => [`${id}.left`, `${id}.rec`]);
    expect(files.filter((name) => !present.has(name))).toEqual([]);
    expect(changed.map(({ file }) => file.name).sort()).toEqual(files.sort());
    expect(rejected.filter(({ rejection }) => rejection.reason === 'oversized')).toHaveLength(1);
  }, 60_000);

  test('shows every member the sessions of the others, and their changes', async () => {
    await using scratch = await scratchFolder();
    await using a = await openRegistry(scratch.path);
    await using b = await openRegistry(scratch.path);
    const seen: RegistryChange[] = [];
    b.onChange((changes) => seen.push(...changes));
    const session = await LocalSession.join(a, metadata);
    await eventually(() => b.get(session.id)?.lifecycle === 'JOIN', 'b sees the session');
    await session.update({ lifecycle: 'SERVING' });
    await session.update({ metadata: { engine_version: '2' } });
    await eventually(() => b.get(session.id)?.metadata.engine_version === '2', 'b sees the change');
    expect(b.get(session.id)).toEqual(session.record);
    await session.leave();
    await eventually(() => b.get(session.id)?.lifecycle === 'LEFT', 'b sees it leave');
    expect(seen[0]).toEqual({
      session_id: session.id,
      after: expect.objectContaining({ lifecycle: 'JOIN' }),
    });
    expect(seen.at(-1)).toMatchObject({ before: { lifecycle: 'SERVING' }, after: { lifecycle: 'LEFT' } });
    expect((await readdir(join(scratch.path, 'sessions'))).filter((name) => name.startsWith('.'))).toEqual(
      [],
    );
  });

  test('works by polling alone: each look notices what changed since the last', async () => {
    await using scratch = await scratchFolder();
    await using a = await openRegistry(scratch.path);
    // A clock in steps: after a minute without change a look is one stat, and must still notice the next change.
    let now_ms = 0;
    await using b = await openRegistry(scratch.path, {
      poll_ms: 20,
      thorough_ms: 1e12,
      now_ms: () => now_ms,
    });
    const session = await LocalSession.join(a, metadata);
    for (let version = 1; version <= 5; version++) {
      await session.update({ metadata: { engine_version: String(version) } });
      await eventually(() => b.get(session.id)?.version === version, `version ${version}`);
      now_ms += 60_000;
    }
  });

  test('never goes back, though an older file takes the place of a newer one', async () => {
    await using scratch = await scratchFolder();
    await using a = await openRegistry(scratch.path);
    const identity = await SessionIdentity.create();
    await a.publish(recordOf(identity, { version: 1 }), identity);
    const path = join(scratch.path, 'sessions', `${identity.session_id}.rec`);
    const old = await readFile(path);
    await using b = await openRegistry(scratch.path);
    await a.publish(recordOf(identity, { lifecycle: 'DOWN' }), identity);
    await eventually(() => b.get(identity.session_id)?.lifecycle === 'DOWN', 'b sees DOWN');
    await a.close();
    await writeFile(path, old);
    await b.refresh();
    await b.refresh();
    expect(b.get(identity.session_id)?.lifecycle).toBe('DOWN');
  });

  test('rejects and counts hostile files, and goes on', async () => {
    await using scratch = await scratchFolder();
    await using a = await openRegistry(scratch.path);
    const good = await SessionIdentity.create();
    const foreign = await SessionIdentity.create();
    const misplaced = await SessionIdentity.create();
    const sessions = join(scratch.path, 'sessions');
    const named = (digit: string): string => join(sessions, `${digit.repeat(32)}.rec`);
    await writeFile(named('1'), '');
    await writeFile(named('2'), randomBytes(500));
    await writeFile(named('3'), randomBytes(300_000));
    await writeFile(named('4'), sealRecord(recordOf(misplaced), misplaced, a.network_key));
    await writeFile(
      join(sessions, `${foreign.session_id}.rec`),
      sealRecord(recordOf(foreign), foreign, randomBytes(32)),
    );
    await symlink('/etc/passwd', named('5'));
    await mkdir(named('6'));
    execFileSync('mkfifo', [named('7')]); // opening it for reading would wait for ever
    await writeFile(join(sessions, 'a\nb'), 'x');
    await a.publish(recordOf(good), good);
    await a.refresh();
    expect(a.snapshot().map((record) => record.session_id)).toEqual([good.session_id]);
    expect(a.status().state).toBe('ok');
    expect(a.status().rejected).toEqual({ malformed: 5, oversized: 1, wrong_name: 2, foreign_key: 1 });
    await a.refresh();
    expect(a.status().rejected.malformed, 'each file is counted once').toBe(5);
    expect(a.status().recent_rejections).toContainEqual({
      file: `${foreign.session_id}.rec`,
      reason: 'foreign_key',
      message: 'not authenticated by the network key of this mesh',
    });
  });

  test('that vanishes is reported, keeps its view, and takes up what changed meanwhile when it is back', async () => {
    await using scratch = await scratchFolder();
    const folder = join(scratch.path, 'mesh');
    await using a = await openRegistry(folder);
    await using b = await openRegistry(folder);
    const session = await LocalSession.join(a, metadata);
    await eventually(() => b.get(session.id), 'b sees the session');

    await rename(folder, `${folder}.away`);
    await eventually(() => a.status().state === 'unreachable', 'a reports it');
    await eventually(() => b.status().state === 'unreachable', 'b reports it');
    await session.update({ lifecycle: 'SERVING' });
    expect(a.get(session.id)?.lifecycle).toBe('SERVING');
    expect(b.get(session.id)?.lifecycle).toBe('JOIN');
    await expect(stat(folder), 'nothing is written below a mount point').rejects.toThrow('ENOENT');

    await rename(`${folder}.away`, folder);
    await eventually(() => b.get(session.id)?.lifecycle === 'SERVING', 'b sees what changed');
    expect([a.status().state, b.status().state]).toEqual(['ok', 'ok']);
  });

  test('whose files were deleted is filled again by the living; the dead are forgotten', async () => {
    await using scratch = await scratchFolder();
    await using a = await openRegistry(scratch.path);
    const dead = await openRegistry(scratch.path);
    await using b = await openRegistry(scratch.path, { forget_after_ms: 200 });
    const session = await LocalSession.join(a, metadata);
    const ghost = await LocalSession.join(dead, metadata);
    await dead.close();
    await eventually(() => b.get(session.id) && b.get(ghost.id), 'b sees both');
    // Again where the living wrote meanwhile.
    await rm(join(scratch.path, 'sessions'), { recursive: true, maxRetries: 9, retryDelay: 5 });
    await eventually(() => b.get(ghost.id) === undefined, 'b forgets the dead one');
    await eventually(
      async () => (await readdir(join(scratch.path, 'sessions'))).length === 1,
      'a wrote again',
    );
    // It may have been taken for forgotten where that took a moment longer.
    await eventually(() => b.get(session.id), 'b sees the living one');
    expect(b.get(session.id)).toEqual(session.record);
  });

  test('that now belongs to another mesh is said to, and is not written to', async () => {
    await using scratch = await scratchFolder();
    const folder = join(scratch.path, 'mesh');
    await using a = await openRegistry(folder);
    await rename(folder, `${folder}.old`);
    await loadOrCreateNetworkKey(folder);
    await eventually(() => a.status().state === 'foreign_key', 'a notices');
    await LocalSession.join(a, metadata);
    expect(await readdir(folder)).toEqual(['network.key']);
  });

  test('without a mesh in it is an error where it may not be made', async () => {
    await using scratch = await scratchFolder();
    await expect(RendezvousRegistry.open(join(scratch.path, 'no'), { create: false })).rejects.toMatchObject({
      code: 'E_MESH_FOLDER',
    });
    expect(await readdir(scratch.path)).toEqual([]);
  });

  test('loses LEFT records and leftovers of dead writers after a while', async () => {
    await using scratch = await scratchFolder();
    await using a = await openRegistry(scratch.path, { compact_after_ms: 150 });
    await writeFile(join(scratch.path, 'sessions', '.tmp-dead'), 'half');
    const left = await LocalSession.join(a, metadata);
    const stays = await LocalSession.join(a, metadata);
    await left.leave();
    await eventually(() => a.get(left.id) === undefined, 'the LEFT record is forgotten');
    await eventually(async () => {
      return (await readdir(join(scratch.path, 'sessions'))).join() === `${stays.id}.rec`;
    }, 'only the living have files');
  });

  test('says again that a session is over which was compacted and comes back, as after a long stop', async () => {
    await using scratch = await scratchFolder();
    await using a = await openRegistry(scratch.path, { compact_after_ms: 1500 });
    const sessions = join(scratch.path, 'sessions');
    const stopped = await openRegistry(scratch.path);
    const session = await LocalSession.join(stopped, metadata);
    const file = join(sessions, `${session.id}.rec`);
    const bytes = await readFile(file);
    await stopped.close();
    await eventually(() => a.get(session.id), 'the session');
    await a.retire(session.id, 'taken for gone', await SessionIdentity.create());
    await eventually(async () => (await readdir(sessions)).length === 0, 'it is compacted');
    // What its process does when it goes on.
    await writeFile(file, bytes);
    await eventually(async () => (await readdir(sessions)).includes(`${session.id}.left`), 'it is told');
    expect([a.get(session.id), a.status().rejected.replayed]).toEqual([undefined, 1]);
    await eventually(async () => (await readdir(sessions)).length === 0, 'its files go again');
  });
});

describe('a session that a peer declares gone', () => {
  test('is LEFT for everybody, also for those who come later', async () => {
    await using scratch = await scratchFolder();
    const dead = await openRegistry(scratch.path);
    const session = await LocalSession.join(dead, metadata);
    await session.update({ lifecycle: 'SERVING' });
    await dead.close();
    await using a = await openRegistry(scratch.path);
    await using b = await openRegistry(scratch.path);
    const evidence: (string | undefined)[] = [];
    b.onChange((changes) => evidence.push(...changes.map((change) => change.tombstone_evidence)));
    await a.retire(session.id, 'Slurm job 42 ended: NODE_FAIL', await SessionIdentity.create());
    await eventually(() => b.get(session.id)?.lifecycle === 'LEFT', 'b believes it');
    expect(evidence).toEqual(['Slurm job 42 ended: NODE_FAIL']);
    await using late = await openRegistry(scratch.path);
    expect(late.get(session.id)?.lifecycle).toBe('LEFT');
  });

  test('comes back under a new id where it lives', async () => {
    await using scratch = await scratchFolder();
    await using a = await openRegistry(scratch.path);
    await using b = await openRegistry(scratch.path);
    const renewed: string[] = [];
    const session = await LocalSession.join(a, metadata, (previous) => renewed.push(previous));
    await session.update({ lifecycle: 'SERVING' });
    const before = session.id;
    await b.retire(before, 'it did not answer', await SessionIdentity.create());
    await eventually(() => renewed.length === 1, 'it noticed');
    expect(renewed).toEqual([before]);
    expect(session.id).not.toBe(before);
    await eventually(() => b.get(session.id)?.lifecycle === 'SERVING', 'b sees the new session');
    expect(b.get(before)?.lifecycle).toBe('LEFT');
  });
});
