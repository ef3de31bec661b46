/** From the messages of a request to the prompt that the model reads. */
import type { ChatMessage, RenderOptions } from '../../text/chat-template.ts';
import type { ModelText, ServedModel } from '../served-model.ts';
import type { BodyReader, JsonObject } from './body-reader.ts';
import { answerLength_tokens, checkTextLength } from './limits.ts';
import { readMessages } from './messages.ts';
import { type ReasoningRequest, readReasoning, reasoningVariables } from './reasoning.ts';
import { messagesForTemplate } from './template-messages.ts';
import { readTools, type ToolRequest } from './tools.ts';

/** What the template gets, apart from the time. */
export interface ChatParts extends ChatOptions {
  messages: ChatMessage[];
  tools: ToolRequest | undefined;
}

/** How the template is asked, beside what it is given. */
type ChatOptions = Pick<RenderOptions, 'variables' | 'continue_final_message' | 'add_generation_prompt'>;

export interface RenderedChat {
  text: string;
  /** Tokens of it, in which what users wrote is text alone. @throws HpcserveError E_REQUEST_INVALID */
  tokens(): Int32Array;
}

export function readRenderOptions(
  body: BodyReader,
  reasoning: ReasoningRequest,
  { template }: ModelText,
): ChatOptions {
  const variables = {
    ...reasoningVariables(reasoning),
    ...readVerbosity(body, template.source),
    ...body.object('chat_template_kwargs')?.body,
  };
  const continue_final_message = body.boolean('continue_final_message') ?? false;
  const generation = body.boolean('add_generation_prompt');
  if (continue_final_message && generation === true)
    body.refuse('add_generation_prompt', 'cannot be true together with `continue_final_message`');
  return {
    variables,
    continue_final_message,
    add_generation_prompt: generation ?? !continue_final_message,
  };
}

/** Templates that know it get it; of the others, that of OpenAI's default alone asks for nothing. */
function readVerbosity(body: BodyReader, template: string): JsonObject {
  const verbosity = body.oneOf('verbosity', ['low', 'medium', 'high']);
  if (verbosity === undefined) return {};
  if (verbosity !== 'medium' && !template.includes('verbosity'))
    body.warnings.push('verbosity is not known to the chat template and without effect');
  return { verbosity };
}

/** A chat that is only to be made into tokens: nothing else may be asked. */
export function readRenderedChat(body: BodyReader, model: ServedModel): RenderedChat {
  const messages = readMessages(body);
  const tools = readTools(body, model.text!.tool_format);
  const options = readRenderOptions(body, readReasoning(body), model.text!);
  body.unsupported('chat_template', "the model's own template is used");
  body.finish();
  return renderChat({ messages, tools, ...options }, model, undefined, Date.now());
}

/**
 * @param wanted tokens of the answer, for the error where both do not fit
 * @param now_ms the time that templates may write
 * @throws HpcserveError E_CONTEXT_LENGTH, E_REQUEST_TEMPLATE
 */
export function renderChat(
  { messages, tools, ...options }: ChatParts,
  model: ServedModel,
  wanted: number | undefined,
  now_ms: number,
): RenderedChat {
  const { guard, vocabulary, tool_template } = model.text!;
  const template = (tools && tool_template) ?? model.text!.template;
  const asked: RenderOptions = { messages: messagesForTemplate(messages, template.source), ...options };
  if (tools) asked.tools = tools.definitions;
  const { value: guarded, masked } = guard.mask(asked);
  // Each of them becomes tokens of its own.
  if (masked.length > model.context_tokens)
    answerLength_tokens(masked.length, wanted, model.context_tokens, 'messages');
  const text = template.render({ ...guarded, now_ms });
  checkTextLength(text, model, 'messages');
  return { text, tokens: () => guard.tokenize(vocabulary, text, masked) };
}
