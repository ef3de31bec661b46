import { join } from 'node:path';
import { FolderLock, type LockTrouble, lastingLock } from '../host/folder-lock.ts';
import { holderOf } from '../host/lock-state.ts';
import { HpcserveError } from '../spec/errors/error.ts';

const lockName = 'gateway.lock';

/** Whether a gateway runs on a folder: on this host for sure, on others as far as one look tells. */
export function isGatewayThere(folder: string): boolean {
  return holderOf(join(folder, lockName)) !== undefined;
}

/**
 * One gateway at a time for a folder.
 * @param onLost another gateway took the folder, since this one seemed dead: this one must stop writing
 * @throws E_GATEWAY_RUNNING with who has it, E_GATEWAY_FOLDER
 */
export async function lockGatewayFolder(
  folder: string,
  onLost: (reason: string) => void,
): Promise<FolderLock> {
  const path = join(folder, lockName);
  try {
    return await FolderLock.acquire(path, {
      command: 'hpcserve gateway',
      job_id: process.env.SLURM_JOB_ID,
      timeout_ms: 0,
      times: lastingLock,
      error: running,
      onLost,
    });
  } catch (error) {
    if (error instanceof HpcserveError) throw error;
    throw new HpcserveError('E_GATEWAY_FOLDER', {
      what: `the lock ${path} cannot be taken`,
      because: (error as Error).message,
      cause: error,
    });
  }
}

function running({ path, holder }: LockTrouble): HpcserveError {
  const what = 'another gateway runs on this folder';
  if (!holder) return new HpcserveError('E_GATEWAY_RUNNING', { what, because: `somebody holds ${path}` });
  const { pid, host, job_id, since_ms } = holder;
  const job = job_id === undefined ? '' : ` (Slurm job ${job_id})`;
  const since = since_ms === undefined ? '' : ` since ${new Date(since_ms).toISOString()}`;
  return new HpcserveError('E_GATEWAY_RUNNING', {
    what,
    because: `process ${pid} on ${host}${job} has held ${path}${since}`,
    details: { pid, hostname: host, job_id },
  });
}
