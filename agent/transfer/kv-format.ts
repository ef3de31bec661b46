import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';

const word = z.string().min(1).max(256);
const count = z.int().min(0).max(Number.MAX_SAFE_INTEGER);

/** What a row of keys or values is. Two workers exchange bytes only where all of it is the same. */
export const kvFormatSchema = z.strictObject({
  /** Release of hpcserve, and of the kernels that computed the rows. */
  build: word,
  /** Hash of the model file. */
  model: word,
  kv_type: z.enum(['f16', 'q8_0', 'f32']),
  /** Keys (or values) of one token in one layer. */
  row_bytes: count.min(1),
  n_head_kv: count.min(1),
  head_dim: count.min(1),
});
export type KvFormat = z.infer<typeof kvFormatSchema>;

/** @throws HpcserveError E_KV_FORMAT: what differs, with both values */
export function requireSameFormat(own: KvFormat, theirs: KvFormat): void {
  const names = Object.keys(own) as (keyof KvFormat)[];
  const differing = names.filter((name) => own[name] !== theirs[name]);
  if (differing.length === 0) return;
  throw new HpcserveError('E_KV_FORMAT', {
    what: 'keys and values of a peer mean something else here',
    because: differing.map((name) => `${name} is ${theirs[name]} there and ${own[name]} here`),
  });
}
