/** Ollama's API: its requests as chats, completions and embeddings. */
import { given, isMembers, listOf, type Members, objectOf, textOf, unusable } from '../chat-form.ts';

/** Ollama's options by OpenAI's names, or vLLM's where OpenAI has none. */
const options: Readonly<Record<string, string>> = {
  temperature: 'temperature',
  top_p: 'top_p',
  top_k: 'top_k',
  min_p: 'min_p',
  typical_p: 'typical_p',
  seed: 'seed',
  stop: 'stop',
  num_predict: 'max_tokens',
  repeat_penalty: 'repetition_penalty',
  presence_penalty: 'presence_penalty',
  frequency_penalty: 'frequency_penalty',
};
/** How a machine of one's own is used, which is decided elsewhere here. */
const ofTheMachine = new Set([
  ...['num_ctx', 'num_batch', 'num_gpu', 'main_gpu', 'num_thread', 'num_keep', 'numa', 'low_vram'],
  ...['use_mmap', 'use_mlock', 'vocab_only', 'f16_kv', 'repeat_last_n', 'penalize_newline'],
]);

/** @throws E_REQUEST_INVALID */
export function chatOfOllama(body: Members): Members {
  const messages = messagesOf(listOf(body.messages, 'messages'));
  return given({ ...common(body), messages, tools: body.tools, ...thinkingOf(body) });
}

/** @throws E_REQUEST_INVALID */
export function chatOfGenerate(body: Members): Members {
  refuseOfGenerate(body);
  const { prompt, system, images } = body;
  const messages: Members[] = [];
  if (system != null && system !== '') messages.push({ role: 'system', content: textOf(system, 'system') });
  messages.push({ role: 'user', content: withImages(textOf(prompt ?? '', 'prompt'), images) });
  return given({ ...common(body), messages, ...thinkingOf(body) });
}

/** With `raw`: the prompt as it stands, without a template. @throws E_REQUEST_INVALID */
export function completionOfGenerate(body: Members): Members {
  refuseOfGenerate(body);
  const { max_tokens, ...rest } = common(body);
  // As many as the context holds, where a completion of OpenAI's has 16.
  return given({ ...rest, max_tokens: max_tokens ?? 4096, prompt: textOf(body.prompt, 'prompt') });
}

/** @throws E_REQUEST_INVALID */
export function embeddingsOf({ model, input, prompt, dimensions }: Members): Members {
  return given({ model, input: input ?? prompt, dimensions, encoding_format: 'float' });
}

function refuseOfGenerate(body: Members): void {
  for (const name of ['suffix', 'template', 'context'])
    if (body[name] != null && body[name] !== '')
      throw unusable(`\`${name}\` is not here: use /api/chat, or a prompt that has all of it`, name);
}

/** What chats and completions have in common. */
function common(body: Members): Members {
  const { model, stream = true, format } = body;
  const request: Members = { model, stream };
  for (const [name, value] of Object.entries(isMembers(body.options) ? body.options : {})) {
    const known = Object.hasOwn(options, name) ? options[name] : undefined;
    if (known === undefined && !ofTheMachine.has(name))
      throw unusable(`\`options.${name}\` is not known here`, `options.${name}`);
    // Negative: as many as it likes.
    if (known === undefined || (name === 'num_predict' && Number(value) < 0)) continue;
    request[known] = value;
  }
  if (stream === true) request.stream_options = { include_usage: true };
  if (format === 'json') request.response_format = { type: 'json_object' };
  else if (isMembers(format))
    request.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema: format } };
  else if (format != null && format !== '') throw unusable('`format` must be `json` or a schema', 'format');
  return request;
}

function thinkingOf({ think }: Members): Members {
  if (think === false) return { reasoning_effort: 'none' };
  return typeof think === 'string' ? { reasoning_effort: think } : {};
}

/** Calls have no ids here: each result belongs to the first call of its name that has none yet. */
function messagesOf(all: readonly unknown[]): Members[] {
  const waiting: { id: string; name: unknown }[] = [];
  let calls = 0;
  return all.map((one, at) => {
    const param = `messages[${at}]`;
    const { role, content, images, tool_calls, tool_name, thinking } = objectOf(one, param);
    const message: Members = { role, content: withImages(textOf(content ?? '', `${param}.content`), images) };
    if (thinking != null) message.reasoning_content = thinking;
    if (role === 'tool') {
      const named = waiting.findIndex(({ name }) => name === tool_name);
      message.tool_call_id = waiting.splice(Math.max(0, named), 1)[0]?.id ?? `call_${at}`;
    }
    if (tool_calls != null)
      message.tool_calls = listOf(tool_calls, `${param}.tool_calls`).map((call) => {
        const called = objectOf(call, `${param}.tool_calls`).function;
        const { name, arguments: input } = objectOf(called, `${param}.tool_calls`);
        const id = `call_${calls++}`;
        waiting.push({ id, name });
        return { id, type: 'function', function: { name, arguments: JSON.stringify(input ?? {}) } };
      });
    return message;
  });
}

function withImages(text: string, images: unknown): string | Members[] {
  if (!Array.isArray(images) || images.length === 0) return text;
  const parts = images.map((data) => ({
    type: 'image_url',
    image_url: { url: `data:${imageType(String(data))};base64,${data}` },
  }));
  return [...(text === '' ? [] : [{ type: 'text', text }]), ...parts];
}

/** By the first bytes, which base64 shows in its first letters. */
function imageType(base64: string): string {
  if (base64.startsWith('/9j/')) return 'image/jpeg';
  if (base64.startsWith('UklGR')) return 'image/webp';
  return base64.startsWith('R0lG') ? 'image/gif' : 'image/png';
}
