/** The folder locks of control, and what they say to who cannot have one. */
import { briefLock, type FolderLockOptions, type LockTrouble } from '../../host/folder-lock.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';

/** What a command says of itself when it asks for a lock. */
export interface LockRequest extends Pick<FolderLockOptions, 'command' | 'timeout_ms' | 'signal'> {
  /** Hears of a lock that is waited for: who holds it, and since when. */
  emit?: ((event: ProgressEvent) => void) | undefined;
}

/** A lock around changes of a deployment or of what deployments share. */
export function aroundChange({ command, timeout_ms, signal, emit }: LockRequest): FolderLockOptions {
  return {
    command,
    timeout_ms,
    signal,
    times: briefLock,
    error: deploymentLocked,
    onWait: (trouble) => emit?.({ at_ms: Date.now(), kind: 'waiting', what: whoHolds(trouble) }),
  };
}

/** Who has a lock, as a reason. */
export function whoHolds({ holder, path }: LockTrouble): string {
  if (holder === undefined) return `${path} is taken`;
  const { command, host, pid, since_ms } = holder;
  // By the clock of its host, which may differ.
  const since = since_ms === undefined ? '' : `, since ${new Date(since_ms).toTimeString().slice(0, 8)}`;
  return `\`${command}\` on ${host}, process ${pid}, holds ${path}${since}`;
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
