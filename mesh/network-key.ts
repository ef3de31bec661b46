/**
 * The secret that makes a mesh: who can read `network.key` is a member. Records carry an HMAC under it, so a
 * file that a stranger puts into the rendezvous folder does not count.
 */
import { createHash, randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { link, open, stat, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { makeFolders } from '../host/make-folders.ts';
import { HpcserveError } from '../spec/errors/error.ts';

const networkKeyFile = 'network.key';
const key_bytes = 32;

/**
 * Reads the network key of a mesh; makes folder (0700) and key (0600) where there is none. Of several
 * processes that start at once, on any hosts, one key wins: link(2) fails where the name is taken, on NFS too.
 *
 * @throws HpcserveError E_MESH_KEY, E_MESH_FOLDER
 */
export async function loadOrCreateNetworkKey(meshFolder: string): Promise<Uint8Array> {
  const path = join(meshFolder, networkKeyFile);
  try {
    makeFolders(meshFolder);
  } catch (error) {
    throw folderError(meshFolder, error);
  }
  const existing = await readNetworkKey(meshFolder);
  if (existing) return existing;

  const temporary = join(meshFolder, `.network.key-${process.pid}-${randomBytes(6).toString('hex')}`);
  try {
    const file = await open(temporary, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600);
    try {
      await file.writeFile(randomBytes(key_bytes));
      await file.sync();
    } finally {
      await file.close();
    }
    await link(temporary, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw folderError(meshFolder, error);
  } finally {
    await unlink(temporary).catch(ignoreMissing);
  }
  const key = await readNetworkKey(meshFolder);
  if (key) return key;
  throw keyError(path, 'it vanished right after it was written');
}

/**
 * The network key of a mesh; undefined where the mesh has none yet.
 *
 * @throws HpcserveError E_MESH_KEY where the file is unreadable, of a wrong size, or open to others
 */
export async function readNetworkKey(meshFolder: string): Promise<Uint8Array | undefined> {
  const path = join(meshFolder, networkKeyFile);
  let file: Awaited<ReturnType<typeof open>>;
  try {
    file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw keyError(path, String((error as Error).message), error);
  }
  try {
    const found = await file.stat();
    if (!found.isFile()) throw keyError(path, 'it is not a regular file');
    if ((found.mode & 0o037) !== 0) {
      throw keyError(path, `its mode is ${octal(found.mode)}: others could have read or written it`);
    }
    const folder = await stat(meshFolder);
    if ((folder.mode & 0o002) !== 0) {
      throw keyError(
        path,
        `the mode of its folder is ${octal(folder.mode)}: anybody could have put it there`,
      );
    }
    // In a group's folder any member of the group could put a key in the place of the mesh's own.
    if (![process.getuid!(), folder.uid, 0].includes(found.uid)) {
      throw keyError(path, `it belongs to user id ${found.uid}, neither you nor the owner of the folder`);
    }
    if (found.size !== key_bytes) throw keyError(path, `it has ${found.size} bytes instead of ${key_bytes}`);
    const key = new Uint8Array(key_bytes);
    const { bytesRead } = await file.read(key, 0, key_bytes, 0);
    if (bytesRead !== key_bytes) throw keyError(path, `only ${bytesRead} of its bytes could be read`);
    return key;
  } finally {
    await file.close();
  }
}

/** Told apart from whatever else may be computed over the key. */
const digestLabel = 'hpcserve network key, to be compared with that of another site\n';

/**
 * What tells whether two meshes are one, and nothing of the key: a digest of 32 random bytes leads back to none of
 * them.
 * @returns undefined where the mesh has no key yet
 * @throws HpcserveError E_MESH_KEY as `readNetworkKey`
 */
export async function networkKeyDigest(meshFolder: string): Promise<string | undefined> {
  const key = await readNetworkKey(meshFolder);
  return key && createHash('sha256').update(digestLabel).update(key).digest('hex');
}

function octal(mode: number): string {
  return (mode & 0o777).toString(8).padStart(4, '0');
}

function keyError(path: string, because: string, cause?: unknown): HpcserveError {
  return new HpcserveError('E_MESH_KEY', {
    what: `the network key ${path} cannot be used`,
    because,
    details: { path },
    cause,
  });
}

function folderError(folder: string, cause: unknown): HpcserveError {
  return new HpcserveError('E_MESH_FOLDER', {
    what: `the mesh folder ${folder} cannot be written`,
    because: (cause as Error).message,
    details: { folder },
    cause,
  });
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error;
}
