import { mkdtempSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';

/** `<folder>/u99-9/engine.sock` must fit into sun_path (108 bytes with its end). */
const path_bytes_max = 80;
/** What mkdtemp adds: `hpcserve-` and six characters, and the slash before. */
const name_bytes = 16;
const sticky = 0o1000;

/**
 * A folder of mode 0700 for sockets and keys, under a name that nobody can guess: in the folder that was chosen, else
 * in $TMPDIR or /tmp, whichever can hold it. Where others may write into the parent, its sticky bit must keep them from
 * putting another folder in the place of this one.
 *
 * @throws HpcserveError E_AGENT_RUNTIME_FOLDER
 */
export function makeRuntimeFolder(chosen: string | undefined, environment: NodeJS.ProcessEnv): string {
  const parents = chosen === undefined ? [environment.TMPDIR ?? tmpdir(), '/tmp'] : [chosen];
  const reasons: string[] = [];
  for (const parent of new Set(parents)) {
    try {
      return makeIn(parent);
    } catch (error) {
      reasons.push(`${parent}: ${(error as Error).message}`);
    }
  }
  throw new HpcserveError('E_AGENT_RUNTIME_FOLDER', {
    what: 'no folder of this node can hold the sockets of the agent',
    because: reasons,
  });
}

function makeIn(parent: string): string {
  if (Buffer.byteLength(parent) + name_bytes > path_bytes_max) {
    throw new Error('its path is too long for unix sockets');
  }
  const { mode } = statSync(parent);
  if ((mode & 0o022) !== 0 && (mode & sticky) === 0) {
    throw new Error('others may write into it and it has no sticky bit: they could replace what is in it');
  }
  return mkdtempSync(join(parent, 'hpcserve-')); // 0700, whatever the umask
}
