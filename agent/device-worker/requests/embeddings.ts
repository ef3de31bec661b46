import { HpcserveError } from '../../../spec/errors/error.ts';
import type { AnswerContext } from '../answers/answer.ts';
import type { Submission, TokenOutput } from '../compute/messages.ts';
import { replyError, sendJson } from '../http/replies.ts';
import type { ServedModel } from '../served-model.ts';
import type { BodyReader } from './body-reader.ts';
import { tokenList } from './completions.ts';
import { answerLength_tokens, checkTextLength } from './limits.ts';

/** OpenAI's bound. Lower: shorter requests; higher: more than its clients send. */
const inputs_max = 2048;

/** POST /v1/embeddings */
export function embeddings(body: BodyReader, model: ServedModel, context: AnswerContext): void {
  const inputs = readInputs(body, model);
  const format = body.oneOf('encoding_format', ['float', 'base64']) ?? 'float';
  const dimensions = body.number('dimensions', { min: 1, integer: true });
  if (dimensions !== undefined && dimensions !== model.info!.n_embd)
    body.refuse('dimensions', `must be ${model.info!.n_embd} or absent: the model has no shorter embeddings`);
  body.finish();
  for (const tokens of inputs) answerLength_tokens(tokens.length, 0, model.context_tokens, 'input');
  context.admit(inputs.length);
  embed(inputs, model, context, (found) => {
    const prompt_tokens = inputs.reduce((sum, tokens) => sum + tokens.length, 0);
    const data = found.map((embedding, index) => ({
      object: 'embedding',
      index,
      embedding: format === 'base64' ? base64(embedding) : Array.from(embedding),
    }));
    const usage = { prompt_tokens, total_tokens: prompt_tokens };
    const answer = { object: 'list', data, model: model.config.name, usage };
    sendJson(context.response, 200, answer, context.headers);
  });
}

/** Computes all inputs, or answers with the first error. @param finish is called with their embeddings, in order */
function embed(
  inputs: readonly Int32Array[],
  model: ServedModel,
  { models, response, headers, cache_scope }: AnswerContext,
  finish: (found: Float32Array[]) => void,
): void {
  const found: Float32Array[] = [];
  const ids: number[] = [];
  let left = inputs.length;
  const stop = () => {
    for (const id of ids) models.cancel(id);
  };
  const fail = (error: HpcserveError) => {
    stop();
    replyError(response, error, headers);
  };
  response.on('close', () => {
    if (!response.writableFinished) stop();
  });
  const take = (index: number, output: TokenOutput): void => {
    if (output.finish === undefined) return;
    if (!output.embedding) {
      const because = output.error ?? `the engine ended it with ${output.finish}`;
      fail(new HpcserveError('E_WORKER_COMPUTE', { what: 'The embedding could not be computed', because }));
      return;
    }
    found[index] = output.embedding;
    left--;
    if (left === 0) finish(found);
  };
  for (const [index, tokens] of inputs.entries())
    ids.push(
      models.submit(submissionOf(model, tokens, cache_scope), {
        admitted: () => {},
        failed: fail,
        output: (output) => take(index, output),
      }),
    );
}

function submissionOf(
  model: ServedModel,
  tokens: Int32Array,
  cache_scope: string | undefined,
): Omit<Submission, 'id' | 'arrival_ms'> {
  const submission: Omit<Submission, 'id' | 'arrival_ms'> = {
    model: model.config.name,
    tokens,
    n_prompt: tokens.length,
    max_new_tokens: 0,
    stop_tokens: [],
    reasoning: false,
    certain: false,
    movable: false,
    handover: false,
    continuable: false,
    answer: 0,
    choice: 0,
  };
  if (cache_scope !== undefined) submission.cache_scope = cache_scope;
  return submission;
}

function readInputs(body: BodyReader, model: ServedModel): Int32Array[] {
  const { vocabulary } = model.text!;
  const raw = body.raw('input');
  if (raw === undefined) return body.refuse('input', 'is required');
  const isTokens = Array.isArray(raw) && typeof raw[0] === 'number';
  const list = Array.isArray(raw) && !isTokens ? raw : [raw];
  if (list.length === 0) body.refuse('input', 'must not be empty');
  if (list.length > inputs_max) body.refuse('input', `may hold at most ${inputs_max} inputs`);
  return list.map((value, index) => {
    const name = list.length === 1 ? 'input' : `input.${index}`;
    if (typeof value === 'string') checkTextLength(value, model, name);
    const tokens =
      typeof value === 'string'
        ? vocabulary.tokenize(value, { add_special: true, parse_special: false })
        : tokenList(body, name, value, vocabulary.n_tokens);
    if (tokens.length === 0) body.refuse(name, 'must hold at least one token');
    return tokens;
  });
}

/** Little-endian 32-bit floats, as OpenAI's clients decode them. */
function base64(embedding: Float32Array): string {
  const bytes = Buffer.alloc(embedding.length * 4);
  embedding.forEach((value, index) => {
    bytes.writeFloatLE(value, index * 4);
  });
  return bytes.toString('base64');
}
