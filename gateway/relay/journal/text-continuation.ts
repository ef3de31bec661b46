import { type BodyEdit, type BodyPieces, spliced } from '../body-edits.ts';
import { bodyFor, memberEdit, type ParsedRequest, scalarOf, usageEdits } from '../request-body.ts';
import { bindingMembers, type Member, type RequestScan, type Span } from '../request-scan.ts';
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
/** A `response_format` of more bytes is taken for a schema without being read. */
const format_bytes_max = 4096;
const QUOTE = 34;
const OPEN_BRACKET = 91;
const OPEN_BRACE = 123;

export function continuesText(engine: string | undefined, path: CompletionsPath): boolean {
  return engine !== undefined && engines[path].has(engine);
}

/** The request with which an engine goes on behind a text, or why that is impossible. */
export function requestFromText(
  parsed: ParsedRequest,
  path: CompletionsPath,
  so_far: TextSoFar,
): BodyPieces | string {
  // Who goes on with a chat tells usage as it goes, as who began it did; of completions that is not known.
  const engine = path === '/v1/chat/completions' ? 'vllm' : undefined;
  // Nothing of the text is out: the whole request is asked again.
  if (so_far.text === '') return bodyFor(parsed, engine);
  const { scan } = parsed;
  const why = obstacle(scan);
  if (why !== undefined) return why;
  const edits = path === '/v1/completions' ? longerPrompt(scan, so_far) : longerChat(scan, so_far);
  if (typeof edits === 'string') return edits;
  return spliced(scan.bytes, [
    ...usageEdits(parsed, engine),
    ...edits,
    ...fewerTokens(scan, so_far.text_events),
  ]);
}

function obstacle(scan: RequestScan): string | undefined {
  const severalOf = (member: 'n' | 'best_of'): boolean => {
    const value = scalarOf(scan, member);
    return typeof value === 'number' && value > 1;
  };
  if (severalOf('n') || severalOf('best_of')) return 'it has several choices';
  const bound = [...bindingMembers, 'response_format' as const].find((member) => isBinding(scan, member));
  if (bound !== undefined) return `its engine cannot go on in the middle of a grammar (${bound})`;
  const choice = scan.members.get('tool_choice');
  if (choice && (scan.bytes[choice.start] === OPEN_BRACE || scalarOf(scan, 'tool_choice') === 'required'))
    return 'its engine cannot go on in the middle of a tool call';
  return undefined;
}

function isBinding(scan: RequestScan, member: Member): boolean {
  const span = scan.members.get(member);
  if (!span || isNull(scan.bytes, span)) return false;
  if (member !== 'response_format') return true;
  if (span.end - span.start > format_bytes_max) return true;
  const { type } = JSON.parse(scan.bytes.toString('utf8', span.start, span.end)) as { type?: unknown };
  return type !== undefined && type !== 'text';
}

function longerPrompt(scan: RequestScan, { text }: TextSoFar): BodyEdit[] | string {
  const prompt = promptText(scan);
  if (!prompt) return 'its prompt is not one text, and no text can be put behind token ids';
  const behind = insideEnd(prompt, text);
  if (scalarOf(scan, 'echo') !== true) return [behind];
  // The echo is a part of what the client has: all of the prompt, or of one that is longer not yet.
  const echoed =
    prompt.end - prompt.start <= 12 * text.length + 2 &&
    text.startsWith(JSON.parse(scan.bytes.toString('utf8', prompt.start, prompt.end)) as string);
  return [
    echoed ? { ...prompt, text: JSON.stringify(text) } : behind,
    { ...scan.members.get('echo')!, text: 'false' },
  ];
}

/** Where the one text is that a completion begins with. */
function promptText({ members, bytes, prompt_entries, prompt_of_strings }: RequestScan): Span | undefined {
  const prompt = members.get('prompt');
  if (!prompt) return undefined;
  if (bytes[prompt.start] === QUOTE) return prompt;
  if (bytes[prompt.start] !== OPEN_BRACKET || prompt_entries !== 1 || !prompt_of_strings) return undefined;
  return { start: bytes.indexOf(QUOTE, prompt.start), end: bytes.lastIndexOf(QUOTE, prompt.end - 1) + 1 };
}

function longerChat(scan: RequestScan, { text }: TextSoFar): BodyEdit[] | string {
  const messages = scan.members.get('messages');
  if (!messages || scan.bytes[messages.start] !== OPEN_BRACKET) return 'its messages are no list';
  if (scalarOf(scan, 'continue_final_message') === true) {
    // The client itself had a message of the assistant continued.
    if (!scan.last_content) return 'the message it continues is not one text';
    return [insideEnd(scan.last_content, text), setTo(scan, 'add_generation_prompt', 'false')];
  }
  const at = messages.end - 1;
  const before = isEmptyList(scan.bytes, messages) ? '' : ',';
  return [
    { start: at, end: at, text: `${before}{"role":"assistant","content":${JSON.stringify(text)}}` },
    setTo(scan, 'continue_final_message', 'true'),
    setTo(scan, 'add_generation_prompt', 'false'),
  ];
}

/** What is left of the request's limits. */
function fewerTokens(scan: RequestScan, tokens: number): BodyEdit[] {
  return (['max_tokens', 'max_completion_tokens', 'min_tokens'] as const).flatMap((member) => {
    const value = scalarOf(scan, member);
    if (typeof value !== 'number') return [];
    // The engine ends with its next token where the limit is reached already.
    const least = member === 'min_tokens' ? 0 : 1;
    return [setTo(scan, member, String(Math.max(least, value - tokens)))];
  });
}

function setTo(scan: RequestScan, member: Member, text: string): BodyEdit {
  const span = scan.members.get(member);
  return span ? { ...span, text } : memberEdit(scan, `"${member}":${text}`);
}

/** Adds to the end of a string in the body. */
function insideEnd({ end }: Span, text: string): BodyEdit {
  return { start: end - 1, end: end - 1, text: JSON.stringify(text).slice(1, -1) };
}

function isNull(bytes: Buffer, { start }: Span): boolean {
  return bytes[start] === 110;
}

function isEmptyList(bytes: Buffer, { start, end }: Span): boolean {
  for (let at = start + 1; at < end - 1; at++) if (bytes[at]! > 32) return false;
  return true;
}
