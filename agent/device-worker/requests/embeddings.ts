import { HpcserveError } from '../../../spec/errors/error.ts';
import type { AnswerContext } from '../answers/answer.ts';
import { sendError, sendJson } from '../http/replies.ts';
import type { ServedModel } from '../served-model.ts';
import type { BodyReader } from './body-reader.ts';
import { tokenList } from './completions.ts';
import { answerTokens, checkTextLength } from './limits.ts';

/** OpenAI's bound. */
const mostInputs = 2048;

/** POST /v1/embeddings */
export function embeddings(body: BodyReader, model: ServedModel, context: AnswerContext): void {
  const inputs = readInputs(body, model);
  const format = body.oneOf('encoding_format', ['float', 'base64']) ?? 'float';
  const dimensions = body.number('dimensions', { min: 1, integer: true });
  if (dimensions !== undefined && dimensions !== model.info!.n_embd)
    body.refuse('dimensions', `must be ${model.info!.n_embd} or absent: the model has no shorter embeddings`);
  body.finish();
  for (const tokens of inputs) answerTokens(tokens.length, 0, model.context_tokens, 'input');
  context.admit(inputs.length);
  const found: Float32Array[] = [];
  const ids: number[] = [];
  let left = inputs.length;
  const stop = () => {
    for (const id of ids) context.models.cancel(id);
  };
  const fail = (error: HpcserveError) => {
    stop();
    sendError(context.response, error, context.headers);
  };
  context.response.on('close', () => {
    if (!context.response.writableFinished) stop();
  });
  for (const [index, tokens] of inputs.entries()) {
    const id = context.models.submit(
      {
        model: model.config.name,
        tokens,
        n_prompt: tokens.length,
        max_new_tokens: 0,
        stop_tokens: [],
        reasoning: false,
        certain: false,
        movable: false,
        ...(context.cache_scope !== undefined && { cache_scope: context.cache_scope }),
      },
      {
        admitted: () => {},
        failed: fail,
        output: (output) => {
          if (output.finish === undefined) return;
          if (!output.embedding) {
            fail(
              new HpcserveError('E_WORKER_COMPUTE', {
                what: 'The embedding could not be computed',
                because: output.error ?? `the engine ended it with ${output.finish}`,
              }),
            );
            return;
          }
          found[index] = output.embedding;
          left--;
          if (left === 0) finish();
        },
      },
    );
    ids.push(id);
  }
  const finish = () => {
    const prompt_tokens = inputs.reduce((sum, tokens) => sum + tokens.length, 0);
    sendJson(
      context.response,
      200,
      {
        object: 'list',
        data: found.map((embedding, index) => ({
          object: 'embedding',
          index,
          embedding: format === 'base64' ? base64(embedding) : Array.from(embedding),
        })),
        model: model.config.name,
        usage: { prompt_tokens, total_tokens: prompt_tokens },
      },
      context.headers,
    );
  };
}

function readInputs(body: BodyReader, model: ServedModel): Int32Array[] {
  const { vocabulary } = model.text!;
  const raw = body.raw('input');
  if (raw === undefined) return body.refuse('input', 'is required');
  const isTokens = Array.isArray(raw) && typeof raw[0] === 'number';
  const list = Array.isArray(raw) && !isTokens ? raw : [raw];
  if (list.length === 0) body.refuse('input', 'must not be empty');
  if (list.length > mostInputs) body.refuse('input', `may hold at most ${mostInputs} inputs`);
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
