/** What chat and text completions ask in common: how to choose tokens, and when to stop. */

import { randomInt } from 'node:crypto';
import { type ContinuedChoice, type ContinueRequest, continuation } from '../../../spec/wire.ts';
import type { SamplingParameters } from '../../text/sampling/parameters.ts';
import type { GrammarConstraint } from '../compute/messages.ts';
import { BodyReader, grammar_chars_max, type Json } from './body-reader.ts';
import { refuseVllmParameters } from './vllm-parameters.ts';

/**
 * Answers of one request; each takes a place in the batch. Lower: less of a device for one request; higher: fewer
 * requests.
 */
const choices_max = 128;
/** OpenAI allows 4. Lower: less work for hostile requests; higher: more, and longer, stop strings. */
const stops_max = 16;
const stop_chars_max = 1024;
/** OpenAI's and vLLM's seeds have 64 bits: the time in nanoseconds is one. */
const seed_max = 2 ** 63;
/** The last instant that a Date can hold (ECMA-262 §21.4.1.1). */
const latestDate_ms = 8.64e15;

/** An answer that another replica began. */
interface Continuation extends Omit<ContinueRequest, 'token_ids' | 'choices'> {
  choices: Required<ContinuedChoice>[];
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
  /** Of a stream: its last chunk has usage. */
  include_usage: boolean;
  /** All others have it, too, as of then. */
  continuous_usage: boolean;
  grammar?: GrammarConstraint;
  continued?: Continuation;
}

/** @param n_vocab size of the vocabulary, for token ids in the request */
export function readGeneration(body: BodyReader, n_vocab: number): GenerationParameters {
  refuseVllmParameters(body);
  const token = { min: 0, max: n_vocab - 1 };
  const seed = readSeed(body) ?? randomInt(2 ** 47);
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
  if (grammar !== undefined && grammar.length > grammar_chars_max)
    body.refuse('grammar', `may have at most ${grammar_chars_max} characters, not ${grammar.length}`);
  const continued = readContinuation(body, token);
  const n = body.number('n', { min: 1, max: choices_max, integer: true }) ?? 1;
  return {
    sampling,
    n,
    stop: readStop(body),
    include_stop: body.boolean('include_stop_str_in_output') ?? false,
    stop_token_ids: body.integers('stop_token_ids', token) ?? [],
    ignore_eos: body.boolean('ignore_eos') ?? false,
    skip_special_tokens: body.boolean('skip_special_tokens') ?? true,
    stream,
    ...readStreamOptions(body, stream),
    grammar: grammar === undefined ? undefined : { gbnf: grammar },
    continued,
  };
}

/** Beyond 2^53 those that JavaScript's numbers do not tell apart are the same seed. */
function readSeed(body: BodyReader): number | undefined {
  const seed = body.number('seed', { min: -seed_max, max: seed_max });
  return seed === undefined || Number.isInteger(seed)
    ? seed
    : body.refuse('seed', `must be an integer, not ${seed}`);
}

function positive(body: BodyReader, name: string, value: number): number {
  return value > 0 ? value : body.refuse(name, 'must be greater than 0');
}

function readLogitBias(body: BodyReader, n_vocab: number): [number, number][] {
  const bias = body.object('logit_bias');
  if (!bias) return [];
  const keys = Object.keys(bias.body);
  if (keys.length > n_vocab) body.refuse('logit_bias', `may name at most ${n_vocab} tokens`);
  return keys.map((key) => {
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
  if (list.length > stops_max) body.refuse('stop', `may hold at most ${stops_max} strings`);
  return list.map((value) => {
    if (typeof value !== 'string') return body.refuse('stop', 'must be a string or a list of strings');
    if (value.length === 0) return body.refuse('stop', 'must not hold an empty string');
    if (value.length > stop_chars_max)
      return body.refuse('stop', `strings may have at most ${stop_chars_max} characters`);
    return value;
  });
}

/**
 * `continuous_usage_stats` is vLLM's, which heeds it beside `include_usage` alone; clients that measure speed send
 * it.
 */
function readStreamOptions(
  body: BodyReader,
  stream: boolean,
): Pick<GenerationParameters, 'include_usage' | 'continuous_usage'> {
  const options = body.object('stream_options');
  if (!options) return { include_usage: false, continuous_usage: false };
  if (!stream) body.refuse('stream_options', 'is only allowed where `stream` is true');
  const include_usage = options.boolean('include_usage') ?? false;
  const continuous = options.boolean('continuous_usage_stats') ?? false;
  options.ignore('include_obfuscation');
  options.finish();
  return { include_usage, continuous_usage: include_usage && continuous };
}

function readContinuation(body: BodyReader, token: { min: number; max: number }): Continuation | undefined {
  const continued = body.object(continuation.continue);
  if (!continued) return undefined;
  const token_ids = continued.integers('token_ids', token);
  const list = continued.list('choices');
  if ((token_ids === undefined) === (list === undefined))
    return continued.refuse('token_ids', 'or else `choices` is required');
  const choices = list?.map((value, index) => readChoice(value, continued.path(`choices[${index}]`), token));
  const count = { min: 0, integer: true };
  const given = {
    prompt_token_ids: continued.integers('prompt_token_ids', token),
    rendered_ms: continued.number('rendered_ms', count),
    prompt_digest: continued.string('prompt_digest'),
    cached_tokens: continued.number('cached_tokens', count),
    kv: continued.string('kv'),
    id: continued.string('id'),
    created: continued.number('created', count),
  };
  if (given.id !== undefined && !/^[\w-]{1,128}$/.test(given.id))
    continued.refuse('id', 'must be 1 to 128 letters, digits, `_` or `-`');
  if ((given.rendered_ms ?? 0) > latestDate_ms)
    continued.refuse('rendered_ms', `must be at most ${latestDate_ms}`);
  continued.finish();
  const known = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  return {
    ...(known as Partial<typeof given> as Omit<ContinueRequest, 'token_ids' | 'choices'>),
    choices: choices ?? [{ token_ids: token_ids!, opened: true, finished: false, withheld: 0 }],
  };
}

function readChoice(
  value: Json,
  path: string,
  token: { min: number; max: number },
): Required<ContinuedChoice> {
  const choice = new BodyReader(value, path);
  const token_ids = choice.integers('token_ids', token);
  if (token_ids === undefined) return choice.refuse('token_ids', 'is required');
  const read = {
    token_ids,
    opened: choice.boolean('opened') ?? false,
    finished: choice.boolean('finished') ?? false,
    withheld: choice.number('withheld', { min: 0, max: token_ids.length, integer: true }) ?? 0,
  };
  choice.finish();
  return read;
}
