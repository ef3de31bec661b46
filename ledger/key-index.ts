import { z } from 'zod';
import { keySettingsSchema, narrowedSettings } from '../spec/key-settings.ts';
import { type ApiKey, hashKey } from './keys.ts';

/** What is kept of a key, in a file of its own. */
export const keyFileSchema = z.object({
  format: z.literal(1),
  id: z.string(),
  name: z.string(),
  hash: z.string(),
  created_at_ms: z.number(),
  settings: keySettingsSchema.default({}),
  parent_id: z.string().optional(),
  /** The secret before the present one, as long as it is valid beside it. */
  previous: z.object({ hash: z.string(), valid_until_ms: z.number() }).optional(),
});
export type KeyFile = z.infer<typeof keyFileSchema>;

export interface KnownKey {
  file: KeyFile;
  key: ApiKey;
}

/** A key that is there, as it is from now on, or the id of one whose file is gone. */
export type KeyChange =
  | { file: KeyFile; revoked_at_ms?: number | undefined; blocked_at_ms?: number | undefined }
  | { forgotten: string };

/** Who is asked whether a secret is a valid key. */
export interface KeyFinder {
  /** The valid key of a secret; undefined where it is unknown, revoked, blocked or expired. */
  find(secret: string): ApiKey | undefined;
  /** Looks for keys that were made elsewhere and are not known here yet; at most once a second, whoever asks. */
  lookForNew(): Promise<void>;
}

/**
 * The keys that are known, by their ids and by the hashes of their secrets. Where they come from is another matter: the
 * folder of keys (`KeyStore`), or the process that reads it.
 */
export class KeyIndex {
  readonly #now_ms: () => number;
  readonly #byId = new Map<string, KnownKey>();
  readonly #byHash = new Map<string, ApiKey>();
  /** Settings of derived keys, as long as neither key changes. */
  readonly #narrowed = new WeakMap<ApiKey, { parent: ApiKey; key: ApiKey }>();
  readonly #listeners = new Set<(change: KeyChange) => void>();

  constructor(now_ms: () => number = Date.now) {
    this.#now_ms = now_ms;
  }

  /** The callback runs with every change, at once; returns its removal. */
  onChange(callback: (change: KeyChange) => void): () => void {
    this.#listeners.add(callback);
    return () => this.#listeners.delete(callback);
  }

  /** Of a derived key with what both it and its parent allow; see `KeyFinder`. */
  find(secret: string): ApiKey | undefined {
    const hash = hashKey(secret);
    const key = this.#byHash.get(hash);
    if (!key || !this.#isValid(key)) return undefined;
    const { previous } = this.#byId.get(key.id)!.file;
    if (previous?.hash === hash && this.#now_ms() >= previous.valid_until_ms) return undefined;
    return this.#narrowedOf(key);
  }

  /** The same by its id, whatever its secret. */
  valid(id: string): ApiKey | undefined {
    const key = this.#byId.get(id)?.key;
    return key && this.#isValid(key) ? this.#narrowedOf(key) : undefined;
  }

  /** A key of this id, valid or not. */
  get(id: string): KnownKey | undefined {
    return this.#byId.get(id);
  }

  ids(): string[] {
    return [...this.#byId.keys()];
  }

  /** Every key, revoked ones included, oldest first. */
  list(): ApiKey[] {
    return [...this.#byId.values()].map(({ key }) => key).sort((a, b) => a.created_at_ms - b.created_at_ms);
  }

  /** All that is known, as changes to an index that knows nothing. */
  changes(): KeyChange[] {
    return [...this.#byId.values()].map(({ file, key: { revoked_at_ms, blocked_at_ms } }) => ({
      file,
      revoked_at_ms,
      blocked_at_ms,
    }));
  }

  /** Takes over what another index told. */
  apply(change: KeyChange): void {
    if ('forgotten' in change) this.forget(change.forgotten);
    else this.take(change.file, change.revoked_at_ms, change.blocked_at_ms);
  }

  /** A key as it is from now on. */
  take(file: KeyFile, revoked_at_ms: number | undefined, blocked_at_ms: number | undefined): ApiKey {
    const { id, name, created_at_ms, settings, parent_id } = file;
    const key: ApiKey = { id, name, created_at_ms, settings, revoked_at_ms, blocked_at_ms, parent_id };
    // Another secret took the place of those that it had.
    for (const before of hashesOf(this.#byId.get(id)?.file))
      if (this.#byHash.get(before)?.id === id) this.#byHash.delete(before);
    this.#byId.set(id, { file, key });
    for (const valid of hashesOf(file)) this.#byHash.set(valid, key);
    this.#tell({ file, revoked_at_ms, blocked_at_ms });
    return key;
  }

  /** Its file is gone. */
  forget(id: string): void {
    const known = this.#byId.get(id);
    if (!known) return;
    this.#byId.delete(id);
    for (const hash of hashesOf(known.file)) this.#byHash.delete(hash);
    this.#tell({ forgotten: id });
  }

  #isValid({ revoked_at_ms, blocked_at_ms, settings: { expires_at_ms } }: ApiKey): boolean {
    if (revoked_at_ms !== undefined || blocked_at_ms !== undefined) return false;
    return expires_at_ms === undefined || this.#now_ms() < expires_at_ms;
  }

  #narrowedOf(key: ApiKey): ApiKey | undefined {
    if (key.parent_id === undefined) return key;
    const parent = this.#byId.get(key.parent_id)?.key;
    if (!parent || !this.#isValid(parent)) return undefined;
    const known = this.#narrowed.get(key);
    if (known?.parent === parent) return known.key;
    const narrowed = { ...key, settings: narrowedSettings(parent.settings, key.settings) };
    this.#narrowed.set(key, { parent, key: narrowed });
    return narrowed;
  }

  #tell(change: KeyChange): void {
    for (const listener of this.#listeners) listener(change);
  }
}

/** Of the secrets that lead to a key. */
function hashesOf(file: KeyFile | undefined): string[] {
  if (!file) return [];
  return file.previous ? [file.hash, file.previous.hash] : [file.hash];
}
