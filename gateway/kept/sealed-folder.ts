import { createCipheriv, createDecipheriv, type DecipherGCM, randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { temporaryPrefix } from '../../host/temporary-name.ts';
import { writeFileAtomicallyAsync } from '../../host/whole-file.ts';

/** AES-256-GCM: NIST SP 800-38D. */
const cipher = 'aes-256-gcm';
const nonce_bytes = 12;
const tag_bytes = 16;
const head_bytes = nonce_bytes + tag_bytes;
/** Read at a time of what is read in pieces. Lower: less memory; higher: fewer calls of the filesystem. */
const piece_bytes = 1 << 20;

/** What was not written to for so long and has no name yet, its gateway was killed over. */
const unfinished_ms_max = 24 * 3_600_000;

/** Names that become paths: of keys, and what `newId` makes. */
const name = /^[A-Za-z]+[-_][A-Za-z0-9]{1,64}$/;

export interface SealedFolderOptions {
  /** Since it was written or renewed last. */
  kept_ms: number;
  /** Of one owner: beyond it the oldest go first. */
  owner_bytes_max: number;
}

export interface KeptEntry {
  id: string;
  written_ms: number;
  bytes: number;
}

/** What is kept in whole or in parts, one after the other. */
export type Pieces = Iterable<Buffer> | AsyncIterable<Buffer>;

export function newId(prefix: string): string {
  return `${prefix}${randomBytes(16).toString('hex')}`;
}

/**
 * What is kept for API keys, one encrypted file each, in a folder that all gateways of a site share. Only its owner
 * reads an entry: owner and id are part of what the seal proves.
 */
export class SealedFolder {
  readonly #folder: string;
  readonly #key: Buffer;
  readonly #options: SealedFolderOptions;
  /** By path: what is being written, for who asks at once. */
  readonly #writing = new Map<string, Promise<void>>();

  constructor(folder: string, key: Buffer, options: SealedFolderOptions) {
    this.#folder = folder;
    this.#key = key;
    this.#options = options;
  }

  /** Of one owner: beyond it the oldest go first. */
  get owner_bytes_max(): number {
    return this.#options.owner_bytes_max;
  }

  /** Since it was written or renewed last. */
  get kept_ms(): number {
    return this.#options.kept_ms;
  }

  /** Later ones of the same id take its place. @throws the system's error */
  async put(owner: string, id: string, content: Buffer): Promise<void> {
    await this.putPieces(owner, id, [content]);
  }

  /** The same for what is not to be in memory as a whole. @throws the system's error, or that of the pieces */
  async putPieces(owner: string, id: string, pieces: Pieces): Promise<void> {
    const path = this.#path(owner, id)!;
    const before = this.#writing.get(path);
    const written = (before ?? Promise.resolve())
      .catch(() => undefined)
      .then(() => this.#write(owner, id, pieces));
    this.#writing.set(path, written);
    try {
      await written;
    } finally {
      if (this.#writing.get(path) === written) this.#writing.delete(path);
    }
  }

  /** Undefined where there is none, or where it is not this owner's. @throws the system's error */
  async get(owner: string, id: string): Promise<Buffer | undefined> {
    const path = this.#path(owner, id);
    if (path === undefined) return undefined;
    await this.#writing.get(path)?.catch(() => undefined);
    let sealed: Buffer;
    try {
      if (Date.now() - (await stat(path)).mtimeMs > this.#options.kept_ms) return undefined;
      sealed = await readFile(path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
    return this.#open(owner, id, sealed);
  }

  /**
   * As `get`, for what is not to be in memory as a whole: all of it is proved before the first piece is given.
   *
   * @throws the system's error
   */
  async pieces(owner: string, id: string): Promise<AsyncIterable<Buffer> | undefined> {
    const path = this.#path(owner, id);
    if (path === undefined) return undefined;
    await this.#writing.get(path)?.catch(() => undefined);
    try {
      if (Date.now() - (await stat(path)).mtimeMs > this.#options.kept_ms) return undefined;
      for await (const _ of this.#opened(owner, id, path));
    } catch (error) {
      const { errno, code } = error as NodeJS.ErrnoException;
      // What is no error of the system is a seal that does not fit.
      if (errno === undefined || code === 'ENOENT') return undefined;
      throw error;
    }
    return this.#opened(owner, id, path);
  }

  /** @returns whether there was one */
  async remove(owner: string, id: string): Promise<boolean> {
    const path = this.#path(owner, id);
    if (path === undefined) return false;
    await this.#writing.get(path)?.catch(() => undefined);
    try {
      await rm(path);
      return true;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return false;
      throw error;
    }
  }

  async owners(): Promise<string[]> {
    return namesIn(this.#folder);
  }

  /** Oldest first. */
  async list(owner: string): Promise<KeptEntry[]> {
    if (!name.test(owner)) return [];
    const entries: KeptEntry[] = [];
    for (const id of await namesIn(join(this.#folder, owner))) {
      // Another gateway may just have removed it.
      const found = await stat(join(this.#folder, owner, id)).catch(() => undefined);
      if (found?.isFile()) entries.push({ id, written_ms: found.mtimeMs, bytes: found.size });
    }
    return entries.sort((a, b) => a.written_ms - b.written_ms);
  }

  /** Lets the time of entries begin anew, which every gateway of the site sees. @throws the system's error */
  async renew(owner: string, isMeant: (id: string) => boolean): Promise<void> {
    for (const { id } of await this.list(owner)) {
      if (!isMeant(id)) continue;
      const now_s = Date.now() / 1000;
      try {
        await utimes(this.#path(owner, id)!, now_s, now_s);
      } catch (error) {
        // It was removed meanwhile.
        if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
      }
    }
  }

  /** Removes what is over its time or will never be whole, and of who keeps too much the oldest. */
  async sweep(now_ms = Date.now()): Promise<void> {
    const { kept_ms, owner_bytes_max } = this.#options;
    for (const owner of await this.owners()) {
      await this.#sweepUnfinished(owner, now_ms);
      const entries = await this.list(owner);
      let bytes = entries.reduce((sum, entry) => sum + entry.bytes, 0);
      for (const entry of entries) {
        if (now_ms - entry.written_ms <= kept_ms && bytes <= owner_bytes_max) continue;
        await this.remove(owner, entry.id);
        bytes -= entry.bytes;
      }
    }
  }

  /** Of gateways that were killed: nothing else removes it, and no list has it. */
  async #sweepUnfinished(owner: string, now_ms: number): Promise<void> {
    const folder = join(this.#folder, owner);
    for (const unfinished of await namesIn(folder, (one) => one.startsWith(temporaryPrefix))) {
      const path = join(folder, unfinished);
      // Its writer may just have given it its name, or another gateway removed it.
      const found = await stat(path).catch(() => undefined);
      if (found && now_ms - found.mtimeMs > unfinished_ms_max) await rm(path, { force: true });
    }
  }

  /** What is being written is on disk afterwards. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#writing.values());
  }

  /** In the order of the file: nonce, tag, content. The tag is known last. */
  async #write(owner: string, id: string, pieces: Pieces): Promise<void> {
    await mkdir(join(this.#folder, owner), { recursive: true, mode: 0o700 });
    const nonce = randomBytes(nonce_bytes);
    const sealing = createCipheriv(cipher, this.#key, nonce).setAAD(Buffer.from(`${owner}/${id}`));
    const sealed = async function* (): AsyncGenerator<Buffer> {
      yield Buffer.concat([nonce, Buffer.alloc(tag_bytes)]);
      for await (const piece of pieces) yield sealing.update(piece);
      yield sealing.final();
    };
    await writeFileAtomicallyAsync(this.#path(owner, id)!, sealed(), {
      durability: 'content',
      finish: async (file) => {
        await file.write(sealing.getAuthTag(), 0, tag_bytes, nonce_bytes);
      },
    });
  }

  /** Undefined for what another key sealed, or for another owner or id, or what is damaged. */
  #open(owner: string, id: string, sealed: Buffer): Buffer | undefined {
    if (sealed.length < head_bytes) return undefined;
    const opening = this.#opening(owner, id, sealed.subarray(0, head_bytes));
    try {
      return Buffer.concat([opening.update(sealed.subarray(head_bytes)), opening.final()]);
    } catch {
      return undefined;
    }
  }

  /** Piece by piece. @throws at the end where the seal does not fit */
  async *#opened(owner: string, id: string, path: string): AsyncGenerator<Buffer> {
    const file = await open(path, 'r');
    try {
      const head = Buffer.alloc(head_bytes);
      await file.read(head, 0, head_bytes, 0);
      const opening = this.#opening(owner, id, head);
      const content = file.createReadStream({
        start: head_bytes,
        highWaterMark: piece_bytes,
        autoClose: false,
      });
      for await (const sealed of content) yield opening.update(sealed as Buffer);
      yield opening.final();
    } finally {
      await file.close();
    }
  }

  #opening(owner: string, id: string, head: Buffer): DecipherGCM {
    return createDecipheriv(cipher, this.#key, head.subarray(0, nonce_bytes), { authTagLength: tag_bytes })
      .setAAD(Buffer.from(`${owner}/${id}`))
      .setAuthTag(head.subarray(nonce_bytes));
  }

  #path(owner: string, id: string): string | undefined {
    return name.test(owner) && name.test(id) ? join(this.#folder, owner, id) : undefined;
  }
}

async function namesIn(
  folder: string,
  isMeant = (one: string): boolean => name.test(one),
): Promise<string[]> {
  try {
    return (await readdir(folder)).filter(isMeant);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}
