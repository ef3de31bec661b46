/**
 * The bytes of gossip messages: CBOR, with entries as their signed envelopes. What a message says is checked for its
 * form here, and each entry is opened and verified unless the table has the very same already.
 */
import { decode, encode, rfc8949EncodeOptions } from 'cborg';
import { z } from 'zod';
import { type Entry, openEntryOf, sealedEntry, unknownPart } from '../entry.ts';
import { RecordRejected, type RejectReason } from '../record-codec.ts';
import { bucket_count, type SessionTable } from '../session-table.ts';
import type { Excess } from '../table-bounds.ts';
import type { GossipMessage } from './messages.ts';

/** Largest message that is read. Holds one entry of the greatest size, or many of the usual one. */
export const message_bytes_max = 512 * 1024;

const sessionId = z.string().regex(/^[0-9a-f]{32}$/);
const count = z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);
const peer = z.string().min(1).max(64);
const bytes = z.instanceof(Uint8Array);
const bucket = count.max(bucket_count - 1);
const sessions_max = 20_000;

const messageSchema = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('beat'),
    sessions: z
      .array(
        z.strictObject({
          session_id: sessionId,
          load: z.strictObject({ running: count, waiting: count, max_sequences: count }).optional(),
        }),
      )
      .max(1024),
  }),
  z.strictObject({
    kind: z.literal('news'),
    entries: z
      .array(z.strictObject({ id: sessionId, record: bytes.optional(), departure: bytes.optional() }))
      .max(4096),
  }),
  z.strictObject({ kind: z.literal('probe'), nonce: count }),
  z.strictObject({ kind: z.literal('alive'), nonce: count }),
  z.strictObject({ kind: z.literal('probe_for'), nonce: count, peer }),
  z.strictObject({ kind: z.literal('alive_for'), nonce: count, peer }),
  z.strictObject({ kind: z.literal('sums'), sums: z.array(count).length(bucket_count) }),
  z.strictObject({
    kind: z.literal('marks'),
    buckets: z.array(bucket).max(bucket_count),
    marks: z.array(z.tuple([sessionId, count])).max(sessions_max),
  }),
  z.strictObject({ kind: z.literal('want'), session_ids: z.array(sessionId).max(sessions_max) }),
]);

const encodeOptions = { ...rfc8949EncodeOptions, ignoreUndefinedProperties: true };

export function encodeMessage(message: GossipMessage): Uint8Array {
  if (message.kind !== 'news') return encode(message, encodeOptions);
  const entries = message.entries.map((entry) => {
    const { record, tombstone } = sealedEntry(entry);
    // On the wire a tombstone is called a departure.
    return { id: entry.session_id, record, departure: tombstone };
  });
  return encode({ kind: 'news', entries }, encodeOptions);
}

/** `too_fast`: more than a member may bring a second; `too_much`: more than its origin may have in the table. */
export type MessageRejection = RejectReason | 'too_fast' | 'too_much';

/** What the sender of a message may bring. */
export interface Admission {
  /** Before anything is verified: whether it may bring so many bytes more that are new here. */
  takes(bytes: number): boolean;
  /** Whose bound an entry would break. */
  excess(entry: Entry): Excess | undefined;
}

/**
 * The message in some bytes. Of news, entries that the table has already are left out, and those that are not right are
 * told to `reject`; the others count.
 *
 * @returns undefined where the bytes are no message
 */
export function decodeMessage(
  encoded: Uint8Array,
  table: SessionTable,
  networkKey: Uint8Array,
  reject: (reason: MessageRejection, message: string) => void,
  admission?: Admission,
): GossipMessage | undefined {
  if (encoded.length > message_bytes_max) {
    reject('oversized', `a message of ${encoded.length} bytes`);
    return undefined;
  }
  let value: unknown;
  try {
    value = decode(encoded, { strict: true, allowBigInt: false, rejectDuplicateMapKeys: true });
  } catch (error) {
    reject('malformed', (error as Error).message);
    return undefined;
  }
  const parsed = messageSchema.safeParse(value);
  if (!parsed.success) {
    reject('malformed', parsed.error.issues[0]?.message ?? 'not a message');
    return undefined;
  }
  const message = parsed.data;
  if (message.kind !== 'news') return message as GossipMessage;
  const entries: Entry[] = [];
  for (const { id, record, departure } of message.entries) {
    try {
      const unknown = unknownPart({ record, tombstone: departure }, table.entry(id));
      if (!unknown) {
        table.merge(table.entry(id)!, 'gossip'); // known, and now by gossip too
        continue;
      }
      const bytes = (unknown.record?.length ?? 0) + (unknown.tombstone?.length ?? 0);
      if (admission?.takes(bytes) === false) {
        reject('too_fast', `${bytes} bytes more, which may come again later`);
        continue;
      }
      const entry = openEntryOf(id, unknown, networkKey);
      const excess = admission?.excess(entry);
      if (excess) reject('too_much', describeExcess(entry, excess));
      else entries.push(entry);
    } catch (error) {
      if (!(error instanceof RecordRejected)) throw error;
      reject(error.reason, error.message);
    }
  }
  return { kind: 'news', entries };
}

function describeExcess({ session_id, record }: Entry, excess: Excess): string {
  const { peer, provider } = record!.value.metadata;
  const whose = { member: `the member ${peer?.id}`, provider: `the provider ${provider}`, all: 'all others' };
  return `session ${session_id}, beyond what this table holds of ${whose[excess]}`;
}
