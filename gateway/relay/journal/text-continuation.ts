import type { TextSoFar } from './rewrite-chunks.ts';

export type CompletionsPath = '/v1/chat/completions' | '/v1/completions';

/**
 * Engines that can go on from text. For chat they must take `continue_final_message` (vLLM and SGLang do, as
 * Hugging Face's `apply_chat_template` defines it); for text completions the prompt is made longer, which any
 * engine understands that adds nothing around a prompt.
 */
const engines: Record<CompletionsPath, ReadonlySet<string>> = {
  '/v1/chat/completions': new Set(['vllm', 'sglang']),
  '/v1/completions': new Set(['vllm', 'sglang', 'llama.cpp']),
};

export function continuesText(engine: string | undefined, path: CompletionsPath): boolean {
  return engine !== undefined && engines[path].has(engine);
}

/** Parameters that bind an answer to a grammar, which would begin anew in the middle. */
const binding = [
  'guided_json',
  'guided_regex',
  'guided_choice',
  'guided_grammar',
  'structured_outputs',
  'json_schema',
  'regex',
  'ebnf',
  'grammar',
];

/** The request with which an engine goes on behind a text, or why that is impossible. */
export function requestFromText(body: Buffer, path: CompletionsPath, so_far: TextSoFar): Buffer | string {
  const request = JSON.parse(body.toString()) as Record<string, unknown>;
  // Nothing of the text is out: the whole request is asked again.
  if (so_far.text === '') return body;
  const why = obstacle(request);
  if (why !== undefined) return why;
  const longer = path === '/v1/completions' ? longerPrompt(request, so_far) : longerChat(request, so_far);
  if (longer !== undefined) return longer;
  for (const name of ['max_tokens', 'max_completion_tokens', 'min_tokens']) {
    const value = request[name];
    // The engine ends with its next token where the limit is reached already.
    const least = name === 'min_tokens' ? 0 : 1;
    if (typeof value === 'number') request[name] = Math.max(least, value - so_far.text_events);
  }
  return Buffer.from(JSON.stringify(request));
}

function obstacle(request: Record<string, unknown>): string | undefined {
  const { n, best_of, response_format, tool_choice } = request;
  if ((typeof n === 'number' && n > 1) || (typeof best_of === 'number' && best_of > 1))
    return 'it has several choices';
  const type = (response_format as { type?: unknown } | null | undefined)?.type;
  const bound = binding.find((name) => request[name] !== undefined && request[name] !== null);
  if (bound !== undefined || (type !== undefined && type !== 'text'))
    return `its engine cannot go on in the middle of a grammar (${bound ?? 'response_format'})`;
  if (tool_choice === 'required' || typeof tool_choice === 'object')
    return 'its engine cannot go on in the middle of a tool call';
  return undefined;
}

function longerPrompt(request: Record<string, unknown>, { text }: TextSoFar): string | undefined {
  const prompts = Array.isArray(request.prompt) ? request.prompt : [request.prompt];
  const [prompt] = prompts as unknown[];
  if (prompts.length !== 1 || typeof prompt !== 'string')
    return 'its prompt is not one text, and no text can be put behind token ids';
  if (request.echo === true) {
    // The echo is a part of what the client has.
    request.prompt = text.startsWith(prompt) ? text : prompt + text;
    request.echo = false;
  } else request.prompt = prompt + text;
  return undefined;
}

function longerChat(request: Record<string, unknown>, { text }: TextSoFar): string | undefined {
  const messages = request.messages as { role?: unknown; content?: unknown }[];
  const last = messages.at(-1);
  if (request.continue_final_message === true) {
    // The client itself had a message of the assistant continued.
    if (typeof last?.content !== 'string') return 'the message it continues is not one text';
    request.messages = [...messages.slice(0, -1), { ...last, content: last.content + text }];
  } else request.messages = [...messages, { role: 'assistant', content: text }];
  request.continue_final_message = true;
  request.add_generation_prompt = false;
  return undefined;
}
