/**
 * What two workers say to each other about a transfer, over an authenticated way. The bytes take another way, and
 * nothing of what is said about them is believed before it was compared.
 *
 *   source                                                     target
 *   open (way, ticket or key)  ───────────────────────────►  listens for this peer, or opens its end of the fabric
 *   connected (what the probe wrote)  ────────────────────►  the way works
 *   begin (sequence, generation, format, runs)  ──────────►  compares, reserves rows; answers where they are
 *   ═══ the bytes of the runs, several on their way ═════►   written to their rows, summed up
 *   finish (a header a run, with its checksum)  ──────────►  compares; the rows are the sequence's. Only after this
 *                                                            answer may the source use its rows for anything else.
 *
 * Before all that a source may ask for `room`, which says how many sequences of a model the target could take.
 */
import { z } from 'zod';
import { fabric_name_bytes_max } from '../../native/fabric/fabric.ts';
import { pieceSchema } from '../pipeline/layout-messages.ts';
import { kvFormatSchema } from './kv-format.ts';
import { pieces_max, runs_max, tokens_max } from './limits.ts';

export const ways = ['rma', 'sendfile', 'tcp'] as const;
export type Way = (typeof ways)[number];

const count = z.int().min(0).max(Number.MAX_SAFE_INTEGER);
const hex = (bytes: number) => z.string().regex(new RegExp(`^[0-9a-f]{${2 * bytes}}$`));
const base64 = (bytes: number) =>
  z
    .string()
    .max(Math.ceil(bytes / 3) * 4)
    .regex(/^[A-Za-z0-9+/]*={0,2}$/);
/** Printable, so that it can stand in a log. */
const words = z
  .string()
  .max(1024)
  .regex(/^[^\p{Cc}]*$/u);

const range = z
  .strictObject({ begin: count, end: count })
  .refine(({ begin, end }) => begin < end, 'a range without anything in it');
/** Tokens, or layers, [begin, end). */
export type Range = z.infer<typeof range>;

const wayNotice = z.strictObject({ way: words, because: words });

/** How others write to memory over a fabric. */
export const lentMemorySchema = z.strictObject({
  provider: words,
  name: base64(fabric_name_bytes_max),
  /** Four words of 64 bits: see `LentMemory`. */
  numbers: z.array(hex(8)).length(4),
  memory_bytes: count.min(1),
});
export type LentMemory = z.infer<typeof lentMemorySchema>;

const open = z.strictObject({
  kind: z.literal('open'),
  link: hex(16),
  way: z.enum(ways),
  /** Of a socket that is not encrypted: shown by the source. */
  ticket: hex(32).optional(),
  /** Of one that is: the public key that the source shows, SPKI DER. */
  key: base64(512).optional(),
  /** Of `rma`. */
  provider: words.optional(),
  /** Of a socket that is not encrypted: both are on one node, and meet on its loopback interface. */
  same_node: z.literal(true).optional(),
  /** Ways that were tried before, and did not work. */
  failed: z.array(wayNotice).max(16),
});

const offer = z.strictObject({
  /** Its name among all workers. */
  sequence: z
    .string()
    .min(1)
    .max(128)
    .regex(/^[\x21-\x7e]*$/),
  /** Grows with each worker that owns the sequence; of two, the older is void. */
  generation: count,
  /** Copies of one sequence in order: while it decodes, and the last. A try that failed is one, too. */
  round: count,
  format: kvFormatSchema,
  layers: range,
  tokens: range,
  /** Parts of `tokens` in order, without gaps; of each the bytes travel as one frame. */
  runs: z.array(range).min(1).max(runs_max),
  /** Whose rows they are, where the target does not know the sequence otherwise. */
  of: z
    .strictObject({
      /** Served name of its model. */
      model: words.min(1),
      /** All of its tokens, at least up to the end of `tokens`. */
      token_ids: z.array(z.int().min(0).max(0x7fff_ffff)).min(1).max(tokens_max),
      /** Who may begin with the same rows: see `headers.cache_scope`. */
      cache_scope: words.optional(),
    })
    .optional(),
  /** Rows of a stage instead, whose pipeline changes its layout: tokens count its rows. */
  stage: z
    .strictObject({
      /** Served name of its model. */
      model: words.min(1),
      refactoring: count.min(1),
      piece: pieceSchema,
    })
    .optional(),
});
export type KvOffer = z.infer<typeof offer>;

/** What the bytes of one run are. */
const header = z.strictObject({
  sequence: z.string().max(128),
  generation: count,
  layers: range,
  tokens: range,
  kv_type: z.string().max(16),
  bytes: count,
  /** CRC-32C. */
  checksum: z.int().min(0).max(0xffff_ffff),
});
export type KvRunHeader = z.infer<typeof header>;

const link = hex(16);
const transfer = hex(8);

export const kvMessageSchema = z.discriminatedUnion('kind', [
  open,
  z.strictObject({ kind: z.literal('connected'), link, probe: hex(64).optional() }),
  z.strictObject({ kind: z.literal('begin'), link, transfer, offer }),
  z.strictObject({
    kind: z.literal('finish'),
    link,
    transfer,
    headers: z.array(header).min(1).max(runs_max),
  }),
  z.strictObject({ kind: z.literal('close'), link }),
  z.strictObject({ kind: z.literal('room'), model: words.min(1) }),
]);
export type KvMessage = z.infer<typeof kvMessageSchema>;
export type OpenMessage = z.infer<typeof open>;

export const openedSchema = z.strictObject({
  port: z.int().min(1).max(65_535).optional(),
  ticket: hex(32).optional(),
  key: base64(512).optional(),
  session_id: hex(16).optional(),
  fabric: lentMemorySchema.optional(),
  /** More than that comes in several transfers; absent: all of it at once. */
  transfer_bytes_max: count.min(1).optional(),
});
export type Opened = z.infer<typeof openedSchema>;

const piece = z.strictObject({ offset: count, bytes: count.min(1) });
export const begunSchema = z.strictObject({
  /** Of `rma`: for each run, where its bytes belong in the target's memory. */
  places: z.array(z.array(piece).max(pieces_max)).max(runs_max).optional(),
});
export type Begun = z.infer<typeof begunSchema>;

/** What a worker could take of a model now. */
export const roomSchema = z.strictObject({
  /** Sequences. */
  places: count,
  /** Tokens of KV that no sequence uses. */
  kv_tokens: count,
  /** One iteration of those that decode there; absent: not measured. */
  step_ms: z.number().min(0).optional(),
});
export type KvRoom = z.infer<typeof roomSchema>;

export const doneSchema = z.strictObject({});
/** The rows of this transfer are the sequence's. */
export const finishedSchema = z.strictObject({ transfer });
export type Finished = z.infer<typeof finishedSchema>;
