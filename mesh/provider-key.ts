import { createPrivateKey, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto';
import {
  closeSync,
  constants,
  fstatSync,
  fsyncSync,
  linkSync,
  openSync,
  readSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { makeFolders } from '../host/make-folders.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { delegationBytes, providerFingerprint, rawPublicKey } from './credential.ts';
import { Delegation } from './delegation.ts';

const file_bytes_max = 1024;

export interface DelegationWish {
  /** `user@site`, for people. */
  name: string;
  /** See `scopeOf`. */
  scope: string;
  /** Unix s. */
  not_after_s: number;
  /** Of a delegation that is renewed; absent: a new key. */
  launch_key?: KeyObject | undefined;
}

/**
 * The key that is a provider: of one user at one site. What it signed is that provider's, whatever else calls itself by
 * the same name. It stays in the state folder of the site; jobs get delegations.
 */
export class ProviderKey {
  /** Fingerprint: what API keys trust. */
  readonly id: string;
  readonly #public_key: Uint8Array;
  readonly #private_key: KeyObject;

  private constructor(privateKey: KeyObject) {
    this.#private_key = privateKey;
    this.#public_key = rawPublicKey(privateKey);
    this.id = providerFingerprint(this.#public_key);
  }

  /**
   * Reads the key, and makes one (0600) where there is none. Of several processes that start at once, on any hosts, one
   * key wins: link(2) fails where the name is taken, on NFS too.
   *
   * @throws HpcserveError E_PROVIDER_KEY
   */
  static loadOrCreate(path: string): ProviderKey {
    const existing = ProviderKey.load(path);
    if (existing) return existing;
    const temporary = `${path}.${randomBytes(6).toString('hex')}.tmp`;
    try {
      makeFolders(dirname(path));
      writeNew(temporary, generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' }));
      linkSync(temporary, path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST')
        throw unusable(path, (error as Error).message, error);
    } finally {
      rmSync(temporary, { force: true });
    }
    const made = ProviderKey.load(path);
    if (made) return made;
    throw unusable(path, 'it vanished right after it was written');
  }

  /**
   * The key, undefined where none was made yet.
   *
   * @throws HpcserveError E_PROVIDER_KEY where it is damaged, not one's own, or open to others
   */
  static load(path: string): ProviderKey | undefined {
    const pem = readPrivately(path);
    if (pem === undefined) return undefined;
    let key: KeyObject;
    try {
      key = createPrivateKey(pem);
    } catch (error) {
      throw unusable(path, 'it holds no private key in PEM', error);
    }
    if (key.asymmetricKeyType !== 'ed25519') throw unusable(path, `it is a key for ${key.asymmetricKeyType}`);
    return new ProviderKey(key);
  }

  delegate({ name, scope, not_after_s, launch_key }: DelegationWish): Delegation {
    const key = launch_key ?? generateKeyPairSync('ed25519').privateKey;
    const statement = {
      provider_key: this.#public_key,
      launch_key: rawPublicKey(key),
      name,
      scope,
      not_after_s,
    };
    const signature = new Uint8Array(sign(null, delegationBytes(statement), this.#private_key));
    return new Delegation(statement, signature, key);
  }
}

function writeNew(path: string, content: string | Buffer): void {
  const file = openSync(path, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600);
  try {
    const bytes = Buffer.from(content);
    for (let offset = 0; offset < bytes.length; ) offset += writeSync(file, bytes, offset);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

function readPrivately(path: string): string | undefined {
  let file: number;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw unusable(path, (error as Error).message, error);
  }
  try {
    const found = fstatSync(file);
    if (!found.isFile() || found.size > file_bytes_max) throw unusable(path, 'it is no file of a key');
    if ((found.mode & 0o077) !== 0)
      throw unusable(
        path,
        `its mode is ${(found.mode & 0o777).toString(8)}: others could have read or written it`,
      );
    if (found.uid !== process.getuid!())
      throw unusable(path, `it belongs to user id ${found.uid}, not to you`);
    const bytes = Buffer.alloc(found.size);
    const length = readSync(file, bytes, 0, bytes.length, 0);
    return bytes.toString('utf8', 0, length);
  } finally {
    closeSync(file);
  }
}

function unusable(path: string, because: string, cause?: unknown): HpcserveError {
  return new HpcserveError('E_PROVIDER_KEY', {
    what: `the provider key ${path} cannot be used`,
    because,
    details: { path },
    cause,
  });
}
