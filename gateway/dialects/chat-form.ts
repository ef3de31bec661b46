/**
 * The form between all dialects: a request is the body of a chat completion, and its answer a row of parts, whether it
 * comes as a stream of chunks or whole.
 */
import { HpcserveError } from '../../spec/errors/error.ts';

/** An object whose members nobody has looked at. */
export type Members = Record<string, unknown>;

export type ChatEnd = 'stop' | 'length' | 'tool_calls' | 'content_filter';

export interface ChatUsage {
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
}

/** One step of an answer, in the order in which they come. */
export type AnswerPart =
  | { kind: 'reasoning' | 'text'; text: string }
  | { kind: 'tool'; index: number; id: string; name: string }
  | { kind: 'arguments'; index: number; text: string }
  | { kind: 'finish'; reason: ChatEnd; stop: string | undefined }
  | { kind: 'usage'; usage: ChatUsage };

export function isMembers(value: unknown): value is Members {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function unusable(what: string, param: string): HpcserveError {
  return new HpcserveError('E_REQUEST_INVALID', { what, details: { param } });
}

/** @throws E_REQUEST_INVALID */
export function objectOf(value: unknown, param: string): Members {
  if (isMembers(value)) return value;
  throw unusable(`\`${param}\` must be an object`, param);
}

/** @throws E_REQUEST_INVALID */
export function listOf(value: unknown, param: string): unknown[] {
  if (Array.isArray(value)) return value as unknown[];
  throw unusable(`\`${param}\` must be a list`, param);
}

/** @throws E_REQUEST_INVALID */
export function textOf(value: unknown, param: string): string {
  if (typeof value === 'string') return value;
  throw unusable(`\`${param}\` must be a text`, param);
}

/** Members that are set: one that is null says nothing in any of the dialects. */
export function given(members: Members): Members {
  return Object.fromEntries(
    Object.entries(members).filter(([, value]) => value !== undefined && value !== null),
  );
}

/** Text parts alone are one text, which every template takes. */
export function contentOf(parts: readonly Members[]): string | readonly Members[] {
  return parts.every(({ type }) => type === 'text')
    ? parts.map(({ text }) => text as string).join('')
    : parts;
}

/** What a chunk of a stream, or a whole completion, says. */
export function partsOf(answer: Members): AnswerPart[] {
  const parts: AnswerPart[] = [];
  const choice = (answer.choices as Members[] | undefined)?.[0];
  if (choice) {
    const said = (choice.delta ?? choice.message ?? { content: choice.text }) as Members;
    addText(parts, 'reasoning', said.reasoning_content ?? said.reasoning);
    addText(parts, 'text', said.content);
    for (const [at, call] of ((said.tool_calls ?? []) as Members[]).entries()) addCall(parts, call, at);
    const reason = choice.finish_reason;
    if (typeof reason === 'string')
      parts.push({ kind: 'finish', reason: finishReasonOf(reason), stop: stopOf(choice) });
  }
  if (isMembers(answer.usage)) parts.push({ kind: 'usage', usage: usageOf(answer.usage) });
  return parts;
}

function addText(parts: AnswerPart[], kind: 'reasoning' | 'text', text: unknown): void {
  if (typeof text === 'string' && text !== '') parts.push({ kind, text });
}

function addCall(parts: AnswerPart[], call: Members, at: number): void {
  const index = typeof call.index === 'number' ? call.index : at;
  const { name, arguments: text } = (call.function ?? {}) as Members;
  if (typeof name === 'string' && name !== '')
    parts.push({ kind: 'tool', index, id: String(call.id ?? `call_${index}`), name });
  if (typeof text === 'string' && text !== '') parts.push({ kind: 'arguments', index, text });
}

function finishReasonOf(reason: string): ChatEnd {
  return reason === 'length' || reason === 'tool_calls' || reason === 'content_filter' ? reason : 'stop';
}

/** Which of its stop strings ended it, where the engine says so. */
function stopOf({ stop_reason }: Members): string | undefined {
  return typeof stop_reason === 'string' ? stop_reason : undefined;
}

function usageOf(usage: Members): ChatUsage {
  const count = (value: unknown): number => (typeof value === 'number' ? value : 0);
  const detail = (name: string): Members => (isMembers(usage[name]) ? usage[name] : {});
  return {
    prompt_tokens: count(usage.prompt_tokens),
    completion_tokens: count(usage.completion_tokens),
    cached_tokens: count(detail('prompt_tokens_details').cached_tokens),
    reasoning_tokens: count(detail('completion_tokens_details').reasoning_tokens),
  };
}
