/** One keeper a site, whichever login node it is on. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import { keeperFiles, type StateLayout } from '../../spec/state-layout.ts';
import { FolderLock } from '../folder-lock.ts';

/** @throws E_KEEPER_RUNNING with where the other one is */
export async function withKeeperLock<T>(
  layout: StateLayout,
  command: string,
  work: () => Promise<T>,
): Promise<T> {
  mkdirSync(layout.keeper_folder, { recursive: true, mode: 0o700 });
  const path = join(layout.keeper_folder, keeperFiles.lock);
  const lock = await FolderLock.acquire(path, { command, timeout_ms: 0 }).catch((error: unknown) => {
    if (!(error instanceof HpcserveError) || error.code !== 'E_DEPLOYMENT_LOCKED') throw error;
    throw new HpcserveError('E_KEEPER_RUNNING', {
      what: 'the deployments of this site are kept already',
      because: error.because,
    });
  });
  try {
    return await work();
  } finally {
    lock.release();
  }
}
