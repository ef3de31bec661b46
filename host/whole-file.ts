/**
 * Whole files that appear at once. One way for all of them:
 *
 *   .tmp-<random>   made beside the target, for its owner alone unless `mode` says otherwise
 *        │ write, fsync         a full disk or quota is heard of here, while the old file is still in place
 *        │ rename(2)            readers see the old content or the new, never a part; of several writers one wins
 *   target
 *        │ fsync of the folder  the new name outlives a crash of this machine
 *
 * On NFS and Lustre rename is one operation of the server, and fsync returns when the server has the bytes. A reader on
 * another host that opens the file after the rename gets the new one (close-to-open). One that has the old file open
 * goes on in the old one, or on NFS is told ESTALE. What fails leaves the old file as it was and no other file behind;
 * only whom SIGKILL meets in between leaves a `.tmp-` file.
 */
import { closeSync, fsyncSync, openSync, readFileSync, renameSync, rmSync, writeSync } from 'node:fs';
import { type FileHandle, open, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { spokenOf, temporaryBeside } from './temporary-name.ts';

/**
 * What a crash of this machine right after the call may take away.
 * - `name`: nothing. For what nobody can find out again: deployments, keys, answers to who did what.
 * - `content`: the change, never the content: the old file or the new one is there, whole. For what is written again
 *   and again: states, measurements, records. Saves one fsync, which on a shared filesystem waits for its metadata
 *   server.
 * - `nothing`: the file may be there and empty. For caches whose readers take a damaged file for none. A full quota may
 *   be heard of by nobody.
 */
type Durability = 'name' | 'content' | 'nothing';

export interface WholeFileOptions {
  /** Of the new file, whatever the old one's was; the umask takes from it. 0600 unless said. */
  mode?: number;
  /** `name` unless said. */
  durability?: Durability;
}

/**
 * Writes a new file and puts it in the place of the old one. @throws the system's error; the old file is as it was then
 */
export function writeFileAtomically(
  path: string,
  content: string | Uint8Array,
  { mode = 0o600, durability = 'name' }: WholeFileOptions = {},
): void {
  const temporary = temporaryBeside(path);
  try {
    const descriptor = openSync(temporary, 'wx', mode);
    try {
      const bytes = Buffer.from(content);
      for (let offset = 0; offset < bytes.length; ) offset += writeSync(descriptor, bytes, offset);
      if (durability !== 'nothing') fsyncSync(descriptor);
    } finally {
      closeSync(descriptor);
    }
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw spokenOf(path, temporary, error);
  }
  if (durability === 'name') syncFolder(dirname(path));
}

/**
 * The same for processes that answer others meanwhile. @param finish is given the file before it gets its name: owner
 * and group
 */
export async function writeFileAtomicallyAsync(
  path: string,
  content: string | Uint8Array | AsyncIterable<Uint8Array>,
  {
    mode = 0o600,
    durability = 'name',
    finish,
  }: WholeFileOptions & { finish?: (file: FileHandle) => Promise<void> } = {},
): Promise<void> {
  const temporary = temporaryBeside(path);
  try {
    const file = await open(temporary, 'wx', mode);
    try {
      await writeFile(file, content);
      await finish?.(file);
      if (durability !== 'nothing') await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => undefined); // the first error is the one to report
    throw spokenOf(path, temporary, error);
  }
  if (durability === 'name') await syncPath(dirname(path)).catch(unlessRefused);
}

/** A symbolic link that points elsewhere from one moment to the next. */
export async function replaceLink(path: string, target: string): Promise<void> {
  const temporary = temporaryBeside(path);
  await symlink(target, temporary);
  try {
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw spokenOf(path, temporary, error);
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

/** What was written to a file or folder, by whomever, is on disk afterwards. */
export async function syncPath(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

function syncFolder(folder: string): void {
  const descriptor = openSync(folder, 'r');
  try {
    fsyncSync(descriptor);
  } catch (error) {
    unlessRefused(error);
  } finally {
    closeSync(descriptor);
  }
}

/** Some network filesystems refuse fsync on folders; their servers commit a rename before they answer. */
function unlessRefused(error: unknown): void {
  const { code } = error as NodeJS.ErrnoException;
  if (code !== 'EINVAL' && code !== 'ENOTSUP' && code !== 'EBADF') throw error;
}
