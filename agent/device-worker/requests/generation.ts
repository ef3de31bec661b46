/** What chat and text completions ask in common: how to choose tokens, and when to stop. */

import { randomInt } from 'node:crypto';
import { continuation } from '../../../spec/wire.ts';
import type { SamplingParameters } from '../../text/sampling/parameters.ts';
import type { GrammarConstraint } from '../compute/messages.ts';
import type { BodyReader } from './body-reader.ts';

/** Answers of one request at most; each takes a place in the batch. */
const mostChoices = 128;
/** OpenAI allows 4; more cost little here, but a bound keeps hostile requests cheap. */
const mostStops = 16;
const longestStop = 1024;

interface Continuation {
  /** Tokens of the prompt as they were; absent: the prompt is made again from the request. */
  prompt_token_ids?: number[];
  /** Tokens of the answer so far. */
  token_ids: number[];
}

export interface GenerationParameters {
  sampling: Omit<SamplingParameters, 'choice' | 'logprobs'>;
  n: number;
  stop: string[];
  include_stop: boolean;
  stop_token_ids: number[];
  ignore_eos: boolean;
  /** Control tokens are left out of the text. */
  skip_special_tokens: boolean;
  stream: boolean;
  include_usage: boolean;
  grammar?: GrammarConstraint;
  continued?: Continuation;
}

/** @param n_vocab size of the vocabulary, for token ids in the request */
export function readGeneration(body: BodyReader, n_vocab: number): GenerationParameters {
  const token = { min: 0, max: n_vocab - 1 };
  const seed = body.number('seed', { integer: true }) ?? randomInt(2 ** 47);
  const sampling = {
    temperature: body.number('temperature', { min: 0, max: 100 }) ?? 1,
    top_p: positive(body, 'top_p', body.number('top_p', { min: 0, max: 1 }) ?? 1),
    // −1 is vLLM's way to say all.
    top_k: Math.max(0, body.number('top_k', { min: -1, integer: true }) ?? 0),
    min_p: body.number('min_p', { min: 0, max: 1 }) ?? 0,
    typical_p: positive(body, 'typical_p', body.number('typical_p', { min: 0, max: 1 }) ?? 1),
    presence_penalty: body.number('presence_penalty', { min: -2, max: 2 }) ?? 0,
    frequency_penalty: body.number('frequency_penalty', { min: -2, max: 2 }) ?? 0,
    repetition_penalty: positive(
      body,
      'repetition_penalty',
      body.number('repetition_penalty', { min: 0, max: 100 }) ?? 1,
    ),
    logit_bias: readLogitBias(body, n_vocab),
    min_tokens: body.number('min_tokens', { min: 0, integer: true }) ?? 0,
    seed,
  };
  const stream = body.boolean('stream') ?? false;
  const grammar = body.string('grammar');
  const continued = readContinuation(body, token);
  const n = body.number('n', { min: 1, max: mostChoices, integer: true }) ?? 1;
  if (continued && n > 1) body.refuse('n', `must be 1 where \`${continuation.continue}\` is given`);
  return {
    sampling,
    n,
    stop: readStop(body),
    include_stop: body.boolean('include_stop_str_in_output') ?? false,
    stop_token_ids: body.integers('stop_token_ids', token) ?? [],
    ignore_eos: body.boolean('ignore_eos') ?? false,
    skip_special_tokens: body.boolean('skip_special_tokens') ?? true,
    stream,
    include_usage: readStreamOptions(body, stream),
    ...(grammar === undefined ? {} : { grammar: { gbnf: grammar } }),
    ...(continued === undefined ? {} : { continued }),
  };
}

function positive(body: BodyReader, name: string, value: number): number {
  return value > 0 ? value : body.refuse(name, 'must be greater than 0');
}

function readLogitBias(body: BodyReader, n_vocab: number): [number, number][] {
  const bias = body.object('logit_bias');
  if (!bias) return [];
  return Object.keys(bias.body).map((key) => {
    const token = Number(key);
    if (!/^\d+$/.test(key) || token >= n_vocab)
      bias.refuse(key, `is not a token id from 0 to ${n_vocab - 1}`);
    return [token, bias.number(key, { min: -100, max: 100 }) ?? 0];
  });
}

function readStop(body: BodyReader): string[] {
  const stop = body.raw('stop');
  if (stop === undefined) return [];
  const list = Array.isArray(stop) ? stop : [stop];
  if (list.length > mostStops) body.refuse('stop', `may hold at most ${mostStops} strings`);
  return list.map((value) => {
    if (typeof value !== 'string') return body.refuse('stop', 'must be a string or a list of strings');
    if (value.length === 0) return body.refuse('stop', 'must not hold an empty string');
    if (value.length > longestStop)
      return body.refuse('stop', `strings may have at most ${longestStop} characters`);
    return value;
  });
}

function readStreamOptions(body: BodyReader, stream: boolean): boolean {
  const options = body.object('stream_options');
  if (!options) return false;
  if (!stream) body.refuse('stream_options', 'is only allowed where `stream` is true');
  const include = options.boolean('include_usage') ?? false;
  options.ignore('include_obfuscation');
  options.finish();
  return include;
}

function readContinuation(body: BodyReader, token: { min: number; max: number }): Continuation | undefined {
  const continued = body.object(continuation.continue);
  if (!continued) return undefined;
  const prompt_token_ids = continued.integers('prompt_token_ids', token);
  const token_ids = continued.integers('token_ids', token);
  continued.finish();
  if (token_ids === undefined) return continued.refuse('token_ids', 'is required');
  return { token_ids, ...(prompt_token_ids === undefined ? {} : { prompt_token_ids }) };
}
