import { randomBytes } from 'node:crypto';
import { mkdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { AgentLog } from './log.ts';

/** `<folder>/u99-9/engine.sock` must fit into sun_path (108 bytes with its end). */
const path_bytes_max = 80;
/** A slash, `hpcserve-`, and six random characters. */
const name_bytes = 16;
const sticky = 0o1000;
/** Names that are tried. Others see a name in the guard's command line before the folder is there. */
const names_max = 3;

/** Removes a folder when the agent has ended, however it ended. */
export interface FolderGuard {
  /** There is no folder of ours: nothing is removed. */
  abandon(): void;
}

/**
 * A folder of mode 0700 for sockets and keys, under a name that nobody can guess: in the folder that was chosen, else
 * in $TMPDIR or /tmp, whichever can hold it. Where others may write into the parent, its sticky bit must keep them from
 * putting another folder in the place of this one.
 *
 * @param guard of a folder that is about to be made: an agent that is killed at any moment leaves none behind
 * @throws HpcserveError E_AGENT_RUNTIME_FOLDER
 */
export function makeRuntimeFolder<Guard extends FolderGuard>(
  chosen: string | undefined,
  environment: NodeJS.ProcessEnv,
  guard: (folder: string) => Guard,
): { folder: string; guard: Guard } {
  const parents = chosen === undefined ? [environment.TMPDIR ?? tmpdir(), '/tmp'] : [chosen];
  const reasons: string[] = [];
  for (const parent of new Set(parents)) {
    try {
      return makeIn(parent, guard);
    } catch (error) {
      reasons.push(`${parent}: ${(error as Error).message}`);
    }
  }
  throw new HpcserveError('E_AGENT_RUNTIME_FOLDER', {
    what: 'no folder of this node can hold the sockets of the agent',
    because: reasons,
  });
}

function makeIn<Guard extends FolderGuard>(
  parent: string,
  guard: (folder: string) => Guard,
): { folder: string; guard: Guard } {
  if (Buffer.byteLength(parent) + name_bytes > path_bytes_max) {
    throw new Error('its path is too long for unix sockets');
  }
  const { mode } = statSync(parent);
  if ((mode & 0o022) !== 0 && (mode & sticky) === 0) {
    throw new Error('others may write into it and it has no sticky bit: they could replace what is in it');
  }
  for (let names = 1; ; names++) {
    const folder = join(parent, `hpcserve-${randomBytes(5).toString('base64url').slice(0, 6)}`);
    const standing = guard(folder);
    try {
      mkdirSync(folder, { mode: 0o700 });
      return { folder, guard: standing };
    } catch (error) {
      standing.abandon(); // the name may be that of somebody else's folder
      if (names === names_max || (error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
  }
}

/** Of one start. The guard takes what is left of it with the agent's own. */
export function removeRuntimeFolder(path: string, log: AgentLog): void {
  try {
    rmSync(path, { recursive: true, force: true });
  } catch (error) {
    log.warn({ path, reason: (error as Error).message }, 'a runtime folder is not removed');
  }
}
