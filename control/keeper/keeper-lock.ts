/** One process a site for each service, whichever login node it is on. */
import { dirname, join } from 'node:path';
import { FolderLock, lastingLock } from '../../host/folder-lock.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { keeperFiles, type StateLayout, scavengerFiles } from '../../spec/state-layout.ts';
import { aroundChange, whoHolds } from '../state/locks.ts';

/** @throws E_KEEPER_RUNNING with where the other one is */
export function withKeeperLock<T>(layout: StateLayout, command: string, work: () => Promise<T>): Promise<T> {
  return alone(join(layout.keeper_folder, keeperFiles.lock), command, work, {
    code: 'E_KEEPER_RUNNING',
    what: 'the deployments of this site are kept already',
  });
}

/**
 * Starts or ends the keeper while no other command does. Without it, of two commands that start one at once the second
 * keeper could come up when the first was ended already, and `stop` would leave a process behind.
 * @throws E_DEPLOYMENT_LOCKED
 */
export async function withKeeperStartLock<T>(
  layout: StateLayout,
  { command, signal }: { command: string; signal: AbortSignal },
  work: () => Promise<T>,
): Promise<T> {
  makeFolders(layout.keeper_folder);
  const path = join(layout.keeper_folder, keeperFiles.start_lock);
  const lock = await FolderLock.acquire(path, aroundChange({ command, signal, timeout_ms: startWait_ms }));
  try {
    return await work();
  } finally {
    lock.release();
  }
}

/** How long another command may start or end the keeper, ms: it waits for the end of a Slurm command. */
const startWait_ms = 100_000;

/** @throws E_BACKFILL_RUNNING with where the other one is */
export function withScavengerLock<T>(
  layout: StateLayout,
  command: string,
  work: () => Promise<T>,
): Promise<T> {
  return alone(join(layout.scavenger_folder, scavengerFiles.lock), command, work, {
    code: 'E_BACKFILL_RUNNING',
    what: 'the idle nodes of this site are looked after already',
  });
}

async function alone<T>(
  path: string,
  command: string,
  work: () => Promise<T>,
  running: { code: 'E_KEEPER_RUNNING' | 'E_BACKFILL_RUNNING'; what: string },
): Promise<T> {
  makeFolders(dirname(path));
  const lock = await FolderLock.acquire(path, {
    command,
    timeout_ms: 0,
    times: lastingLock,
    error: (trouble) => new HpcserveError(running.code, { what: running.what, because: whoHolds(trouble) }),
  });
  try {
    return await work();
  } finally {
    lock.release();
  }
}
