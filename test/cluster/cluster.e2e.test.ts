/** The test cluster itself: starts and stops from any state, and leaves nothing behind. */
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { prepareBase, readState, startCluster, stopCluster } from './cluster.ts';
import { ensureSlurmInstalled } from './install.ts';
import { clusterFolders } from './layout.ts';
import { withLock } from './lock.ts';
import { daemonProcesses, isAlive, waitUntil } from './processes.ts';
import { acquireCluster, liveLeases } from './shared.ts';

const name = `self-${process.pid}`;
const folders = clusterFolders(name);
beforeAll(async () => {
  const installation = await ensureSlurmInstalled();
  if (!installation.ready) throw new Error(installation.missing);
});
afterAll(async () => {
  await stopCluster(name);
  rmSync(folders.base, { recursive: true, force: true });
});

test('up twice is one cluster; down leaves no process and no file; down again is no error', async () => {
  const first = await startCluster(name);
  const second = await startCluster(name);
  expect(second.state.daemons).toEqual(first.state.daemons);
  expect(first.state.daemons).toHaveLength(8);
  expect(await stopCluster(name)).toEqual({ was_up: true, killed: [] });
  expect(daemonProcesses(folders.base)).toEqual([]);
  expect(existsSync(folders.run)).toBe(false);
  expect(await stopCluster(name)).toEqual({ was_up: false, killed: [] });
});

test('a cluster whose daemons died is started anew', async () => {
  const first = await startCluster(name);
  const controller = first.state.daemons.find((daemon) => daemon.name === 'slurmctld')!;
  process.kill(controller.pid, 'SIGKILL');
  await waitUntil(() => !isAlive(controller.pid), 5_000);
  const second = await startCluster(name);
  expect(second.state.daemons.map(({ pid }) => pid)).not.toContain(controller.pid);
  const sinfo = await second.runAs('user', ['sinfo', '--noheader', '--format=%D', '--partition=scavenge']);
  expect(sinfo.stdout.trim()).toBe('6');
  await stopCluster(name);
});

test('jobs run as an ordinary user, see the GPUs they asked for, and what they leave running is found', async () => {
  const cluster = await startCluster(name);
  const job = await cluster.runAs('user', [
    'srun',
    '--partition=a100',
    '--gres=gpu:a100:2',
    'bash',
    '-c',
    'id -u; echo $CUDA_VISIBLE_DEVICES',
  ]);
  expect(job.stdout.trim().split('\n')).toEqual([String(cluster.user.uid), '0,1']);
  if (process.getuid?.() === 0) expect(cluster.user.uid).not.toBe(0);
  await cluster.runAs('user', ['sbatch', '--output=/dev/null', '--partition=cpu'], {
    input: '#!/bin/bash\nsetsid sleep 120 &\nsleep 120\n',
  });
  expect(
    await waitUntil(() => cluster.jobProcesses().some(({ command }) => command === 'sleep 120'), 10_000),
  ).toBe(true);
  await stopCluster(name);
  expect(cluster.jobProcesses()).toEqual([]);
});

test('leases: the last one stops the cluster, those of dead processes do not count', async () => {
  const first = await acquireCluster(name);
  const second = await acquireCluster(name);
  writeFileSync(`${folders.leases}/4194303-gone`, '');
  expect(liveLeases(folders)).toBe(2);
  expect(await first.release()).toBeUndefined();
  expect(await first.release()).toBeUndefined();
  expect(readState(folders)).toBeDefined();
  expect(await second.release()).toMatchObject({ was_up: true });
  expect(readState(folders)).toBeUndefined();
});

test('a lock of a dead process is taken over, one of a live process is waited for', async () => {
  prepareBase(name);
  writeFileSync(folders.lock, '4194303\n');
  expect(await withLock(folders.lock, 2_000, async () => readFileSync(folders.lock, 'utf8').trim())).toBe(
    String(process.pid),
  );
  await withLock(folders.lock, 1_000, async () => {
    await expect(withLock(folders.lock, 100, async () => 1)).rejects.toThrow(/still held by process/);
  });
  expect(existsSync(folders.lock)).toBe(false);
});
