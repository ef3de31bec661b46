import { readFileSync } from 'node:fs';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { makePrivateFolder } from '../host/make-folders.ts';
import { writeFileAtomically } from '../host/whole-file.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import {
  changedSettings,
  type KeyChanges,
  type KeySettings,
  keySettingsSchema,
} from '../spec/key-settings.ts';
import { type ApiKey, generateKey, generateKeyId, hashKey } from './keys.ts';

const fileSchema = z.object({
  format: z.literal(1),
  id: z.string(),
  name: z.string(),
  hash: z.string(),
  created_at_ms: z.number(),
  settings: keySettingsSchema.default({}),
});
type KeyFile = z.infer<typeof fileSchema>;

const fileName = /^(key_[0-9A-Za-z]{1,32})\.(json|revoked)$/;

export interface KeyStoreOptions {
  /**
   * Between two looks at what other gateways wrote. Lower: revocations travel faster; higher: less load on metadata.
   */
  poll_ms?: number;
  now_ms?: () => number;
  /** Told why the folder cannot be read, once, and `undefined` when it can again. What is known stays valid. */
  onTrouble?: (reason: string | undefined) => void;
}

interface Known {
  file: KeyFile;
  key: ApiKey;
}

/** Every so many looks, files are looked at even where the folder seems unchanged: network filesystems cache that. */
const thoroughEvery = 15;
/** A folder's time of change may be as coarse as this: only an older one says that nothing changed since. */
const settled_ms = 3000;
/** Who asks with keys that do not exist must not make the gateway read a shared filesystem all the time. */
const again_ms = 1000;

/**
 * The API keys of a site: a folder with a file a key, which all gateways share. Files are replaced as a whole, so any
 * filesystem will do, and any number of writers. That a key is revoked is a file of its own that nobody ever takes
 * away: who changes settings at the same time cannot undo it. Keys themselves are never stored, only their hashes.
 */
export class KeyStore {
  readonly folder: string;
  readonly #options: KeyStoreOptions;
  readonly #now_ms: () => number;
  readonly #byId = new Map<string, Known>();
  readonly #byHash = new Map<string, ApiKey>();
  readonly #revocations = new Map<string, number>();
  /** What each file looked like when it was last read. */
  readonly #seen = new Map<string, string>();
  #folderTime: { value: bigint; since_ms: number } | undefined;
  #looks = 0;
  #askedAt_ms = Number.NEGATIVE_INFINITY;
  #trouble: string | undefined;
  #refreshing: Promise<void> | undefined;
  readonly #timer: NodeJS.Timeout;

  private constructor(folder: string, options: KeyStoreOptions) {
    this.folder = folder;
    this.#options = options;
    this.#now_ms = options.now_ms ?? Date.now;
    this.#timer = setInterval(() => void this.refresh(false), options.poll_ms ?? 2000).unref();
  }

  /** Makes the folder where it is absent, and reads it. @throws E_KEY_FOLDER */
  static async open(folder: string, options: KeyStoreOptions = {}): Promise<KeyStore> {
    guarded(folder, () => makePrivateFolder(folder));
    const store = new KeyStore(folder, options);
    try {
      await store.#scan();
    } catch (error) {
      store.close();
      throw folderError(folder, error);
    }
    return store;
  }

  /** Names and states of all keys, for who only reads; none where no gateway has made any. @throws E_KEY_FOLDER */
  static async read(folder: string): Promise<ApiKey[]> {
    const store = new KeyStore(folder, {});
    store.close();
    try {
      await store.#scan();
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw folderError(folder, error);
    }
    return store.list();
  }

  /** The valid key of this secret; undefined where it is unknown or revoked. */
  find(secret: string): ApiKey | undefined {
    const key = this.#byHash.get(hashKey(secret));
    return key?.revoked_at_ms === undefined ? key : undefined;
  }

  /** Every key, revoked ones included, oldest first. */
  list(): ApiKey[] {
    return [...this.#byId.values()].map(({ key }) => key).sort((a, b) => a.created_at_ms - b.created_at_ms);
  }

  /** Makes a key. `secret` is returned here once and can never be had again. @throws E_KEY_FOLDER */
  create(name: string, settings: KeySettings = {}): { key: ApiKey; secret: string } {
    const secret = generateKey();
    const file: KeyFile = {
      format: 1,
      id: generateKeyId(),
      name,
      hash: hashKey(secret),
      created_at_ms: this.#now_ms(),
      settings,
    };
    this.#save(file);
    return { key: this.#take(file, undefined), secret };
  }

  /** @throws E_KEY_UNKNOWN, E_KEY_FOLDER */
  change(id: string, changes: KeyChanges): ApiKey {
    const { file, key } = this.#require(id);
    // Another gateway may have changed it since this one last looked.
    const current = parse(guarded(this.folder, () => readFileSync(this.#path(id, 'json'), 'utf8'))) ?? file;
    const changed = { ...current, settings: changedSettings(current.settings, changes) };
    this.#save(changed);
    return this.#take(changed, key.revoked_at_ms);
  }

  /** Ends a key's validity: here at once, at other gateways when they look next. @throws E_KEY_UNKNOWN, E_KEY_FOLDER */
  revoke(id: string): ApiKey {
    const { file, key } = this.#require(id);
    if (key.revoked_at_ms !== undefined) return key;
    const revoked_at_ms = this.#now_ms();
    guarded(this.folder, () => writeFileAtomically(this.#path(id, 'revoked'), `${revoked_at_ms}\n`));
    return this.#take(file, revoked_at_ms);
  }

  /** Takes over keys as ledgers held them before keys had a folder; those that are here already stay as they are. */
  adopt(rows: readonly (Omit<ApiKey, 'settings'> & { hash: string })[]): void {
    for (const { revoked_at_ms, ...row } of rows) {
      if (this.#byId.has(row.id)) continue;
      const file: KeyFile = { format: 1, ...row, settings: {} };
      if (revoked_at_ms !== undefined)
        guarded(this.folder, () => writeFileAtomically(this.#path(row.id, 'revoked'), `${revoked_at_ms}\n`));
      this.#save(file);
      this.#take(file, revoked_at_ms);
    }
  }

  /**
   * Reads what other gateways wrote. Never fails: where the folder cannot be read, what is known stays valid.
   *
   * @param thorough also where the folder seems unchanged
   */
  async refresh(thorough = true): Promise<void> {
    if (thorough) this.#folderTime = undefined;
    await this.#refresh(false);
  }

  async #refresh(onlyNew: boolean): Promise<void> {
    this.#refreshing ??= this.#scan(onlyNew)
      .then(
        () => this.#say(undefined),
        (error: Error) => this.#say(error.message),
      )
      .finally(() => {
        this.#refreshing = undefined;
      });
    await this.#refreshing;
  }

  /**
   * Looks for keys that were made elsewhere and are not known here yet: at most once a second, whoever asks, and
   * past all that are known.
   */
  async lookForNew(): Promise<void> {
    if (!this.#refreshing) {
      if (performance.now() - this.#askedAt_ms < again_ms) return;
      this.#askedAt_ms = performance.now();
    }
    await this.#refresh(true);
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #scan(onlyNew = false): Promise<void> {
    if (!onlyNew && (await this.#isSettled())) return;
    // What is made here while the folder is being read is not there to be missed.
    const before = [...this.#byId.keys()];
    const names = await readdir(this.folder);
    const present = new Set<string>();
    const revoked = new Set<string>();
    for (const name of names) {
      const match = fileName.exec(name);
      if (match) (match[2] === 'json' ? present : revoked).add(match[1]!);
    }
    // Revocations first: a key must not be valid for the moment between.
    for (const id of revoked) if (!this.#revocations.has(id)) await this.#look(id, 'revoked');
    for (const id of present) if (!onlyNew || !this.#byId.has(id)) await this.#look(id, 'json');
    for (const id of before) if (!present.has(id)) this.#forget(id);
  }

  /** Whether nothing can have changed since the last scan, as far as the folder's time of change tells. */
  async #isSettled(): Promise<boolean> {
    const { mtimeNs } = await stat(this.folder, { bigint: true });
    const now_ms = performance.now();
    if (this.#folderTime?.value !== mtimeNs) {
      this.#folderTime = { value: mtimeNs, since_ms: now_ms };
      return false;
    }
    return now_ms - this.#folderTime.since_ms > settled_ms && ++this.#looks % thoroughEvery !== 0;
  }

  async #look(id: string, kind: 'json' | 'revoked'): Promise<void> {
    const path = this.#path(id, kind);
    try {
      const { mtimeNs, ino, size } = await stat(path, { bigint: true });
      const looks = `${mtimeNs} ${ino} ${size}`;
      if (this.#seen.get(path) === looks) return;
      const text = await readFile(path, 'utf8');
      this.#seen.set(path, looks);
      const known = this.#byId.get(id);
      if (kind === 'revoked') {
        // Whatever it holds: the file itself says that the key is revoked.
        this.#revocations.set(id, Number(text.trim()) || this.#now_ms());
        if (known) this.#take(known.file, this.#revocations.get(id));
        return;
      }
      const file = parse(text);
      if (file?.id === id) this.#take(file, this.#revocations.get(id));
    } catch (error) {
      // Replaced between two calls: the next look finds it.
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
  }

  #take(file: KeyFile, revoked_at_ms: number | undefined): ApiKey {
    const { id, name, created_at_ms, settings, hash } = file;
    const key: ApiKey = {
      id,
      name,
      created_at_ms,
      settings,
      revoked_at_ms,
    };
    if (revoked_at_ms !== undefined) this.#revocations.set(id, revoked_at_ms);
    // Whoever gave the key another secret by hand took the old one away.
    const before = this.#byId.get(id)?.file.hash;
    if (before !== undefined && before !== hash && this.#byHash.get(before)?.id === id)
      this.#byHash.delete(before);
    this.#byId.set(id, { file, key });
    this.#byHash.set(hash, key);
    return key;
  }

  #forget(id: string): void {
    const known = this.#byId.get(id)!;
    this.#byId.delete(id);
    this.#byHash.delete(known.file.hash);
    this.#seen.delete(this.#path(id, 'json'));
  }

  #require(id: string): Known {
    const known = this.#byId.get(id);
    if (!known) throw new HpcserveError('E_KEY_UNKNOWN', { what: `there is no key ${id.slice(0, 64)}` });
    return known;
  }

  #save(file: KeyFile): void {
    guarded(this.folder, () => writeFileAtomically(this.#path(file.id, 'json'), `${JSON.stringify(file)}\n`));
  }

  #path(id: string, kind: 'json' | 'revoked'): string {
    return join(this.folder, `${id}.${kind}`);
  }

  #say(reason: string | undefined): void {
    if (this.#trouble === reason) return;
    this.#trouble = reason;
    this.#options.onTrouble?.(reason);
  }
}

function parse(text: string): KeyFile | undefined {
  try {
    const parsed = fileSchema.safeParse(JSON.parse(text));
    return parsed.success ? parsed.data : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function guarded<T>(folder: string, action: () => T): T {
  try {
    return action();
  } catch (error) {
    throw folderError(folder, error);
  }
}

function folderError(folder: string, error: unknown): HpcserveError {
  if (error instanceof HpcserveError) return error;
  return new HpcserveError('E_KEY_FOLDER', {
    what: `the folder of the API keys ${folder} cannot be used`,
    because: (error as Error).message,
    cause: error,
  });
}
