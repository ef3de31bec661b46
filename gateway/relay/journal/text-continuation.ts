import { type BodyEdit, spliced } from '../body-edits.ts';
import { bodyFor, isGreedy, type ParsedRequest, scalarOf, setMember, usageEdits } from '../request-body.ts';
import { bindingMembers, type Member, type RequestScan, type Span } from '../request-scan.ts';
import type { AnswerSoFar, ChoiceSoFar } from './answer-so-far.ts';
import type { ContinuedRequest, EventRewriter } from './journal.ts';
import { rewriteChunks, type TextSoFar } from './rewrite-chunks.ts';

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
/** Where a text completion names no limit (OpenAI's API; vLLM and SGLang keep to it). */
const default_completion_tokens = 16;
/** The first that is there counts. */
const chatLimits = ['max_completion_tokens', 'max_tokens'] as const;
/** What engines say in the place of bytes that are no UTF-8. */
export const replacement = '\ufffd';
const QUOTE = 34;
const OPEN_BRACKET = 91;
const OPEN_BRACE = 123;

export function continuesText(engine: string | undefined, path: CompletionsPath): boolean {
  return engine !== undefined && engines[path].has(engine);
}

/** The whole request, where the client has nothing of the answer but perhaps who speaks. */
export function requestAnew(
  parsed: ParsedRequest,
  answer: AnswerSoFar,
  engine: string | undefined,
): ContinuedRequest {
  const { head } = answer;
  answer.forgetTokens();
  return { body: bodyFor(parsed, engine), rewrite: rewriteChunks({ text: '', tokens: 0, head }) };
}

/**
 * The request with which an engine goes on behind a text, or why that is impossible.
 * @param engine undefined: not to be asked for more than OpenAI's API has
 */
export function requestFromText(
  parsed: ParsedRequest,
  path: CompletionsPath,
  answer: AnswerSoFar,
  engine: string | undefined,
): ContinuedRequest | string {
  const { scan } = parsed;
  const [choice] = answer.choices;
  const why = obstacle(scan) ?? (choice ? obstacleInAnswer(answer, choice) : 'nothing of it is known');
  if (why !== undefined) return why;
  const { content: text, tokens } = choice!;
  const so_far: TextSoFar = { text, tokens, head: answer.head };
  const edits = path === '/v1/completions' ? longerPrompt(scan, so_far) : longerChat(scan, so_far);
  if (typeof edits === 'string') return edits;
  const limits = fewerTokens(scan, path, engine, tokens);
  if (typeof limits === 'string') return limits;
  const rewritten = rewriteChunks(so_far);
  const rewrite: EventRewriter = (bytes, start, end) => {
    // What follows is of a prompt that was made from text: its ids are not those of this answer any more.
    choice!.ids_known = false;
    return rewritten(bytes, start, end);
  };
  return { body: spliced(scan.bytes, [...usageEdits(parsed, engine), ...edits, ...limits]), rewrite };
}

function obstacleInAnswer({ choices }: AnswerSoFar, choice: ChoiceSoFar): string | undefined {
  if (choices.length > 1) return 'it has several choices';
  if (choice.finished) return 'its last token is out already';
  if (choice.calls.size > 0) return 'it is in the middle of a tool call';
  if (choice.reasoning !== '') return 'its engine cannot go on behind a reasoning';
  // What is no character is one to the client only; to go on from that would be to go on from something else.
  return choice.content.includes(replacement) ? 'its text has bytes that are no characters' : undefined;
}

/** Why no engine goes on in the middle of this request's answer. */
export function boundObstacle(scan: RequestScan): string | undefined {
  const bound = [...bindingMembers, 'response_format' as const].find((member) => isBinding(scan, member));
  if (bound !== undefined) return `its engine cannot go on in the middle of a grammar (${bound})`;
  const penalty = (['presence_penalty', 'frequency_penalty'] as const).find((member) => {
    const value = scalarOf(scan, member);
    return typeof value === 'number' && value !== 0;
  });
  // Of sampled answers each continuation is one of many; of greedy ones only one is right.
  if (penalty !== undefined && isGreedy(scan))
    return `its engine would count what is there already anew (${penalty})`;
  return undefined;
}

function obstacle(scan: RequestScan): string | undefined {
  const severalOf = (member: 'n' | 'best_of'): boolean => {
    const value = scalarOf(scan, member);
    return typeof value === 'number' && value > 1;
  };
  if (severalOf('n') || severalOf('best_of')) return 'it has several choices';
  const bound = boundObstacle(scan);
  if (bound !== undefined) return bound;
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
    return [insideEnd(scan.last_content, text), setMember(scan, 'add_generation_prompt', 'false')];
  }
  const at = messages.end - 1;
  const before = isEmptyList(scan.bytes, messages) ? '' : ',';
  return [
    { start: at, end: at, text: `${before}{"role":"assistant","content":${JSON.stringify(text)}}` },
    setMember(scan, 'continue_final_message', 'true'),
    setMember(scan, 'add_generation_prompt', 'false'),
  ];
}

/** What is left of the request's limits, or that nothing is. */
function fewerTokens(
  scan: RequestScan,
  path: CompletionsPath,
  engine: string | undefined,
  tokens: number,
): BodyEdit[] | string {
  const limit = limitOf(scan, path);
  if (limit !== undefined && tokens >= limit) return 'it has all the tokens that were asked for';
  const edits: BodyEdit[] = [];
  for (const member of ['max_tokens', 'max_completion_tokens', 'min_tokens'] as const) {
    const value = scalarOf(scan, member);
    if (typeof value === 'number')
      edits.push(setMember(scan, member, String(Math.max(member === 'min_tokens' ? 0 : 1, value - tokens))));
  }
  const unlimited = engine === undefined || edits.length > 0;
  if (limit !== undefined && !unlimited) edits.push(setMember(scan, 'max_tokens', String(limit - tokens)));
  return edits;
}

/** Tokens that each choice may have; undefined: as many as the context holds. */
export function limitOf(scan: RequestScan, path: CompletionsPath): number | undefined {
  const names = path === '/v1/completions' ? (['max_tokens'] as const) : chatLimits;
  for (const name of names) {
    const value = scalarOf(scan, name);
    if (typeof value === 'number') return value;
  }
  return path === '/v1/completions' ? default_completion_tokens : undefined;
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
