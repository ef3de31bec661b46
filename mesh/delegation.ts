import { createPrivateKey, type KeyObject, sign } from 'node:crypto';
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { z } from 'zod';
import { HpcserveError } from '../spec/errors/error.ts';
import {
  type Credential,
  certificateBytes,
  type DelegationStatement,
  isDelegated,
  providerFingerprint,
  rawPublicKey,
} from './credential.ts';

const base64 = z.base64().transform((text) => new Uint8Array(Buffer.from(text, 'base64')));

const fileSchema = z.strictObject({
  format: z.literal(1),
  provider_key: base64,
  name: z.string(),
  scope: z.string(),
  not_after_s: z.int().min(0),
  signature: base64,
  /** PKCS8 DER of the launch's private key: the file is 0600. */
  launch_key: base64,
});

/** Larger than any: a file of another kind is not read whole. */
const file_bytes_max = 4096;

/**
 * A provider's word that a launch may sign the keys of its sessions, with the launch's own key: what a job gets in its
 * launch folder, and what a gateway makes for itself.
 */
export class Delegation {
  readonly statement: DelegationStatement;
  readonly provider_id: string;
  readonly #signature: Uint8Array;
  readonly #launch_key: KeyObject;

  constructor(statement: DelegationStatement, signature: Uint8Array, launchKey: KeyObject) {
    this.statement = statement;
    this.provider_id = providerFingerprint(statement.provider_key);
    this.#signature = signature;
    this.#launch_key = launchKey;
  }

  /** Unix ms; from then on nobody takes it for proof. */
  get ends_at_ms(): number {
    return this.statement.not_after_s * 1000;
  }

  /** The private key, to have the same one delegated anew; never write it anywhere else. */
  get launch_key(): KeyObject {
    return this.#launch_key;
  }

  /** @param session_key SPKI DER */
  certify(session_key: Uint8Array): Credential {
    const { provider_key, launch_key, not_after_s } = this.statement;
    const certificate = new Uint8Array(sign(null, certificateBytes(session_key), this.#launch_key));
    return { provider_key, launch_key, not_after_s, delegation: this.#signature, certificate };
  }

  /** What stands in its file, a secret. */
  toText(): string {
    const { provider_key, name, scope, not_after_s } = this.statement;
    const file: z.input<typeof fileSchema> = {
      format: 1,
      provider_key: Buffer.from(provider_key).toString('base64'),
      name,
      scope,
      not_after_s,
      signature: Buffer.from(this.#signature).toString('base64'),
      launch_key: this.#launch_key.export({ type: 'pkcs8', format: 'der' }).toString('base64'),
    };
    return `${JSON.stringify(file)}\n`;
  }

  /**
   * The delegation in a file, undefined where there is none. One that is over is returned like any other.
   *
   * @param scope what it must be for
   * @throws HpcserveError E_DELEGATION where it is for something else, forged, damaged, or open to others
   */
  static async read(path: string, scope: string): Promise<Delegation | undefined> {
    const text = await readPrivately(path);
    return text === undefined ? undefined : parse(text, path, scope);
  }
}

function parse(text: string, path: string, scope: string): Delegation {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw unusable(path, (error as Error).message, error);
  }
  const parsed = fileSchema.safeParse(json);
  if (!parsed.success) throw unusable(path, parsed.error.issues.map(({ message }) => message).join(', '));
  const { provider_key, name, not_after_s, signature, launch_key, scope: delegated } = parsed.data;
  if (delegated !== scope) throw unusable(path, `it is for ${delegated}, and this is ${scope}`);
  let key: KeyObject;
  try {
    key = createPrivateKey({ key: Buffer.from(launch_key), format: 'der', type: 'pkcs8' });
  } catch (error) {
    throw unusable(path, `its key cannot be read: ${(error as Error).message}`, error);
  }
  if (key.asymmetricKeyType !== 'ed25519' || provider_key.length !== 32)
    throw unusable(path, 'its keys are not Ed25519 keys');
  const statement = { provider_key, launch_key: rawPublicKey(key), name, scope, not_after_s };
  if (!isDelegated(statement, signature)) throw unusable(path, 'the provider’s key did not sign it');
  return new Delegation(statement, signature, key);
}

async function readPrivately(path: string): Promise<string | undefined> {
  let file: Awaited<ReturnType<typeof open>>;
  try {
    file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw unusable(path, (error as Error).message, error);
  }
  try {
    const found = await file.stat();
    if (!found.isFile() || found.size > file_bytes_max) throw unusable(path, 'it is no file of a delegation');
    if ((found.mode & 0o077) !== 0) throw unusable(path, 'others may read or write it');
    if (found.uid !== process.getuid!()) throw unusable(path, `it belongs to user id ${found.uid}`);
    return await file.readFile('utf8');
  } finally {
    await file.close();
  }
}

function unusable(path: string, because: string, cause?: unknown): HpcserveError {
  return new HpcserveError('E_DELEGATION', {
    what: `the provider’s delegation ${path} does not count`,
    because,
    details: { path },
    cause,
  });
}
