/**
 * What stages say to each other while a layout changes, in frames of the ring of the old layout or of the new one.
 *
 *     copies   coordinator ──old ring──► … ──► back      behind every batch that was submitted before: read these rows
 *     kv       source ──► … ──► target                   rows; between the two rings the coordinator passes them on.
 *                                                        Where a session is told they go there beside the rings
 *     copied   target ──new ring──► coordinator           they are written, or why not
 *     begin    around the ring of a layout                the new epoch
 *     release  around both rings                          which layout it is for good
 */
import { z } from 'zod';
import type { BlockRows } from '../../solver/refactoring/copy-mask.ts';

const blockRowsSchema = z
  .tuple([z.int().min(0), z.int().min(0), z.int().min(1)])
  .refine(([, begin, end]) => begin < end);

/** Rows of some blocks, of the layers of a transfer: what travels as one frame. */
export const pieceSchema = z.object({
  transfer: z.int().min(0),
  round: z.int().min(1),
  /** Counts the pieces of a round. */
  piece: z.int().min(0),
  from: z.string(),
  to: z.string(),
  /** Operators [begin, end). */
  begin: z.int().min(0),
  end: z.int().min(1),
  /** Block, first row, one past the last. */
  rows: z.array(blockRowsSchema).min(1),
  /** Of the worker that has `to`: they go there beside the rings; absent: by the rings. */
  to_session: z.string().optional(),
});
export type KvPiece = z.infer<typeof pieceSchema>;

const of = { refactoring: z.int().min(1) };
export const copiesMetaSchema = z.object({ ...of, pieces: z.array(pieceSchema) });
export const kvMetaSchema = z.object({ ...of, piece: pieceSchema });
export const copiedMetaSchema = z.object({
  /** 0: of a frame that could not be read. */
  refactoring: z.int().min(0),
  transfer: z.int().min(0),
  round: z.int().min(0),
  piece: z.int().min(0),
  /** Absent: its rows are written. */
  error: z.string().optional(),
  /** They did not come beside the rings, or not yet: they are to come by them. */
  again: z.string().optional(),
  /** How they came beside the rings, for people; absent: by the rings. */
  way: z.string().optional(),
});
export const releaseMetaSchema = z.object({
  ...of,
  layout: z.array(z.object({ device: z.string(), begin: z.int().min(0), end: z.int().min(1) })),
});

export function countRows({ rows }: Pick<KvPiece, 'rows'>): number {
  return rows.reduce((sum, [, begin, end]) => sum + end - begin, 0);
}

export function rowsOf({ rows }: KvPiece): Omit<BlockRows, 'content'>[] {
  return rows.map(([block, begin, end]) => ({ block, begin, end }));
}
