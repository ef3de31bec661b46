import { z } from 'zod';
import { type BegunAnswer, continuation } from '../../spec/wire.ts';
import type { Replica } from '../routing/replica.ts';
import { type BodyPieces, spliced } from './body-edits.ts';
import { memberEdit, type ParsedRequest } from './request-body.ts';

const count = z.number().int().nonnegative();
const begunSchema = z.strictObject({
  // Seeds have 64 bits.
  seed: z.number().refine(Number.isInteger),
  continue: z.strictObject({
    choices: z.array(z.strictObject({ token_ids: z.array(count) })).min(1),
    id: z.string().regex(/^[\w-]{1,128}$/),
    created: count,
    prompt_digest: z.string().regex(/^[0-9a-f]{1,64}$/),
    cached_tokens: count,
    rendered_ms: z.number().nonnegative().optional(),
  }),
});

/** What a replica had of an answer that comes whole when it gave it away. */
export interface BegunElsewhere {
  answer: BegunAnswer;
  /** An alias may have several models. */
  model: string;
  /** Of its weights: others would go on with another model's mind. */
  precision: string;
}

/** Whether this replica can complete it. */
export function completes(begun: BegunElsewhere, { native, served }: Replica<unknown>): boolean {
  return native && served.name === begun.model && served.precision === begun.precision;
}

/**
 * What a replica's error says of the answer that it gave away, and the error without that, which is no client's
 * business. What cannot be read counts as not said.
 */
export function readBegun(body: Buffer): { body: Buffer; begun?: BegunAnswer } {
  if (!body.includes(`"${continuation.begun}"`)) return { body };
  let said: unknown;
  try {
    said = JSON.parse(body.toString());
  } catch (error) {
    if (error instanceof SyntaxError) return { body };
    throw error;
  }
  const { data } = z.looseObject({ error: z.looseObject({}) }).safeParse(said);
  if (!data) return { body };
  const { [continuation.begun]: told, ...error } = data.error;
  const read = { body: Buffer.from(JSON.stringify({ ...data, error })) };
  const begun = begunSchema.safeParse(told).data;
  return begun ? { ...read, begun } : read;
}

/**
 * The request with which another replica completes it.
 * @param kv what its keys and values are called there; absent: they are computed again
 */
export function completingBody({ scan }: ParsedRequest, answer: BegunAnswer, kv?: string): BodyPieces {
  const asked = kv === undefined ? answer.continue : { ...answer.continue, kv };
  // The same bytes and, behind them, what is to count: of equal keys the last one does.
  const added = `"seed":${answer.seed},"${continuation.continue}":${JSON.stringify(asked)}`;
  return spliced(scan.bytes, [memberEdit(scan, added)]);
}
