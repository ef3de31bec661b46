import { timingSafeEqual } from 'node:crypto';
import { constants } from 'node:fs';
import { chmod, type FileHandle, lstat, mkdir, open, readdir, stat, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { temporaryPrefix } from '../host/temporary-name.ts';
import { writeFileAtomicallyAsync } from '../host/whole-file.ts';
import { readNetworkKey } from './network-key.ts';
import { RecordRejected, record_bytes_max } from './record-codec.ts';

export type FolderFileKind = 'rec' | 'left';

export interface FolderFile {
  name: string;
  session_id: string;
  kind: FolderFileKind;
}

export interface FolderScan {
  /** Every well-named file there is, by name. */
  present: Map<string, FolderFile>;
  /** Files that are new or were replaced since the last scan, with their bytes. */
  changed: { file: FolderFile; bytes: Uint8Array }[];
  rejected: { file: string; rejection: RecordRejected }[];
  /** Leftovers of writers, by name: candidates for removal. */
  temporary: string[];
}

/**
 * Files of sessions, and other ones, looked at in one scan. A mesh of more sessions than this needs gossip instead of a
 * folder.
 */
const entries_max = 20_000;
/**
 * Filesystem calls in flight. A hung mount blocks their threads, and Node has four for everything; so fewer
 * than four. Higher: a first scan of a large mesh is faster.
 */
const parallel_calls = 3;
/** A folder's mtime may have a granularity of two seconds (or be cached so long): only an older one is trusted. */
const mtime_settled_ms = 3000;

/**
 * The files of a rendezvous folder: `sessions/<session_id>.rec` and `sessions/<session_id>.left`, each replaced
 * as a whole by rename. Works on NFS and Lustre: no locks, no watches needed, no comparison of clocks.
 */
export class RendezvousFolder {
  readonly sessions_folder: string;
  readonly #mesh_folder: string;
  readonly #network_key: Uint8Array;
  readonly #now_ms: () => number;
  /** What each file looked like when it was last read. */
  readonly #seen = new Map<string, string>();
  #last_scan: FolderScan | undefined;
  #folder_mtime: { value: bigint; since_ms: number } | undefined;

  constructor(meshFolder: string, networkKey: Uint8Array, now_ms: () => number) {
    this.#mesh_folder = meshFolder;
    this.#network_key = networkKey;
    this.#now_ms = now_ms;
    this.sessions_folder = join(meshFolder, 'sessions');
  }

  /** Whether the folder still holds the key this mesh was joined with; `missing` where it holds none. */
  async checkKey(): Promise<'same' | 'other' | 'missing'> {
    const key = await readNetworkKey(this.#mesh_folder);
    if (!key) return 'missing';
    return timingSafeEqual(key, this.#network_key) ? 'same' : 'other';
  }

  /** Makes `sessions/` where it is absent, never the mesh folder itself: its filesystem may be unmounted. */
  async prepare(): Promise<void> {
    const { mode } = await stat(this.#mesh_folder);
    try {
      await mkdir(this.sessions_folder, { mode: 0o700 });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') return;
      throw error;
    }
    // Said again because an umask, which agents have set, would take the group's rights away; set-group-ID stays.
    if ((mode & 0o070) !== 0) await chmod(this.sessions_folder, 0o700 | (mode & 0o2070));
  }

  /**
   * What is new since the last scan. Where the folder's mtime has not moved for a while, one stat is all it
   * costs; `thorough` looks at every file anyway.
   *
   * @throws NodeJS.ErrnoException where the folder cannot be read
   */
  async scan(thorough: boolean): Promise<FolderScan> {
    const { mtimeNs } = await stat(this.sessions_folder, { bigint: true });
    const now_ms = this.#now_ms();
    if (this.#folder_mtime?.value !== mtimeNs) this.#folder_mtime = { value: mtimeNs, since_ms: now_ms };
    else if (!thorough && this.#last_scan && now_ms - this.#folder_mtime.since_ms > mtime_settled_ms) {
      return { ...this.#last_scan, changed: [], rejected: [] };
    }

    const scan: FolderScan = { present: new Map(), changed: [], rejected: [], temporary: [] };
    const names = await readdir(this.sessions_folder);
    const others: string[] = [];
    for (const name of names) {
      const match = /^([0-9a-f]{32})\.(rec|left)$/.exec(name);
      if (match) scan.present.set(name, { name, session_id: match[1]!, kind: match[2] as FolderFileKind });
      else others.push(name);
    }
    for (const name of others.slice(0, entries_max)) {
      if (name.startsWith(temporaryPrefix)) scan.temporary.push(name);
      else if (!this.#seen.has(name)) {
        this.#seen.set(name, '');
        scan.rejected.push({ file: name, rejection: new RecordRejected('wrong_name', 'not a session file') });
      }
    }
    if (Math.max(scan.present.size, others.length) > entries_max) {
      const surplus = new RecordRejected('oversized', `${names.length} files; only ${entries_max} are read`);
      scan.rejected.push({ file: this.sessions_folder, rejection: surplus });
    }
    const queue = this.#bounded([...scan.present.values()]).values();
    const reader = async (): Promise<void> => {
      for (const file of queue) await this.#look(file, scan);
    };
    await Promise.all(Array.from({ length: parallel_calls }, reader));
    const listed = new Set(names);
    for (const name of this.#seen.keys()) if (!listed.has(name)) this.#seen.delete(name);
    this.#last_scan = scan;
    return scan;
  }

  /** Makes the next scan read everything again: after the folder was away, or another took its place. */
  forget(): void {
    this.#seen.clear();
    this.#last_scan = undefined;
    this.#folder_mtime = undefined;
  }

  /** Replaces a file as a whole; readers see the old bytes or the new ones. */
  async write(sessionId: string, kind: FolderFileKind, bytes: Uint8Array): Promise<void> {
    await writeFileAtomicallyAsync(join(this.sessions_folder, `${sessionId}.${kind}`), bytes, {
      // A session writes its record again and again, and one whose node crashed has ended.
      durability: 'content',
      finish: (file) => this.#share(file),
    });
  }

  /** Removes a file that is there and may be removed; in a folder with the sticky bit only its owner may. */
  async remove(name: string): Promise<void> {
    try {
      await unlink(join(this.sessions_folder, name));
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'ENOENT' && code !== 'EPERM' && code !== 'EACCES') throw error;
    }
  }

  /** Those of sessions that were read before come first: what came later does not push out who lives. */
  #bounded(files: FolderFile[]): FolderFile[] {
    if (files.length <= entries_max) return files;
    const isKnown = ({ session_id }: FolderFile): boolean => this.#seen.has(`${session_id}.rec`);
    return [...files.filter(isKnown), ...files.filter((file) => !isKnown(file))].slice(0, entries_max);
  }

  async #look(file: FolderFile, scan: FolderScan): Promise<void> {
    try {
      const path = join(this.sessions_folder, file.name);
      const before = await lstat(path, { bigint: true });
      const signature = `${before.ino}:${before.size}:${before.mtimeNs}`;
      if (this.#seen.get(file.name) === signature) return;
      this.#seen.set(file.name, signature);
      if (!before.isFile()) throw new RecordRejected('malformed', 'not a regular file');
      if (before.size > record_bytes_max) throw new RecordRejected('oversized', `${before.size} bytes`);
      scan.changed.push({ file, bytes: await readBounded(path) });
    } catch (error) {
      if (error instanceof RecordRejected) scan.rejected.push({ file: file.name, rejection: error });
      else {
        const { code, message } = error as NodeJS.ErrnoException;
        if (code === 'ENOENT') {
          // Replaced or removed while we looked.
          scan.present.delete(file.name);
          this.#seen.delete(file.name);
        } else if (unreadable.has(code ?? '')) {
          scan.rejected.push({ file: file.name, rejection: new RecordRejected('unreadable', message) });
        } else {
          this.#seen.delete(file.name);
          throw error;
        }
      }
    }
  }

  /** A group's mesh is a folder that the group may read: its records are then readable by it too, and by no other. */
  async #share(file: FileHandle): Promise<void> {
    const folder = await stat(this.#mesh_folder);
    if ((folder.mode & 0o040) === 0) return;
    const { uid, gid } = await file.stat();
    try {
      if (gid !== folder.gid) await file.chown(uid, folder.gid);
    } catch (error) {
      // Not in the folder's group: then the right one is to let no group read it.
      if ((error as NodeJS.ErrnoException).code === 'EPERM') return;
      throw error;
    }
    await file.chmod(0o640);
  }
}

/** What opening a single file may say though the folder is in order: no rights, a link, a pipe, a socket, a folder. */
const unreadable = new Set(['EACCES', 'EPERM', 'ELOOP', 'ENXIO', 'EAGAIN', 'EISDIR']);

/** Reads at most `record_bytes_max` bytes; never follows a link, never waits for the other end of a pipe. */
async function readBounded(path: string): Promise<Uint8Array> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const buffer = Buffer.alloc(record_bytes_max + 1);
    let length = 0;
    for (;;) {
      const { bytesRead } = await file.read(buffer, length, buffer.length - length, length);
      if (bytesRead === 0) break;
      length += bytesRead;
      if (length > record_bytes_max) throw new RecordRejected('oversized', `over ${record_bytes_max} bytes`);
    }
    return new Uint8Array(buffer.subarray(0, length));
  } finally {
    await file.close();
  }
}
