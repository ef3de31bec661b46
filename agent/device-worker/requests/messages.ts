import { HpcserveError } from '../../../spec/errors/error.ts';
import type { ChatMessage } from '../../text/chat-template.ts';
import { BodyReader, isObject, type Json } from './body-reader.ts';

/**
 * Members that helpers of SDKs leave in the messages of answers, which come back with the next request: what they hold
 * is said again in `content` and `tool_calls`, or is about the answer.
 */
const ofAnswers = [
  ...['refusal', 'annotations', 'parsed', 'audio', 'id', 'logprobs', 'cache_control'],
  ...['provider_specific_fields', 'thinking_blocks', 'reasoning_details'],
] as const;

const roles = ['system', 'developer', 'user', 'assistant', 'tool', 'function'];

/**
 * Rendering takes about 20 µs a message. Lower: shorter pauses of everybody's answers; higher: longer conversations.
 */
const messages_max = 10_000;

/** @throws HpcserveError E_REQUEST_INVALID, E_REQUEST_UNSUPPORTED naming the message and its part */
export function readMessages(body: BodyReader): ChatMessage[] {
  const list = body.list('messages');
  if (!list) return body.refuse('messages', 'is required');
  if (list.length === 0) return body.refuse('messages', 'must not be empty');
  if (list.length > messages_max) body.refuse('messages', `may hold at most ${messages_max} messages`);
  return list.map((message, index) => readMessage(message, `messages.${index}`, body.warnings));
}

/** @param warnings takes members that nobody knows: they are left out */
function readMessage(value: Json, path: string, warnings: string[]): ChatMessage {
  const reader = new BodyReader(value, path);
  const role = reader.string('role');
  if (role === undefined || !roles.includes(role))
    return reader.refuse('role', `must be one of ${roles.join(', ')}`);
  const content = readContent(reader);
  const calls = readCalls(reader) ?? readFunctionCall(reader);
  if (content === null && !(role === 'assistant' && (calls || reader.raw('refusal') !== undefined)))
    return reader.refuse('content', 'is required');
  reader.ignore(...ofAnswers);
  const name = reader.string('name');
  const tool_call_id = reader.string('tool_call_id');
  const reasoning = reader.string('reasoning_content') ?? reader.string('reasoning');
  for (const unread of reader.unread()) warnings.push(`${reader.path(unread)} is not known and left out`);
  return {
    // The result of a function, in the API before tools.
    role: role === 'function' ? 'tool' : role,
    content,
    ...(name === undefined ? {} : { name }),
    ...(tool_call_id === undefined ? {} : { tool_call_id }),
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(calls === undefined ? {} : { tool_calls: calls }),
  };
}

/** Text parts are joined by line breaks, since most chat templates take one string. */
function readContent(reader: BodyReader): string | null {
  const content = reader.raw('content');
  if (content === undefined) return null;
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return reader.refuse('content', 'must be a string or a list of parts');
  const texts = content.map((part, index) => {
    const at = `content.${index}`;
    if (!isObject(part)) return reader.refuse(at, 'must be an object');
    if (part.type === 'text' || part.type === 'refusal') {
      const text = part[part.type];
      return typeof text === 'string' ? text : reader.refuse(`${at}.${part.type}`, 'must be a string');
    }
    throw new HpcserveError('E_REQUEST_UNSUPPORTED', {
      what: `\`${reader.path(at)}\` is of type ${JSON.stringify(part.type ?? null)}, and this model reads text only`,
      try: 'send parts of type text, or choose a model that reads images or audio',
      details: { param: reader.path(at) },
    });
  });
  return texts.join('\n');
}

function readCalls(reader: BodyReader): ChatMessage['tool_calls'] {
  return reader.list('tool_calls')?.map((call, index) => {
    const one = new BodyReader(call, reader.path(`tool_calls.${index}`));
    const described = one.object('function');
    const name = described?.string('name');
    if (!described || name === undefined) return one.refuse('function.name', 'is required');
    const text = described.string('arguments') ?? '{}';
    return {
      id: one.string('id') ?? '',
      type: 'function',
      function: { name, arguments: objectOrText(text) },
    };
  });
}

/** A call in the API before tools: of one function, without an id. */
function readFunctionCall(reader: BodyReader): ChatMessage['tool_calls'] {
  const call = reader.object('function_call');
  if (!call) return undefined;
  const name = call.string('name') ?? call.refuse('name', 'is required');
  const text = call.string('arguments') ?? '{}';
  return [{ id: `call_${name}`, type: 'function', function: { name, arguments: objectOrText(text) } }];
}

/** Templates write arguments as JSON themselves, so they get the object; text that is no object stays text. */
function objectOrText(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : text;
  } catch {
    return text;
  }
}
