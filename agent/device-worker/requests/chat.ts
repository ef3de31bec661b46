import { randomUUID } from 'node:crypto';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type AddForm, grammarOf } from '../../text/grammar/gbnf.ts';
import { promptOpensReasoning, reasoningClose } from '../../text/output/reasoning.ts';
import { type AnswerContext, type AnswerKind, answer, howItMoves } from '../answers/answer.ts';
import { ChatChoice, type ChatDelta } from '../answers/chat-answer.ts';
import { withWarnings } from '../answers/warnings.ts';
import type { GrammarConstraint } from '../compute/messages.ts';
import type { ServedModel } from '../served-model.ts';
import type { BodyReader } from './body-reader.ts';
import { readRenderOptions, renderChat } from './chat-prompt.ts';
import { type GenerationParameters, readGeneration } from './generation.ts';
import { answerLength_tokens } from './limits.ts';
import { readMessages } from './messages.ts';
import { readReasoning, reasoningLimit } from './reasoning.ts';
import { readResponseFormat } from './response-format.ts';
import { onlyGrammar, type PossibleBound, readStructuredOutputs } from './structured-outputs.ts';
import { readTools, type ToolRequest } from './tools.ts';

/** OpenAI's bound on `top_logprobs`. Lower: shorter answers; higher: more than its clients ask for. */
const alternatives_max = 20;

/** POST /v1/chat/completions */
export function chatCompletion(body: BodyReader, model: ServedModel, context: AnswerContext): void {
  const text = model.text!;
  const parameters = readGeneration(body, text.vocabulary.n_tokens);
  const messages = readMessages(body);
  const tools = readTools(body, text.tool_format);
  const bounds = [boundBy(readResponseFormat(body), tools), readStructuredOutputs(body)];
  const logprobs = readLogprobs(body);
  const wanted =
    body.number('max_completion_tokens', { min: 1, integer: true }) ??
    body.number('max_tokens', { min: 1, integer: true });
  body.ignore('max_tokens');
  const reasoning = readReasoning(body);
  const options = readRenderOptions(body, reasoning, text);
  refuseOthers(body);
  body.finish();

  const { continued } = parameters;
  const rendered_ms = continued?.rendered_ms ?? Date.now();
  const rendered = renderChat({ messages, tools, ...options }, model, wanted, rendered_ms);
  const tokens = continued?.prompt_token_ids
    ? Int32Array.from(continued.prompt_token_ids)
    : rendered.tokens();
  const opened = promptOpensReasoning(rendered.text);
  const form = {
    reasoning: text.reasons ? { opened } : undefined,
    tools: tools && { format: tools.format, names: tools.names, schemas: tools.schemas },
    as_function: tools?.as_function ?? false,
  };
  const choices = Array.from(
    { length: parameters.n },
    (_, index) => new ChatChoice(index, form, text.pieces, logprobs !== undefined),
  );
  const grammar = constraint(body, parameters, bounds, text.reasons && opened);
  const max_tokens = answerLength_tokens(tokens.length, wanted, model.context_tokens, 'messages');
  const limit = text.reasons ? reasoningLimit(reasoning, max_tokens, opened, text) : undefined;
  answer<ChatDelta>(
    {
      model,
      parameters,
      ...howItMoves(parameters, context, logprobs !== undefined),
      cache_scope: context.cache_scope,
      prompts: [tokens],
      max_tokens: [max_tokens],
      reasoning: text.reasons ? { opened, limit } : undefined,
      logprobs,
      rendered_ms,
      grammar,
    },
    chatKind(continued?.id ?? `chatcmpl-${randomUUID()}`, choices),
    withWarnings(context, body.warnings),
  );
}

/** A call that must be made is no text: the form of texts is for other answers, which may be calls all the same. */
function boundBy(format: AddForm | undefined, tools: ToolRequest | undefined): PossibleBound {
  if (tools?.forced)
    return { param: tools.as_function ? 'function_call' : 'tool_choice', gbnf: grammarOf([tools.calls]) };
  return format && { param: 'response_format', gbnf: grammarOf(tools ? [format, tools.calls] : [format]) };
}

/** How a chat is written in OpenAI's words. */
function chatKind(id: string, choices: ChatChoice[]): AnswerKind<ChatDelta> {
  return {
    id,
    object: 'chat.completion',
    chunk_object: 'chat.completion.chunk',
    choices,
    chunk: (index, { delta, logprobs }) => ({ index, delta, logprobs, finish_reason: null }),
    opening: (index) => ({
      index,
      delta: { role: 'assistant', content: '' },
      logprobs: null,
      finish_reason: null,
    }),
    closing: (index, finish) => ({ index, delta: {}, logprobs: null, finish_reason: finish }),
  };
}

function readLogprobs(body: BodyReader): number | undefined {
  const wanted = body.boolean('logprobs') ?? false;
  const top = body.number('top_logprobs', { min: 0, max: alternatives_max, integer: true });
  if (top !== undefined && !wanted)
    return body.refuse('top_logprobs', 'is only allowed where `logprobs` is true');
  return wanted ? (top ?? 0) : undefined;
}

function refuseOthers(body: BodyReader): void {
  body.unsupported('audio', 'this model writes text only');
  body.unsupported('web_search_options', 'there is no search here');
  body.unsupported('chat_template', "the model's own template is used");
  const modalities = body.list('modalities');
  if (modalities?.some((modality) => modality !== 'text'))
    throw new HpcserveError('E_REQUEST_UNSUPPORTED', {
      what: 'this model writes text only, and `modalities` asks for more',
      details: { param: 'modalities' },
    });
}

/** @param thinking whether the prompt leaves the model inside of its reasoning, which no grammar should bind */
function constraint(
  body: BodyReader,
  parameters: GenerationParameters,
  bounds: readonly PossibleBound[],
  thinking: boolean,
): GrammarConstraint | undefined {
  const gbnf = onlyGrammar(body, parameters, [
    { param: 'grammar', gbnf: parameters.grammar?.gbnf },
    ...bounds,
  ]);
  return gbnf === undefined ? undefined : { gbnf, ...(thinking ? { after: reasoningClose } : {}) };
}
