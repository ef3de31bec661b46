/** A model's own tokens of a text or a chat, and the text of tokens, asked and answered in vLLM's way. */
import { withBos } from '../../text/prompt-tokens.ts';
import type { AnswerContext } from '../answers/answer.ts';
import { sendJson } from '../http/replies.ts';
import type { ServedModel } from '../served-model.ts';
import type { BodyReader } from './body-reader.ts';
import { readRenderedChat } from './chat-prompt.ts';
import { tokenList } from './completions.ts';
import { checkTextLength } from './limits.ts';

/** POST /tokenize: the tokens that the same `prompt` or `messages` have when they are answered. */
export function tokenize(body: BodyReader, model: ServedModel, { response, headers }: AnswerContext): void {
  const { vocabulary } = model.text!;
  const special = body.boolean('add_special_tokens');
  const withTexts = body.boolean('return_token_strs') ?? false;
  const tokens =
    body.raw('messages') === undefined
      ? textTokens(body, model, special ?? true)
      : readRenderedChat(body, model).tokens();
  const answer = {
    count: tokens.length,
    max_model_len: model.context_tokens,
    tokens: Array.from(tokens),
    token_strs: withTexts ? Array.from(tokens, (token) => vocabulary.text(token)) : null,
  };
  sendJson(response, 200, answer, headers);
}

function textTokens(body: BodyReader, model: ServedModel, special: boolean): Int32Array {
  const { vocabulary } = model.text!;
  const prompt = body.string('prompt') ?? body.refuse('prompt', 'or else `messages` is required');
  body.finish();
  checkTextLength(prompt, model, 'prompt');
  const tokens = vocabulary.tokenize(prompt, { add_special: false, parse_special: true });
  return special ? withBos(vocabulary, tokens) : tokens;
}

/** POST /detokenize: the text of `tokens`, those of control with their names. */
export function detokenize(body: BodyReader, model: ServedModel, { response, headers }: AnswerContext): void {
  const { vocabulary, pieces } = model.text!;
  const tokens = tokenList(body, 'tokens', body.raw('tokens') ?? null, vocabulary.n_tokens);
  body.finish();
  const bytes = Array.from(tokens, (token) => pieces.piece(token, true));
  sendJson(response, 200, { prompt: Buffer.concat(bytes).toString('utf8') }, headers);
}
