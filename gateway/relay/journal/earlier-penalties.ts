import { z } from 'zod';
import type { BodyEdit } from '../body-edits.ts';
import { scalarOf, setMember } from '../request-body.ts';
import type { RequestScan } from '../request-scan.ts';

/** Engines cut a bias off beyond this (OpenAI's API reference; vLLM `SamplingParams.from_optional`). */
const bias_max = 100;

const biases = z.record(z.string(), z.number()).nullish();

/**
 * What `frequency_penalty` of a request takes from tokens that its answer holds already, as a bias: the engine that
 * goes on has them in its prompt, and counts from there on. Each time that a token was given takes the same from it, so
 * both together are what an undisturbed answer would have. (With `repetition_penalty` besides, engines that scale after
 * a bias come near it.) `presence_penalty` takes from a token once, whether it was given once or often: that cannot be
 * said by a bias, and counts anew. `repetition_penalty` counts prompts, and `min_tokens` is made less.
 *
 * @param given tokens of the answer so far
 */
export function earlierPenalties(scan: RequestScan, given: readonly number[]): BodyEdit[] {
  const penalty = scalarOf(scan, 'frequency_penalty');
  if (typeof penalty !== 'number' || penalty === 0 || given.length === 0) return [];
  const span = scan.members.get('logit_bias');
  const asked = biases.safeParse(span && JSON.parse(scan.bytes.toString('utf8', span.start, span.end)));
  // The engine says what is wrong with it.
  if (!asked.success) return [];
  const sums = new Map(Object.entries(asked.data ?? {}));
  for (const token of given) sums.set(String(token), (sums.get(String(token)) ?? 0) - penalty);
  const bounded = [...sums].map(([token, bias]) => [token, Math.max(-bias_max, Math.min(bias_max, bias))]);
  return [setMember(scan, 'logit_bias', JSON.stringify(Object.fromEntries(bounded)))];
}
