/**
 * A cluster for a test file. Files that run at the same time get clusters of their own (one for each worker
 * of the test runner), so that no test sees another's jobs; starting one takes about a second. Within one
 * worker holders share: each writes a lease with its process id, the first starts the cluster, the last to
 * let go stops it. Leases of dead processes do not count.
 */
import { randomUUID } from 'node:crypto';
import { readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  type Cluster,
  type ClusterOptions,
  prepareBase,
  type StopReport,
  startLocked,
  stopLocked,
} from './cluster.ts';
import type { ClusterFolders } from './layout.ts';
import { withLock } from './lock.ts';
import { isAlive } from './processes.ts';

export interface ClusterLease {
  readonly cluster: Cluster;
  /** Gives the cluster back; a report comes with the last one, which stops it. Calling it twice does nothing. */
  release(): Promise<StopReport | undefined>;
}

const lock_timeout_ms = 120_000;

/**
 * The cluster of a test worker: this one, or the first outside of any. Who runs tests of
 * several checkouts on one machine gives each a name by `HPCSERVE_TEST_CLUSTER`, which goes for all clusters of a run.
 * @param purpose of one beside it, for a suite that needs the whole of a cluster, or another kind
 */
export function testClusterName(
  purpose?: string,
  worker: string | number = process.env.VITEST_POOL_ID ?? 1,
): string {
  const names = [process.env.HPCSERVE_TEST_CLUSTER ?? 'test', purpose, worker];
  return names.filter((name) => name !== undefined).join('-');
}

/** Takes a share in the cluster `name`, starting it when nobody had it; the first holder finds it without jobs. */
export async function acquireCluster(
  name = testClusterName(),
  options: ClusterOptions = {},
): Promise<ClusterLease> {
  const folders = prepareBase(name, options.shape);
  const lease = join(folders.leases, `${process.pid}-${randomUUID()}`);
  const cluster = await withLock(folders.lock, lock_timeout_ms, async () => {
    const started = await startLocked(name, folders, options);
    if (liveLeases(folders) === 0) await started.cancelAllJobs();
    writeFileSync(lease, '');
    return started;
  });
  let held = true;
  return {
    cluster,
    release: async () => {
      if (!held) return undefined;
      held = false;
      return withLock(folders.lock, lock_timeout_ms, async () => {
        rmSync(lease, { force: true });
        return liveLeases(folders) === 0 ? stopLocked(folders) : undefined;
      });
    },
  };
}

/** How many live processes hold a lease; removes those of dead ones. */
export function liveLeases(folders: ClusterFolders): number {
  let live = 0;
  for (const name of readdirSync(folders.leases)) {
    if (isAlive(Number.parseInt(name, 10))) live++;
    else rmSync(join(folders.leases, name), { force: true });
  }
  return live;
}
