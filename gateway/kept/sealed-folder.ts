import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { writeFileAtomicallyAsync } from '../../host/whole-file.ts';

/** AES-256-GCM: NIST SP 800-38D. */
const cipher = 'aes-256-gcm';
const nonce_bytes = 12;
const tag_bytes = 16;

/** Names that become paths: of keys, and what `newId` makes. */
const name = /^[A-Za-z]+[-_][A-Za-z0-9]{1,64}$/;

export interface SealedFolderOptions {
  /** Since it was written last. */
  kept_ms: number;
  /** Of one owner: beyond it the oldest go first. */
  owner_bytes_max: number;
}

export interface KeptEntry {
  id: string;
  written_ms: number;
  bytes: number;
}

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

  /** Later ones of the same id take its place. @throws the system's error */
  async put(owner: string, id: string, content: Buffer): Promise<void> {
    const path = this.#path(owner, id)!;
    const before = this.#writing.get(path);
    const written = (before ?? Promise.resolve())
      .catch(() => undefined)
      .then(() => this.#write(owner, id, content));
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

  /** Removes what is over its time, and of who keeps too much the oldest. */
  async sweep(now_ms = Date.now()): Promise<void> {
    const { kept_ms, owner_bytes_max } = this.#options;
    for (const owner of await this.owners()) {
      const entries = await this.list(owner);
      let bytes = entries.reduce((sum, entry) => sum + entry.bytes, 0);
      for (const entry of entries) {
        if (now_ms - entry.written_ms <= kept_ms && bytes <= owner_bytes_max) continue;
        await this.remove(owner, entry.id);
        bytes -= entry.bytes;
      }
    }
  }

  /** What is being written is on disk afterwards. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#writing.values());
  }

  async #write(owner: string, id: string, content: Buffer): Promise<void> {
    await mkdir(join(this.#folder, owner), { recursive: true, mode: 0o700 });
    await writeFileAtomicallyAsync(this.#path(owner, id)!, this.#seal(owner, id, content), {
      durability: 'content',
    });
  }

  #seal(owner: string, id: string, content: Buffer): Buffer {
    const nonce = randomBytes(nonce_bytes);
    const sealing = createCipheriv(cipher, this.#key, nonce).setAAD(Buffer.from(`${owner}/${id}`));
    const body = Buffer.concat([sealing.update(content), sealing.final()]);
    return Buffer.concat([nonce, sealing.getAuthTag(), body]);
  }

  /** Undefined for what another key sealed, or for another owner or id, or what is damaged. */
  #open(owner: string, id: string, sealed: Buffer): Buffer | undefined {
    if (sealed.length < nonce_bytes + tag_bytes) return undefined;
    const nonce = sealed.subarray(0, nonce_bytes);
    const tag = sealed.subarray(nonce_bytes, nonce_bytes + tag_bytes);
    const opening = createDecipheriv(cipher, this.#key, nonce, { authTagLength: tag_bytes })
      .setAAD(Buffer.from(`${owner}/${id}`))
      .setAuthTag(tag);
    try {
      return Buffer.concat([opening.update(sealed.subarray(nonce_bytes + tag_bytes)), opening.final()]);
    } catch {
      return undefined;
    }
  }

  #path(owner: string, id: string): string | undefined {
    return name.test(owner) && name.test(id) ? join(this.#folder, owner, id) : undefined;
  }
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return (await readdir(folder)).filter((one) => name.test(one));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}
