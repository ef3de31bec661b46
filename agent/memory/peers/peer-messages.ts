/**
 * What device workers, node agents and peers say to one another about tensors in memory. A tensor is named by the
 * SHA-256 of its bytes in the file (base64url): who can name it has had it, and what comes is compared with its name.
 */
import { z } from 'zod';

/** Tensors that are asked for at once. */
const contents_max = 20_000;
/** Bytes of one answer. Lower: more requests; higher: a lost one costs more. */
export const range_bytes_max = 8 * 1024 * 1024;

const contentSchema = z.string().regex(/^[A-Za-z0-9_-]{43}$/);

/** Asked of a worker, `POST /hpcserve/v1/tensors`, and of the own agent, `POST /offers`. */
export const contentsSchema = z.strictObject({ contents: z.array(contentSchema).min(1).max(contents_max) });

/** A worker's answer: indices of those that its node has in memory. */
export const heldSchema = z.object({ held: z.array(z.int().min(0)) });

/** The own agent's answer: who has what. */
export const offersSchema = z.object({
  peers: z.array(z.object({ session_id: z.string(), node: z.string(), held: z.array(z.int().min(0)) })),
});
export type PeerOffer = z.infer<typeof offersSchema>['peers'][number];

/** Of `GET …/<content>?offset=…&bytes=…`, the same from worker, peer and agent. */
const tensorRangeSchema = z.object({
  content: contentSchema,
  offset: z.coerce.number().int().min(0),
  bytes: z.coerce.number().int().min(1).max(range_bytes_max),
});
export type TensorRange = z.infer<typeof tensorRangeSchema>;

/** @param prefix of the path, as `/tensors/`; undefined where it is no such request */
export function tensorRangeOf(url: string, prefix: string): TensorRange | undefined {
  const { pathname, searchParams } = new URL(url, 'http://here');
  if (!pathname.startsWith(prefix)) return undefined;
  const asked = tensorRangeSchema.safeParse({
    content: pathname.slice(prefix.length),
    offset: searchParams.get('offset'),
    bytes: searchParams.get('bytes'),
  });
  return asked.success ? asked.data : undefined;
}

export function rangePath(prefix: string, { content, offset, bytes }: TensorRange): string {
  return `${prefix}${content}?offset=${offset}&bytes=${bytes}`;
}
