/** Whole files that appear at once, also on network filesystems and after a crash. */
import { randomBytes } from 'node:crypto';
import { closeSync, fsyncSync, openSync, readFileSync, renameSync, rmSync, writeSync } from 'node:fs';
import { dirname, join } from 'node:path';

/**
 * Writes a new file beside the target, forces it to disk and renames it into place: readers see the old
 * content or the new, never a part, and after a crash one of the two is there.
 */
export function writeFileAtomically(path: string, content: string, mode = 0o600): void {
  const temporary = join(dirname(path), `.${randomBytes(6).toString('hex')}.tmp`);
  const descriptor = openSync(temporary, 'wx', mode);
  try {
    writeAll(descriptor, content);
    fsyncSync(descriptor);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  } finally {
    closeSync(descriptor);
  }
  try {
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
  syncFolder(dirname(path));
}

function writeAll(descriptor: number, content: string): void {
  const bytes = Buffer.from(content);
  for (let offset = 0; offset < bytes.length; ) offset += writeSync(descriptor, bytes, offset);
}

/** Makes a rename durable. Some network filesystems refuse fsync on folders; their servers commit renames. */
function syncFolder(folder: string): void {
  const descriptor = openSync(folder, 'r');
  try {
    fsyncSync(descriptor);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EINVAL' && code !== 'ENOTSUP' && code !== 'EBADF') throw error;
  } finally {
    closeSync(descriptor);
  }
}

/** The parsed JSON of a file, or undefined where there is none; other failures are thrown. */
export function readJsonIfThere(path: string): unknown {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  return JSON.parse(text);
}
