import { readFileSync, rmSync } from 'node:fs';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { every } from '../host/every.ts';
import { makePrivateFolder } from '../host/make-folders.ts';
import { writeFileAtomically } from '../host/whole-file.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { changedSettings, type KeyChanges, type KeySettings } from '../spec/key-settings.ts';
import {
  type KeyChange,
  type KeyFile,
  type KeyFinder,
  KeyIndex,
  type KnownKey,
  keyFileSchema,
} from './key-index.ts';
import { type ApiKey, generateKey, generateKeyId, hashKey } from './keys.ts';

const fileName = /^(key_[0-9A-Za-z]{1,32})\.(json|revoked|blocked)$/;

export interface KeyStoreOptions {
  /**
   * Between two looks at what other gateways wrote. Lower: revocations travel faster; higher: less load on metadata.
   */
  poll_ms?: number;
  now_ms?: () => number;
  /** Told why the folder cannot be read, once, and `undefined` when it can again. What is known stays valid. */
  onTrouble?: (reason: string | undefined) => void;
}

type FileKind = 'json' | 'revoked' | 'blocked';

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
export class KeyStore implements KeyFinder {
  readonly folder: string;
  readonly #options: KeyStoreOptions;
  readonly #now_ms: () => number;
  readonly #index: KeyIndex;
  readonly #revocations = new Map<string, number>();
  /** Unlike revocations, what is gone here is valid again. */
  #blocked = new Map<string, number>();
  /** What each file looked like when it was last read. */
  readonly #seen = new Map<string, string>();
  #folderTime: { value: bigint; since_ms: number } | undefined;
  #looks = 0;
  #askedAt_ms = Number.NEGATIVE_INFINITY;
  #trouble: string | undefined;
  #refreshing: Promise<void> | undefined;
  readonly #stop: () => void;

  private constructor(folder: string, options: KeyStoreOptions) {
    this.folder = folder;
    this.#options = options;
    this.#now_ms = options.now_ms ?? Date.now;
    this.#index = new KeyIndex(this.#now_ms);
    this.#stop = every(options.poll_ms ?? 2000, () => void this.refresh(false));
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

  /**
   * The valid key of this secret; undefined where it is unknown, revoked, blocked or expired. Of a derived key with
   * what both it and its parent allow.
   */
  find(secret: string): ApiKey | undefined {
    return this.#index.find(secret);
  }

  /** The same by its id, whatever its secret. */
  valid(id: string): ApiKey | undefined {
    return this.#index.valid(id);
  }

  /** All keys that are known, and from now on each change at once; see `KeyIndex`. */
  follow(callback: (change: KeyChange) => void): () => void {
    for (const change of this.#index.changes()) callback(change);
    return this.#index.onChange(callback);
  }

  /** The key of an id, valid or not. @throws E_KEY_UNKNOWN */
  get(id: string): ApiKey {
    return this.#require(id).key;
  }

  /** Every key, revoked ones included, oldest first. */
  list(): ApiKey[] {
    return this.#index.list();
  }

  /** Makes a key. `secret` is returned here once and can never be had again. @throws E_KEY_FOLDER */
  create(
    name: string,
    settings: KeySettings = {},
    { id = generateKeyId(), parent_id }: { id?: string; parent_id?: string | undefined } = {},
  ): { key: ApiKey; secret: string } {
    const secret = generateKey();
    const file: KeyFile = {
      format: 1,
      id,
      name,
      hash: hashKey(secret),
      created_at_ms: this.#now_ms(),
      settings,
    };
    if (parent_id !== undefined) file.parent_id = parent_id;
    this.#save(file);
    return { key: this.#take(file, undefined), secret };
  }

  /**
   * Gives a key another secret, which is returned here once. The old one stays valid for `grace_ms`.
   * @throws E_KEY_UNKNOWN, E_KEY_FOLDER
   */
  rotate(id: string, grace_ms: number): { key: ApiKey; secret: string } {
    const { file, key } = this.#current(id);
    const secret = generateKey();
    const changed: KeyFile = { ...file, hash: hashKey(secret) };
    if (grace_ms > 0) changed.previous = { hash: file.hash, valid_until_ms: this.#now_ms() + grace_ms };
    else delete changed.previous;
    this.#save(changed);
    return { key: this.#take(changed, key.revoked_at_ms), secret };
  }

  /** Makes a key invalid until it is unblocked; at other gateways when they look next. @throws as `revoke` */
  block(id: string): ApiKey {
    const { file, key } = this.#require(id);
    if (key.blocked_at_ms !== undefined) return key;
    const blocked_at_ms = this.#now_ms();
    guarded(this.folder, () => writeFileAtomically(this.#path(id, 'blocked'), `${blocked_at_ms}\n`));
    this.#blocked.set(id, blocked_at_ms);
    return this.#take(file, key.revoked_at_ms);
  }

  /** @throws as `revoke` */
  unblock(id: string): ApiKey {
    const { file, key } = this.#require(id);
    guarded(this.folder, () => rmSync(this.#path(id, 'blocked'), { force: true }));
    this.#seen.delete(this.#path(id, 'blocked'));
    this.#blocked.delete(id);
    return this.#take(file, key.revoked_at_ms);
  }

  /** @throws E_KEY_UNKNOWN, E_KEY_FOLDER */
  change(id: string, changes: KeyChanges): ApiKey {
    const { file, key } = this.#current(id);
    const changed = { ...file, settings: changedSettings(file.settings, changes) };
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
      if (this.#index.get(row.id)) continue;
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
    this.#stop();
  }

  async #scan(onlyNew = false): Promise<void> {
    if (!onlyNew && (await this.#isSettled())) return;
    // What is made here while the folder is being read is not there to be missed.
    const before = this.#index.ids();
    const blockedBefore = [...this.#blocked.keys()];
    const names = await readdir(this.folder);
    const present = new Set<string>();
    const revoked = new Set<string>();
    const blocked = new Set<string>();
    const ofKind = { json: present, revoked, blocked };
    for (const name of names) {
      const match = fileName.exec(name);
      if (match) ofKind[match[2] as FileKind].add(match[1]!);
    }
    // Revocations first: a key must not be valid for the moment between.
    for (const id of revoked) if (!this.#revocations.has(id)) await this.#look(id, 'revoked');
    for (const id of blocked) if (!this.#blocked.has(id)) await this.#look(id, 'blocked');
    for (const id of blockedBefore) if (!blocked.has(id)) this.#freed(id);
    for (const id of present) if (!onlyNew || !this.#index.get(id)) await this.#look(id, 'json');
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

  async #look(id: string, kind: FileKind): Promise<void> {
    const path = this.#path(id, kind);
    try {
      const { mtimeNs, ino, size } = await stat(path, { bigint: true });
      const looks = `${mtimeNs} ${ino} ${size}`;
      if (this.#seen.get(path) === looks) return;
      const text = await readFile(path, 'utf8');
      this.#seen.set(path, looks);
      const known = this.#index.get(id);
      if (kind === 'revoked') {
        // Whatever it holds: the file itself says that the key is revoked.
        this.#revocations.set(id, Number(text.trim()) || this.#now_ms());
        if (known) this.#take(known.file, this.#revocations.get(id));
        return;
      }
      if (kind === 'blocked') {
        this.#blocked.set(id, Number(text.trim()) || this.#now_ms());
        if (known) this.#take(known.file, known.key.revoked_at_ms);
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
    if (revoked_at_ms !== undefined) this.#revocations.set(file.id, revoked_at_ms);
    return this.#index.take(file, revoked_at_ms, this.#blocked.get(file.id));
  }

  #freed(id: string): void {
    this.#blocked.delete(id);
    this.#seen.delete(this.#path(id, 'blocked'));
    const known = this.#index.get(id);
    if (known) this.#take(known.file, known.key.revoked_at_ms);
  }

  /** As its file is now: another gateway may have changed it since this one last looked. */
  #current(id: string): KnownKey {
    const { file, key } = this.#require(id);
    const current = parse(guarded(this.folder, () => readFileSync(this.#path(id, 'json'), 'utf8')));
    return { file: current ?? file, key };
  }

  #forget(id: string): void {
    this.#index.forget(id);
    this.#seen.delete(this.#path(id, 'json'));
  }

  #require(id: string): KnownKey {
    const known = this.#index.get(id);
    if (!known) throw new HpcserveError('E_KEY_UNKNOWN', { what: `there is no key ${id.slice(0, 64)}` });
    return known;
  }

  #save(file: KeyFile): void {
    guarded(this.folder, () => writeFileAtomically(this.#path(file.id, 'json'), `${JSON.stringify(file)}\n`));
  }

  #path(id: string, kind: FileKind): string {
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
    const parsed = keyFileSchema.safeParse(JSON.parse(text));
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
