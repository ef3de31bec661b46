/**
 * Whose session it is, as its record proves it: a provider's key signed a launch's key, and that signed the session's
 * key. The name of a provider is a label; its identity is the fingerprint of its key.
 */
import { createHash, createPublicKey, type KeyObject, verify } from 'node:crypto';
import { encode, rfc8949EncodeOptions } from 'cborg';
import { z } from 'zod';
import type { SessionMetadata } from '../spec/session-record.ts';
import { sessionIdOfKey } from './session-identity.ts';

/** What a record carries of it; keys are raw Ed25519 keys. Name and scope stand in the record already. */
export interface Credential {
  provider_key: Uint8Array;
  launch_key: Uint8Array;
  /** From then on it proves nothing, Unix s. */
  not_after_s: number;
  /** By the provider's key, of `delegationBytes`. */
  delegation: Uint8Array;
  /** By the launch's key, of `certificateBytes`. */
  certificate: Uint8Array;
}

/** What a provider's key says of a launch's key: it may sign the keys of sessions of this scope, under this name. */
export interface DelegationStatement {
  provider_key: Uint8Array;
  launch_key: Uint8Array;
  /** `user@site`, a label for people. */
  name: string;
  /** See `scopeOf`. */
  scope: string;
  not_after_s: number;
}

/** What a credential proves: the fingerprint of the provider's key, and until when. */
export interface ProvenProvider {
  provider_id: string;
  proven_until_ms: number;
}

const bytes = (length: number): z.ZodType<Uint8Array> =>
  z.instanceof(Uint8Array).refine((value) => value.length === length, `not ${length} bytes`);

/** Later than any clock: times in ms stay safe integers. */
const not_after_s_max = 2 ** 40;

/** As it stands in a record: a list, since names of fields would be a third of it. */
export const credentialSchema = z
  .tuple([bytes(32), bytes(32), z.int().min(0).max(not_after_s_max), bytes(64), bytes(64)])
  .transform(
    ([provider_key, launch_key, not_after_s, delegation, certificate]): Credential => ({
      provider_key,
      launch_key,
      not_after_s,
      delegation,
      certificate,
    }),
  );

export function credentialList(credential: Credential): z.input<typeof credentialSchema> {
  const { provider_key, launch_key, not_after_s, delegation, certificate } = credential;
  return [provider_key, launch_key, not_after_s, delegation, certificate];
}

/**
 * The launch that sessions with this metadata belong to, or that they are gateways; undefined where they are neither.
 */
function scopeOf({ role, launch_id }: Pick<SessionMetadata, 'role' | 'launch_id'>): string | undefined {
  if (role === 'gateway') return gateway_scope;
  return launch_id === undefined ? undefined : launchScope(launch_id);
}

export const gateway_scope = 'gateway';

export function launchScope(launch_id: string): string {
  return `launch ${launch_id}`;
}

/** First 16 bytes of SHA-256 over the SPKI DER of a raw Ed25519 key, in hex. */
export function providerFingerprint(key: Uint8Array): string {
  return sessionIdOfKey(spkiOf(key));
}

/** Deterministic CBOR under a label of its own, so that no other signature of the key passes for it. */
export function delegationBytes(statement: DelegationStatement): Uint8Array {
  const { provider_key, launch_key, name, scope, not_after_s } = statement;
  const body = encode({ provider_key, launch_key, name, scope, not_after_s }, rfc8949EncodeOptions);
  return Buffer.concat([Buffer.from('hpcserve delegation v1\0'), body]);
}

/** @param session_key SPKI DER */
export function certificateBytes(session_key: Uint8Array): Uint8Array {
  return Buffer.concat([Buffer.from('hpcserve session key v1\0'), session_key]);
}

/** Whether the provider's key signed just this. */
export function isDelegated(statement: DelegationStatement, signature: Uint8Array): boolean {
  return isSigned(delegationBytes(statement), statement.provider_key, signature);
}

/**
 * Delegations that hold, by a digest of all that they say: every session of a launch shows the same one, in each
 * version.
 */
const delegated = new Set<string>();
/** Higher: fewer signatures are verified again in large meshes; 100 bytes each. */
const delegated_max = 256;

/**
 * What a record's credential proves, by every check but that of time: who asks compares `proven_until_ms` with its
 * clock.
 *
 * @param session_key SPKI DER of the record's signer
 * @returns undefined where the chain does not lead from the provider to this session
 */
export function provenProvider(
  credential: Credential,
  session_key: Uint8Array,
  metadata: Pick<SessionMetadata, 'role' | 'launch_id' | 'provider'>,
): ProvenProvider | undefined {
  const scope = scopeOf(metadata);
  if (scope === undefined) return undefined;
  const { provider_key, launch_key, not_after_s, delegation, certificate } = credential;
  const statement = { provider_key, launch_key, name: metadata.provider, scope, not_after_s };
  if (!isKnownDelegation(statement, delegation)) return undefined;
  if (!isSigned(certificateBytes(session_key), launch_key, certificate)) return undefined;
  return { provider_id: providerFingerprint(provider_key), proven_until_ms: not_after_s * 1000 };
}

function isKnownDelegation(statement: DelegationStatement, signature: Uint8Array): boolean {
  const hash = createHash('sha256').update(signature).update(delegationBytes(statement));
  const digest = hash.digest('base64');
  if (delegated.has(digest)) return true;
  if (!isDelegated(statement, signature)) return false;
  if (delegated.size >= delegated_max) delegated.clear();
  delegated.add(digest);
  return true;
}

function isSigned(said: Uint8Array, key: Uint8Array, signature: Uint8Array): boolean {
  let publicKey: KeyObject;
  try {
    publicKey = createPublicKey({ key: Buffer.from(spkiOf(key)), format: 'der', type: 'spki' });
  } catch {
    return false; // 32 bytes that are no key sign nothing
  }
  return verify(null, said, publicKey, signature);
}

const spki_prefix = Buffer.from('302a300506032b6570032100', 'hex');

function spkiOf(key: Uint8Array): Uint8Array {
  return Buffer.concat([spki_prefix, key]);
}

/** The 32 bytes of an Ed25519 key, public or private. */
export function rawPublicKey(key: KeyObject): Uint8Array {
  const spki = (key.type === 'private' ? createPublicKey(key) : key).export({ type: 'spki', format: 'der' });
  return new Uint8Array(spki.subarray(spki_prefix.length));
}
