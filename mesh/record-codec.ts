/**
 * The bytes of a record: deterministic CBOR (RFC 8949 §4.2.1), signed by the session's own key, with an HMAC
 * under the mesh's network key. The envelope is CBOR too:
 * `{ format: 1, kind, body: bytes, signer: SPKI bytes, signature: bytes[64], mac: bytes[32] }`.
 */
import { createHmac, createPublicKey, timingSafeEqual, verify } from 'node:crypto';
import { decode, encode, rfc8949EncodeOptions } from 'cborg';
import { z } from 'zod';
import { type Lifecycle, lifecycles, type SessionRecord } from '../spec/session-record.ts';
import {
  type Credential,
  credentialList,
  credentialSchema,
  type ProvenProvider,
  provenProvider,
} from './credential.ts';
import { sessionRecordSchema } from './record-schema.ts';
import { type SessionIdentity, sessionIdOfKey } from './session-identity.ts';

/** Largest envelope that is read. Lower: fewer models a session can list; higher: more work for hostile files. */
export const record_bytes_max = 128 * 1024;

/** Why an envelope does not count; shown in status and metrics. */
export type RejectReason =
  | 'malformed'
  | 'foreign_key'
  | 'forged'
  | 'oversized'
  | 'wrong_name'
  | 'unreadable'
  | 'replayed';

/** An envelope does not count, for a reason that is counted. */
export class RecordRejected extends Error {
  override readonly name = 'RecordRejected';
  readonly reason: RejectReason;
  constructor(reason: RejectReason, message: string) {
    super(message);
    this.reason = reason;
  }
}

/** Which record of a session: they are ordered by lifecycle, then version. */
export interface RecordMark {
  lifecycle: Lifecycle;
  version: number;
}

/** A peer's word that a session is gone, with what it saw; the session itself cannot say so any more. */
export interface Tombstone {
  session_id: string;
  /** The newest record that it is about: a later one shows that the session lives. Absent: it is about all of them. */
  seen?: RecordMark;
  /** What was observed, for people and logs: `Slurm job 42 ended: NODE_FAIL`. */
  evidence: string;
}

const tombstoneSchema: z.ZodType<Tombstone> = z.object({
  session_id: z.string().regex(/^[0-9a-f]{32}$/),
  seen: z
    .object({ lifecycle: z.enum(lifecycles), version: z.number().int().min(0).max(Number.MAX_SAFE_INTEGER) })
    .optional(),
  evidence: z.string().min(1).max(1024),
});

const envelopeSchema = z.strictObject({
  format: z.literal(1),
  kind: z.enum(['record', 'departure']),
  body: z.instanceof(Uint8Array),
  signer: z.instanceof(Uint8Array).refine((key) => key.length === 44, 'not the SPKI of an Ed25519 key'),
  signature: z.instanceof(Uint8Array).refine((bytes) => bytes.length === 64),
  mac: z.instanceof(Uint8Array).refine((bytes) => bytes.length === 32),
});
type EnvelopeKind = z.infer<typeof envelopeSchema>['kind'];

const encodeOptions = { ...rfc8949EncodeOptions, ignoreUndefinedProperties: true };

/**
 * Deterministic CBOR of a record: equal records have equal bytes. What readers find out for themselves is not in it.
 */
export function encodeRecord(record: SessionRecord, credential?: Credential): Uint8Array {
  const { provider_id: _, proven_until_ms: __, ...said } = record;
  return encode(credential ? { ...said, credential: credentialList(credential) } : said, encodeOptions);
}

/**
 * @param credential proves whose session it is; without one nobody's
 * @throws TypeError where the identity is not the record's own
 */
export function sealRecord(
  record: SessionRecord,
  identity: SessionIdentity,
  networkKey: Uint8Array,
  credential?: Credential,
): Uint8Array {
  if (record.session_id !== identity.session_id) {
    throw new TypeError(`session ${identity.session_id} cannot write the record of ${record.session_id}`);
  }
  return seal('record', encodeRecord(record, credential), identity, networkKey);
}

export function sealTombstone(
  tombstone: Tombstone,
  reporter: SessionIdentity,
  networkKey: Uint8Array,
): Uint8Array {
  return seal('departure', encode(tombstone, encodeOptions), reporter, networkKey);
}

/**
 * The record in an envelope, after every check: size, form, membership (HMAC), signature, that the session id belongs
 * to the signing key, and that a credential, where there is one, leads from a provider to this session. That it is not
 * over is not looked at here: all members must take the same records, and their clocks differ.
 *
 * @throws RecordRejected
 */
export function openRecord(envelope: Uint8Array, networkKey: Uint8Array): SessionRecord {
  const { value, signer } = open('record', envelope, networkKey);
  const parsed = sessionRecordSchema.safeParse(value);
  if (!parsed.success) throw new RecordRejected('malformed', firstIssue(parsed.error));
  const record = parsed.data;
  if (
    record.session_id !== sessionIdOfKey(signer) ||
    record.public_key !== Buffer.from(signer).toString('base64')
  ) {
    throw new RecordRejected('forged', `signed by a key that is not that of session ${record.session_id}`);
  }
  return compact({ ...record, ...proofOf(value as { credential?: unknown }, signer, record) });
}

/** @throws RecordRejected where there is a credential that leads from no provider to this session */
function proofOf(
  { credential }: { credential?: unknown },
  signer: Uint8Array,
  { metadata }: SessionRecord,
): ProvenProvider | undefined {
  if (credential === undefined) return undefined;
  const parsed = credentialSchema.safeParse(credential);
  if (!parsed.success) throw new RecordRejected('malformed', firstIssue(parsed.error));
  const proof = provenProvider(parsed.data, signer, metadata);
  if (!proof) throw new RecordRejected('forged', `${metadata.provider} did not vouch for this session`);
  return proof;
}

/**
 * A peer's tombstone notice, after every check but one: whether the evidence convinces is the reader's business.
 *
 * @throws RecordRejected
 */
export function openTombstone(envelope: Uint8Array, networkKey: Uint8Array): Tombstone {
  const parsed = tombstoneSchema.safeParse(open('departure', envelope, networkKey).value);
  if (!parsed.success) throw new RecordRejected('malformed', firstIssue(parsed.error));
  return parsed.data;
}

function seal(
  kind: EnvelopeKind,
  body: Uint8Array,
  identity: SessionIdentity,
  networkKey: Uint8Array,
): Uint8Array {
  const signer = identity.public_key;
  const signature = identity.sign(signedBytes(kind, body));
  const mac = macOf(kind, body, signer, signature, networkKey);
  const envelope = encode({ format: 1, kind, body, signer, signature, mac }, encodeOptions);
  if (envelope.length > record_bytes_max) {
    throw new RangeError(`a record of ${envelope.length} bytes is over the limit of ${record_bytes_max}`);
  }
  return envelope;
}

function open(
  kind: EnvelopeKind,
  bytes: Uint8Array,
  networkKey: Uint8Array,
): { value: unknown; signer: Uint8Array } {
  if (bytes.length > record_bytes_max) throw new RecordRejected('oversized', `${bytes.length} bytes`);
  const parsed = envelopeSchema.safeParse(decodeStrictly(bytes));
  if (!parsed.success) throw new RecordRejected('malformed', firstIssue(parsed.error));
  const { body, signer, signature, mac } = parsed.data;
  if (parsed.data.kind !== kind)
    throw new RecordRejected('malformed', `a ${parsed.data.kind}, not a ${kind}`);
  // Membership first: without the network key nobody makes this process verify signatures.
  if (!timingSafeEqual(mac, macOf(kind, body, signer, signature, networkKey))) {
    throw new RecordRejected('foreign_key', 'not authenticated by the network key of this mesh');
  }
  const key = publicKeyOf(signer);
  if (!verify(null, signedBytes(kind, body), key, signature)) {
    throw new RecordRejected('forged', 'the signature does not fit');
  }
  return { value: decodeStrictly(body), signer };
}

function publicKeyOf(spki: Uint8Array): ReturnType<typeof createPublicKey> {
  try {
    return createPublicKey({ key: Buffer.from(spki), format: 'der', type: 'spki' });
  } catch (error) {
    throw new RecordRejected('malformed', `the signer is not a key: ${(error as Error).message}`);
  }
}

/** The kind is part of what is signed, so that a signature of one kind never passes as another. */
function signedBytes(kind: EnvelopeKind, body: Uint8Array): Uint8Array {
  return Buffer.concat([Buffer.from(`hpcserve ${kind} v1\0`), body]);
}

function macOf(
  kind: EnvelopeKind,
  body: Uint8Array,
  signer: Uint8Array,
  signature: Uint8Array,
  networkKey: Uint8Array,
): Buffer {
  return createHmac('sha256', networkKey)
    .update(encode([`hpcserve ${kind} v1`, body, signer, signature], encodeOptions))
    .digest();
}

/** One value, one encoding: otherwise members could disagree on which of two records is the greater. */
function decodeStrictly(bytes: Uint8Array): unknown {
  let value: unknown;
  let again: Uint8Array;
  try {
    value = decode(bytes, {
      strict: true,
      allowIndefinite: false,
      allowUndefined: false,
      allowBigInt: false,
      rejectDuplicateMapKeys: true,
    });
    again = encode(value, encodeOptions);
  } catch (error) {
    throw new RecordRejected('malformed', (error as Error).message);
  }
  if (Buffer.compare(again, bytes) !== 0) {
    throw new RecordRejected('malformed', 'not in deterministic encoding');
  }
  return value;
}

/** Fields of which many records say the same: of each text one is kept. */
const repeated = new Set([
  'lifecycle',
  'role',
  'deployment',
  'launch_id',
  'slurm_account',
  'site',
  'region',
  'provider',
  'provider_id',
  'tier',
  'engine',
  'engine_version',
]);
const texts = new Map<string, string>();
const texts_max = 4096;

/** Parts that replicas of a model mostly have in common as a whole: one of each is kept, frozen. */
const parts = new Map<string, object>();
const parts_max = 1024;
const part_chars_max = 4096;

/**
 * The same record in half the memory: with texts and parts shared between records, and with objects and arrays of
 * just their size, as V8's JSON parser makes them; those of a decoder have room for more.
 */
function compact(wide: SessionRecord): SessionRecord {
  const record = shareTexts(JSON.parse(JSON.stringify(wide)) as SessionRecord);
  const metadata = shareTexts(record.metadata);
  if (metadata.hostname === metadata.node) metadata.hostname = metadata.node;
  metadata.devices = sharePart(metadata.devices);
  metadata.models = sharePart(metadata.models);
  return record;
}

function shareTexts<T extends object>(value: T): T {
  const fields = value as Record<string, unknown>;
  for (const [key, text] of Object.entries(fields)) {
    if (repeated.has(key)) fields[key] = kept(texts, texts_max, text as string, () => text as string);
  }
  return value;
}

function sharePart<T extends object>(part: T): T {
  const text = JSON.stringify(part);
  return text.length > part_chars_max ? part : (kept(parts, parts_max, text, () => freeze(part)) as T);
}

function freeze(value: object): object {
  for (const inside of Object.values(value))
    if (typeof inside === 'object' && inside !== null) freeze(inside);
  return Object.freeze(value);
}

function kept<T>(known: Map<string, T>, most: number, key: string, make: () => T): T {
  const found = known.get(key);
  if (found !== undefined) return found;
  if (known.size >= most) known.clear();
  const made = make();
  known.set(key, made);
  return made;
}

function firstIssue(error: z.ZodError): string {
  const issue = error.issues[0];
  return issue ? `${issue.path.join('.') || 'envelope'}: ${issue.message}` : 'wrong form';
}
