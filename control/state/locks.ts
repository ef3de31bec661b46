/** The folder locks of control, and what they say to who cannot have one. */
import { briefLock, type FolderLockOptions, type LockTrouble } from '../../host/folder-lock.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

/** What a command says of itself when it asks for a lock. */
export type LockRequest = Pick<FolderLockOptions, 'command' | 'timeout_ms' | 'signal'>;

/** A lock around changes of a deployment or of what deployments share. */
export function aroundChange({ command, timeout_ms, signal }: LockRequest): FolderLockOptions {
  return { command, timeout_ms, signal, times: briefLock, error: deploymentLocked };
}

/** Who has a lock, as a reason. */
export function whoHolds({ holder, path }: LockTrouble): string {
  return holder
    ? `\`${holder.command}\` on ${holder.host}, process ${holder.pid}, holds ${path}`
    : `${path} is taken`;
}

function deploymentLocked(trouble: LockTrouble): HpcserveError {
  if (trouble.kind === 'taken')
    return new HpcserveError('E_DEPLOYMENT_LOCKED', {
      what: 'another hpcserve command is changing this deployment',
      because: whoHolds(trouble),
    });
  return new HpcserveError('E_DEPLOYMENT_LOCKED', {
    what: 'the lock of this deployment was lost',
    because: `${trouble.path} is no longer ours: this process paused so long that another took over`,
    try: 'run the command again',
  });
}
