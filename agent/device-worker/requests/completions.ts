import { randomUUID } from 'node:crypto';
import { grammarOf } from '../../text/grammar/gbnf.ts';
import { withBos } from '../../text/prompt-tokens.ts';
import { type AnswerContext, answer, howItMoves } from '../answers/answer.ts';
import { CompletionChoice, type CompletionDelta } from '../answers/completion-answer.ts';
import { noLogprobs } from '../answers/logprobs.ts';
import { withWarnings } from '../answers/warnings.ts';
import type { ServedModel } from '../served-model.ts';
import type { BodyReader, Json } from './body-reader.ts';
import { readGeneration } from './generation.ts';
import { answerLength_tokens, checkTextLength } from './limits.ts';
import { readResponseFormat } from './response-format.ts';
import { onlyGrammar, readStructuredOutputs } from './structured-outputs.ts';

/** OpenAI's default. */
const answer_tokens_default = 16;
/** Alternatives to a token that are told. Lower: shorter answers; higher: more than clients ask for. */
const alternatives_max = 20;
/** Prompts of one request. Lower: less of a device for one request; higher: fewer requests. */
const prompts_max = 256;

interface Prompt {
  text: string;
  tokens: Int32Array;
}

/** POST /v1/completions */
export function textCompletion(body: BodyReader, model: ServedModel, context: AnswerContext): void {
  const text = model.text!;
  const parameters = readGeneration(body, text.vocabulary.n_tokens);
  const prompts = readPrompts(body, model);
  const wanted = body.number('max_tokens', { min: 0, integer: true }) ?? answer_tokens_default;
  const logprobs = body.number('logprobs', { min: 0, max: alternatives_max, integer: true });
  const echo = body.boolean('echo') ?? false;
  const best_of = body.number('best_of', { min: 1, integer: true });
  if (best_of !== undefined && best_of !== parameters.n)
    body.refuse('best_of', 'is not supported beyond `n`: ask for `n` answers with logprobs and choose');
  body.unsupported('suffix', 'the engine does not fill in the middle');
  const format = readResponseFormat(body);
  const structured = readStructuredOutputs(body);
  body.finish();
  if (wanted === 0 && !echo) body.refuse('max_tokens', 'must be at least 1 where `echo` is not true');
  const gbnf = onlyGrammar(body, parameters, [
    { param: 'grammar', gbnf: parameters.grammar?.gbnf },
    { param: 'response_format', gbnf: format && grammarOf([format]) },
    structured,
  ]);
  const { continued } = parameters;
  if (continued?.prompt_token_ids) {
    if (prompts.length > 1)
      body.refuse('prompt', 'must be a single one where `hpcserve_continue.prompt_token_ids` is given');
    prompts[0]!.tokens = Int32Array.from(continued.prompt_token_ids);
  }
  const choices = prompts.flatMap((prompt, at) =>
    Array.from(
      { length: parameters.n },
      (_, answer) =>
        new CompletionChoice(
          at * parameters.n + answer,
          text.pieces,
          logprobs !== undefined,
          echo ? { ...prompt, sent: continued !== undefined && parameters.stream } : undefined,
        ),
    ),
  );
  const withPrompt = echo && !continued && logprobs !== undefined;
  answer<CompletionDelta>(
    {
      model,
      parameters,
      ...howItMoves(parameters, context, logprobs !== undefined),
      cache_scope: context.cache_scope,
      prompts: prompts.map(({ tokens }) => tokens),
      max_tokens: prompts.map(({ tokens }) =>
        answerLength_tokens(tokens.length, wanted, model.context_tokens, 'prompt'),
      ),
      logprobs,
      prompt_logprobs: withPrompt ? logprobs : undefined,
      grammar: gbnf === undefined ? undefined : { gbnf },
    },
    {
      id: continued?.id ?? `cmpl-${randomUUID()}`,
      object: 'text_completion',
      chunk_object: 'text_completion',
      choices,
      chunk: (index, { text, logprobs }) => ({ index, text, logprobs, finish_reason: null }),
      closing: (index, finish) => ({
        index,
        text: '',
        logprobs: logprobs === undefined ? null : noLogprobs(),
        finish_reason: finish,
      }),
    },
    withWarnings(context, body.warnings),
  );
}

/** A text, a list of texts, a list of token ids, or a list of such lists. */
function readPrompts(body: BodyReader, model: ServedModel): Prompt[] {
  const { vocabulary, pieces } = model.text!;
  const special = body.boolean('add_special_tokens') ?? true;
  const raw = body.raw('prompt');
  if (raw === undefined) return body.refuse('prompt', 'is required');
  const isTokens = Array.isArray(raw) && raw.length > 0 && typeof raw[0] === 'number';
  const list = Array.isArray(raw) && !isTokens ? raw : [raw];
  if (list.length === 0) body.refuse('prompt', 'must not be empty');
  if (list.length > prompts_max) body.refuse('prompt', `may hold at most ${prompts_max} prompts`);
  return list.map((value, index) => {
    const name = list.length === 1 ? 'prompt' : `prompt.${index}`;
    let prompt: Prompt;
    if (typeof value === 'string') {
      checkTextLength(value, model, name);
      const tokens = vocabulary.tokenize(value, { add_special: false, parse_special: true });
      prompt = { text: value, tokens: special ? withBos(vocabulary, tokens) : tokens };
    } else {
      const tokens = tokenList(body, name, value, vocabulary.n_tokens);
      const bytes = Array.from(tokens, (token) => pieces.piece(token));
      prompt = { text: Buffer.concat(bytes).toString('utf8'), tokens };
    }
    if (prompt.tokens.length === 0) body.refuse(name, 'must hold at least one token');
    return prompt;
  });
}

export function tokenList(body: BodyReader, name: string, value: Json, n_vocab: number): Int32Array {
  if (!Array.isArray(value)) return body.refuse(name, 'must be a string or a list of token ids');
  return Int32Array.from(value, (token, index) => {
    if (typeof token !== 'number' || !Number.isInteger(token) || token < 0 || token >= n_vocab)
      return body.refuse(`${name}.${index}`, `must be a token id from 0 to ${n_vocab - 1}`);
    return token;
  });
}
