/** Anthropic's messages API: its requests as chats. */
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

const asTheyAre = ['model', 'stream', 'temperature', 'top_p', 'top_k'] as const;
/** Members that are read below, and those that say nothing to an engine. */
const known = new Set<string>([
  ...['max_tokens', 'messages', 'system', 'stop_sequences', 'tools', 'tool_choice', 'thinking'],
  ...['output_config', 'output_format', 'metadata', 'service_tier', 'inference_geo', 'cache_control'],
]);
/** How a chat says that its last message is the beginning of the answer. */
const finishedByAssistant = { add_generation_prompt: false, continue_final_message: true };

/** @throws E_REQUEST_INVALID */
export function chatOfMessages(body: Members): Members {
  const chat: Members = {};
  for (const name of asTheyAre) if (name in body) chat[name] = body[name];
  chat.messages = messagesOf(body);
  // A beginning of the answer, which goes on from there.
  if ((chat.messages as Members[]).at(-1)?.role === 'assistant') Object.assign(chat, finishedByAssistant);
  chat.max_tokens = body.max_tokens;
  chat.stop = body.stop_sequences;
  Object.assign(chat, thinkingOf(body), formatOf(body));
  if (body.tools != null) Object.assign(chat, toolsOf(body));
  const { user_id } = isMembers(body.metadata) ? body.metadata : {};
  if (typeof user_id === 'string') chat.user = user_id;
  for (const name of ['container', 'mcp_servers', 'context_management'])
    if (body[name] != null) throw unusable(`\`${name}\` is what runs at Anthropic, and not here`, name);
  // Of an engine, such as `min_p`: it judges them.
  for (const [name, value] of Object.entries(body))
    if (!known.has(name) && !(name in chat) && value != null) chat[name] = value;
  if (chat.stream === true) chat.stream_options = { include_usage: true };
  return given(chat);
}

/** What is counted of a request: its prompt, as an engine's `/tokenize` takes it. */
export function countedOf(body: Members): Members {
  const { model, messages, tools, chat_template_kwargs } = chatOfMessages({ ...body, stream: false });
  return given({ model, messages, tools, chat_template_kwargs });
}

function thinkingOf({ thinking, output_config }: Members): Members {
  const { effort } = isMembers(output_config) ? output_config : {};
  const asked = effort == null ? {} : { reasoning_effort: effort === 'max' ? 'xhigh' : effort };
  if (thinking == null) return asked;
  const { type, budget_tokens } = objectOf(thinking, 'thinking');
  if (type === 'disabled') return { reasoning_effort: 'none' };
  if (type === 'adaptive') return asked;
  if (type === 'enabled') return { ...asked, thinking_token_budget: budget_tokens };
  throw unusable(`\`thinking.type\` may not be ${JSON.stringify(type)}`, 'thinking.type');
}

function formatOf({ output_config, output_format }: Members): Members {
  const { format } = isMembers(output_config) ? output_config : { format: output_format };
  if (format == null) return {};
  const { type, schema } = objectOf(format, 'output_config.format');
  if (type !== 'json_schema')
    throw unusable(
      `\`output_config.format.type\` may not be ${JSON.stringify(type)}`,
      'output_config.format.type',
    );
  return { response_format: { type, json_schema: { name: 'answer', schema, strict: true } } };
}

function toolsOf({ tools, tool_choice }: Members): Members {
  const all = listOf(tools, 'tools').map((one, at) => {
    const tool = objectOf(one, `tools[${at}]`);
    if (tool.type != null && tool.type !== 'custom')
      throw unusable(
        `\`tools[${at}]\` is of the type ${JSON.stringify(tool.type)}, and only tools with an \`input_schema\` are here`,
        `tools[${at}].type`,
      );
    const { name, description, input_schema: parameters, strict } = tool;
    return { type: 'function', function: given({ name, description, parameters, strict }) };
  });
  if (all.length === 0) return {};
  if (tool_choice == null) return { tools: all };
  const { type, name, disable_parallel_tool_use } = objectOf(tool_choice, 'tool_choice');
  const choices: Members = {
    auto: 'auto',
    any: 'required',
    none: 'none',
    tool: { type: 'function', function: { name } },
  };
  if (typeof type !== 'string' || !Object.hasOwn(choices, type))
    throw unusable(`\`tool_choice.type\` may not be ${JSON.stringify(type)}`, 'tool_choice.type');
  const chat: Members = { tools: all, tool_choice: choices[type] };
  if (disable_parallel_tool_use === true) chat.parallel_tool_calls = false;
  return chat;
}

function messagesOf({ system, messages }: Members): Members[] {
  const all: Members[] = [];
  if (system != null)
    all.push({
      role: 'system',
      content: typeof system === 'string' ? system : contentOf(partsOf(system, 'system')),
    });
  for (const [at, one] of listOf(messages, 'messages').entries()) {
    const param = `messages[${at}]`;
    const { role, content } = objectOf(one, param);
    if (role !== 'user' && role !== 'assistant' && role !== 'system')
      throw unusable(`\`${param}.role\` must be user or assistant`, `${param}.role`);
    if (typeof content === 'string') all.push({ role, content });
    else if (role === 'assistant') all.push(assistantOf(listOf(content, `${param}.content`), param));
    else all.push(...turnOf(role, listOf(content, `${param}.content`), param));
  }
  return all;
}

function assistantOf(blocks: readonly unknown[], param: string): Members {
  const message: Members = { role: 'assistant', content: null };
  const parts: Members[] = [];
  const calls: Members[] = [];
  for (const [at, one] of blocks.entries()) {
    const block = objectOf(one, `${param}.content[${at}]`);
    if (block.type === 'thinking')
      message.reasoning_content = `${(message.reasoning_content as string) ?? ''}${String(block.thinking)}`;
    else if (block.type === 'tool_use')
      calls.push({
        id: block.id,
        type: 'function',
        function: { name: block.name, arguments: JSON.stringify(block.input ?? {}) },
      });
    else if (block.type !== 'redacted_thinking') parts.push(partOf(block, `${param}.content[${at}]`));
  }
  if (parts.length > 0) message.content = contentOf(parts);
  if (calls.length > 0) message.tool_calls = calls;
  return message;
}

/** Results of tools are messages of their own, before what the person says beside them. */
function turnOf(role: string, blocks: readonly unknown[], param: string): Members[] {
  const results: Members[] = [];
  const parts: Members[] = [];
  for (const [at, one] of blocks.entries()) {
    const where = `${param}.content[${at}]`;
    const block = objectOf(one, where);
    if (block.type !== 'tool_result') {
      parts.push(partOf(block, where));
      continue;
    }
    const { tool_use_id: tool_call_id, content, is_error } = block;
    const said =
      content == null || typeof content === 'string'
        ? (content ?? '')
        : contentOf(partsOf(content, `${where}.content`));
    // Chats have no member for it.
    const prefixed = is_error === true && typeof said === 'string' ? `Error: ${said}` : said;
    results.push({ role: 'tool', tool_call_id, content: prefixed });
  }
  return parts.length === 0 ? results : [...results, { role, content: contentOf(parts) }];
}

function partsOf(blocks: unknown, param: string): Members[] {
  return listOf(blocks, param).map((one, at) => partOf(objectOf(one, `${param}[${at}]`), `${param}[${at}]`));
}

function partOf(block: Members, param: string): Members {
  switch (block.type) {
    case 'text':
      return { type: 'text', text: textOf(block.text, `${param}.text`) };
    case 'image': {
      const { type, media_type, data, url } = objectOf(block.source, `${param}.source`);
      if (type === 'base64')
        return { type: 'image_url', image_url: { url: `data:${media_type};base64,${data}` } };
      if (type === 'url') return { type: 'image_url', image_url: { url } };
      throw unusable(`\`${param}.source.type\` may not be ${JSON.stringify(type)}`, `${param}.source.type`);
    }
    case 'document': {
      const { type, data } = objectOf(block.source, `${param}.source`);
      if (type === 'text') return { type: 'text', text: textOf(data, `${param}.source.data`) };
      throw unusable(`\`${param}\` must be a document of plain text`, `${param}.source.type`);
    }
    default:
      throw unusable(`\`${param}\` is of the type ${JSON.stringify(block.type)}, which is not here`, param);
  }
}
