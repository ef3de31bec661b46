/** OpenAI's responses API: its requests as chats. */
import {
  contentOf,
  given,
  isMembers,
  listOf,
  type Members,
  objectOf,
  textOf,
  unusable,
} from '../chat-form.ts';

/** Members that mean the same under the same name, or that say nothing to an engine. */
const asTheyAre = ['model', 'stream', 'temperature', 'top_p', 'parallel_tool_calls', 'user'] as const;
const withoutEffect = new Set<string>([
  ...['include', 'max_tool_calls', 'metadata', 'prompt_cache_key', 'prompt_cache_options'],
  ...['prompt_cache_retention', 'safety_identifier', 'service_tier', 'store', 'stream_options'],
]);
/** Members that are read below. */
const read = new Set<string>([
  ...['input', 'instructions', 'max_output_tokens', 'reasoning', 'text', 'tools', 'tool_choice'],
  ...['truncation', 'top_logprobs', 'background', 'conversation', 'prompt', 'previous_response_id'],
]);
/** What `include` may ask for that is empty here; anything else would be missed in the answer. */
const emptyIncludes = new Set(['reasoning.encrypted_content']);

/** What `input` says, as items. */
export function itemsOf(input: unknown): Members[] {
  if (typeof input === 'string')
    return [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: input }] }];
  return Array.isArray(input) ? input.filter(isMembers) : [];
}

/** @throws E_REQUEST_INVALID */
export function chatOfResponse(body: Members): Members {
  refuseWhatIsNotHere(body);
  const chat: Members = {};
  for (const name of asTheyAre) if (name in body) chat[name] = body[name];
  chat.messages = messagesOf(body);
  if (body.max_output_tokens != null) chat.max_completion_tokens = body.max_output_tokens;
  const { effort } = isMembers(body.reasoning) ? body.reasoning : {};
  if (effort != null) chat.reasoning_effort = effort;
  if (body.text != null) Object.assign(chat, textSettingsOf(objectOf(body.text, 'text')));
  if (body.tools != null) Object.assign(chat, toolsOf(body));
  // Of an engine, such as `top_k`: it judges them.
  for (const [name, value] of Object.entries(body))
    if (!read.has(name) && !withoutEffect.has(name) && !(name in chat)) chat[name] = value;
  if (chat.stream === true) chat.stream_options = { include_usage: true };
  return given(chat);
}

function refuseWhatIsNotHere(body: Members): void {
  const refuse = (param: string, why: string): never => {
    throw unusable(`\`${param}\` ${why}`, param);
  };
  if (body.background === true) refuse('background', 'is not here: an answer is streamed, or waited for');
  for (const name of ['conversation', 'prompt'])
    if (body[name] != null) refuse(name, 'names what OpenAI keeps; send the items themselves in `input`');
  if (body.previous_response_id != null)
    refuse(
      'previous_response_id',
      'names what is not kept here (gateway.responses_kept_h of the site); send the items themselves in `input`',
    );
  if (typeof body.top_logprobs === 'number' && body.top_logprobs > 0)
    refuse('top_logprobs', 'is in /v1/chat/completions only');
  for (const name of body.include == null ? [] : listOf(body.include, 'include'))
    if (!emptyIncludes.has(name as string)) refuse('include', `may not have ${JSON.stringify(name)}`);
}

/** `text`: how the answer is formed. Of how many words it is to be the replica judges, as of a chat's. */
function textSettingsOf({ format, verbosity }: Members): Members {
  const settings = formatOf(format);
  if (verbosity != null) settings.verbosity = verbosity;
  return settings;
}

function formatOf(format: unknown): Members {
  if (format == null) return {};
  const { type, ...schema } = objectOf(format, 'text.format');
  if (type === 'text' || type === 'json_object') return { response_format: { type } };
  if (type === 'json_schema') return { response_format: { type, json_schema: given(schema) } };
  throw unusable(`\`text.format.type\` may not be ${JSON.stringify(type)}`, 'text.format.type');
}

function toolsOf({ tools, tool_choice }: Members): Members {
  const all = listOf(tools, 'tools').map((tool, at) => {
    const { type, ...definition } = objectOf(tool, `tools[${at}]`);
    if (type !== 'function')
      throw unusable(
        `\`tools[${at}]\` is of the type ${JSON.stringify(type)}, and only functions are here: OpenAI's own tools run at OpenAI`,
        `tools[${at}].type`,
      );
    return { type, function: given(definition) };
  });
  if (!isMembers(tool_choice)) return all.length === 0 ? {} : { tools: all, tool_choice };
  if (tool_choice.type === 'function')
    return { tools: all, tool_choice: { type: 'function', function: { name: tool_choice.name } } };
  if (tool_choice.type !== 'allowed_tools')
    throw unusable(`\`tool_choice.type\` may not be ${JSON.stringify(tool_choice.type)}`, 'tool_choice.type');
  const names = new Set(
    listOf(tool_choice.tools, 'tool_choice.tools').map((one) => objectOf(one, 'tool_choice.tools').name),
  );
  return { tools: all.filter(({ function: { name } }) => names.has(name)), tool_choice: tool_choice.mode };
}

/** The items of `input`, behind `instructions`. Calls of one turn are in one message, with what was said before. */
function messagesOf({ input, instructions }: Members): Members[] {
  const messages: Members[] = [];
  if (instructions != null) messages.push({ role: 'system', content: textOf(instructions, 'instructions') });
  if (typeof input === 'string') return [...messages, { role: 'user', content: input }];
  let reasoning: string | undefined;
  const assistant = (): Members => {
    const last = messages.at(-1);
    if (last?.role === 'assistant' && reasoning === undefined) return last;
    const message: Members = { role: 'assistant', content: null };
    if (reasoning !== undefined) message.reasoning_content = reasoning;
    reasoning = undefined;
    messages.push(message);
    return message;
  };
  for (const [at, one] of listOf(input, 'input').entries()) {
    const param = `input[${at}]`;
    const item = objectOf(one, param);
    switch (item.type ?? 'message') {
      case 'message': {
        const message = messageOf(item, param);
        if (message.role === 'assistant') {
          const into = assistant();
          // A second message of the turn is one of its own.
          if (into.content === null && into.tool_calls === undefined) into.content = message.content;
          else messages.push(message);
        } else join(messages, message);
        break;
      }
      case 'reasoning':
        reasoning = reasoningOf(item) ?? reasoning;
        break;
      case 'function_call': {
        const { call_id: id, name, arguments: text } = item;
        const message = assistant();
        message.tool_calls = [
          ...((message.tool_calls as Members[] | undefined) ?? []),
          { id, type: 'function', function: { name, arguments: text } },
        ];
        break;
      }
      case 'function_call_output':
        messages.push({
          role: 'tool',
          tool_call_id: item.call_id,
          content:
            typeof item.output === 'string'
              ? item.output
              : contentOf(partsOf(item.output, `${param}.output`)),
        });
        break;
      default:
        throw unusable(`\`${param}\` is of the type ${JSON.stringify(item.type)}, which is not here`, param);
    }
  }
  return messages;
}

/** What stands before the first question is one system message: many templates take no second one. */
function join(messages: Members[], message: Members): void {
  const [first] = messages;
  const isSystem = message.role === 'system' || message.role === 'developer';
  if (
    isSystem &&
    messages.length === 1 &&
    first!.role === 'system' &&
    typeof first!.content === 'string' &&
    typeof message.content === 'string'
  )
    first!.content = `${first!.content}\n\n${message.content}`;
  else messages.push(message);
}

function messageOf({ role, content }: Members, param: string): Members {
  if (typeof role !== 'string') throw unusable(`\`${param}.role\` must be a text`, `${param}.role`);
  if (typeof content === 'string') return { role, content };
  return { role, content: contentOf(partsOf(content, `${param}.content`)) };
}

function partsOf(content: unknown, param: string): Members[] {
  return listOf(content, param).map((one, at) => {
    const part = objectOf(one, `${param}[${at}]`);
    switch (part.type) {
      case 'input_text':
      case 'output_text':
      case 'text':
        return { type: 'text', text: textOf(part.text, `${param}[${at}].text`) };
      case 'refusal':
        return { type: 'text', text: textOf(part.refusal, `${param}[${at}].refusal`) };
      case 'input_image':
        if (part.image_url == null)
          throw unusable(
            `\`${param}[${at}].file_id\` names what OpenAI keeps; send the image in \`image_url\``,
            `${param}[${at}]`,
          );
        return { type: 'image_url', image_url: given({ url: part.image_url, detail: part.detail }) };
      case 'input_audio':
        return { type: 'input_audio', input_audio: part.input_audio };
      default:
        throw unusable(
          `\`${param}[${at}]\` is of the type ${JSON.stringify(part.type)}, which is not here`,
          `${param}[${at}].type`,
        );
    }
  });
}

/** What a model thought, as far as the client has it in plain text. */
function reasoningOf({ content, summary }: Members): string | undefined {
  const parts = (Array.isArray(content) && content.length > 0 ? content : (summary ?? [])) as Members[];
  const text = parts.map((part) => (typeof part.text === 'string' ? part.text : '')).join('');
  return text === '' ? undefined : text;
}
