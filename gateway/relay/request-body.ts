import type { PromptKeys } from '../../solver/routing/candidate.ts';
import type { PromptBlocks } from '../../solver/routing/model-prefixes.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type BodyEdit, type BodyPieces, spliced } from './body-edits.ts';
import { promptBlocksOf } from './prompt-blocks.ts';
import { promptKeysOf } from './prompt-text.ts';
import type { Member, RequestScan } from './request-scan.ts';

/** What the gateway reads of a request's body; the rest is the replica's business. */
export interface ParsedRequest {
  model: string;
  stream: boolean;
  /** Whether the client itself asked for usage at the end of a stream, and in every chunk of it. */
  wantsUsage: boolean;
  wantsContinuousUsage: boolean;
  /** The client's own bytes, and where in them is what. */
  scan: RequestScan;
  /** Absent for the responses API and embeddings: nothing is asked that the client did not ask for. */
  asksUsage: boolean;
  prompt: PromptKeys | undefined;
  /** Its prompt in blocks of text; absent where it has none of that length. */
  blocks: PromptBlocks | undefined;
  /** Longest answer that the request asks for, tokens; absent: as the replica thinks fit. */
  max_tokens: number | undefined;
  /** Answers that it asks for. */
  choices: number;
}

/** Endpoints whose streams report usage only where `stream_options.include_usage` asks for it. */
export type StreamDialect = 'completions' | 'responses' | 'none';

/**
 * Longest spelling of a model's name that is read, bytes: every character of the longest name that a session may have
 * as an escape.
 */
const model_bytes_max = 6 * 1024 + 2;
/** The same of a number, a truth value, or a short word. */
const scalar_bytes_max = 1024;
/** Answers to one prompt, beyond what any engine gives. Lower: less to hold for a request; higher: wider searches. */
const answers_max = 1024;
/** Engines that say in each chunk of a stream what was used so far, where they are asked to. */
const continuousUsage = new Set(['vllm', 'sglang']);

/**
 * Reads out of a scanned body what the gateway must know.
 *
 * @throws E_REQUEST_INVALID
 */
export function parseRequest(scan: RequestScan, dialect: StreamDialect): ParsedRequest {
  if (!scan.isObject) throw invalid('the body must be a JSON object', undefined);
  const model = modelOf(scan);
  const stream = scalarOf(scan, 'stream');
  if (stream !== undefined && stream !== null && typeof stream !== 'boolean')
    throw invalid('`stream` must be true or false', 'stream');
  const prompt = dialect === 'none' ? undefined : promptKeysOf(scan);
  const blocks = dialect === 'none' ? undefined : promptBlocksOf(scan);
  const asksUsage = stream === true && dialect === 'completions';
  const option = asksUsage ? usageOptions(scan) : { include: true, continuous: true };
  return {
    model,
    stream: stream === true,
    wantsUsage: option.include,
    wantsContinuousUsage: option.include && option.continuous,
    scan,
    asksUsage,
    prompt,
    blocks,
    max_tokens: maxTokensOf(scan, dialect),
    choices: Math.max(askedOf(scan, 'n'), askedOf(scan, 'best_of')) * promptsOf(scan),
  };
}

/** The value of a member that is a number, a word or a truth value; a text for what is longer or a container. */
export function scalarOf(scan: RequestScan, member: Member): unknown {
  const span = scan.members.get(member);
  return span && valueAt(scan.bytes, span, scalar_bytes_max);
}

/** Prompts that one request has: a list of texts or of lists of tokens has several. */
export function promptsOf({ prompt_entries, bytes, members }: RequestScan): number {
  const span = members.get('prompt');
  if (!span || prompt_entries < 2) return 1;
  const first = bytes[firstInside(bytes, span.start)];
  return first === 34 || first === 91 ? prompt_entries : 1;
}

/** Answers that a request gets: `n` to each prompt. `best_of` are computed, and fewer come. */
export function answersOf(scan: RequestScan): number {
  return answersEach(scan) * promptsOf(scan);
}

/** Answers that each prompt gets. */
export function answersEach(scan: RequestScan): number {
  return askedOf(scan, 'n');
}

/** What is changed of a request before a replica with this engine gets it: usage is asked for, for the ledger. */
export function usageEdits(parsed: ParsedRequest, engine: string | undefined): BodyEdit[] {
  const { scan, asksUsage, wantsUsage } = parsed;
  if (!asksUsage) return [];
  const asks = [
    ...(wantsUsage ? [] : ['include_usage' as const]),
    ...(asksContinuousUsage(parsed, engine) ? ['continuous_usage_stats' as const] : []),
  ];
  if (asks.length === 0) return [];
  const fresh = asks.map((name) => `"${name}":true`).join();
  const options = scan.members.get('stream_options');
  if (!options) return [memberEdit(scan, `"stream_options":{${fresh}}`)];
  if (scan.bytes[options.start] !== 123) return [{ ...options, text: `{${fresh}}` }];
  const edits: BodyEdit[] = [];
  const missing: string[] = [];
  for (const name of asks) {
    const known = scan.streamOptions.get(name);
    if (known) edits.push({ ...known, text: 'true' });
    else missing.push(`"${name}":true`);
  }
  if (missing.length > 0) {
    const at = options.end - 1;
    const behind = firstInside(scan.bytes, options.start) === at ? '' : ',';
    edits.push({ start: at, end: at, text: behind + missing.join() });
  }
  return edits;
}

/**
 * Whether the ids of prompt and answer are asked of a replica with this engine, though the client did not ask for them:
 * with these another one can go on with a stream. vLLM gives them since 0.10.2, SGLang in completions since 2026-07;
 * earlier versions of both pay no heed to the member. SGLang refuses it in streamed chats, with `echo` vLLM would leave
 * out the prompt's text, and a prompt of embeddings has no ids.
 */
function asksTokenIds({ scan, asksUsage }: ParsedRequest, engine: string | undefined): boolean {
  const tells = engine === 'vllm' || (engine === 'sglang' && !scan.members.has('messages'));
  if (!tells || !asksUsage || wantsTokenIds(scan)) return false;
  return scalarOf(scan, 'echo') !== true && !scan.members.has('prompt_embeds');
}

/** Whether each token is the likeliest: then an answer that is computed again is the same. */
export function isGreedy(scan: RequestScan): boolean {
  return scalarOf(scan, 'temperature') === 0 || scalarOf(scan, 'top_k') === 1;
}

/** Whether the client itself asks for token ids. */
export function wantsTokenIds(scan: RequestScan): boolean {
  return scalarOf(scan, 'return_token_ids') === true;
}

/** The member has this value, whether the client named it or not. */
export function setMember(scan: RequestScan, member: Member, text: string): BodyEdit {
  const span = scan.members.get(member);
  return span ? { ...span, text } : memberEdit(scan, `"${member}":${text}`);
}

/** Whether usage in every chunk is asked of a replica with this engine, though the client did not ask for it. */
export function asksContinuousUsage(
  { asksUsage, wantsContinuousUsage }: ParsedRequest,
  engine: string | undefined,
): boolean {
  return asksUsage && !wantsContinuousUsage && engine !== undefined && continuousUsage.has(engine);
}

/** Adds a member behind all others: of equal names it counts. */
export function memberEdit({ close }: RequestScan, text: string): BodyEdit {
  return { start: close, end: close, text: `,${text}` };
}

/** What travels to a replica: the client's own bytes, or those with usage and token ids asked for. */
export function bodyFor(parsed: ParsedRequest, engine: string | undefined): BodyPieces {
  const edits = usageEdits(parsed, engine);
  if (asksTokenIds(parsed, engine)) edits.push(setMember(parsed.scan, 'return_token_ids', 'true'));
  return spliced(parsed.scan.bytes, edits);
}

function modelOf(scan: RequestScan): string {
  const span = scan.members.get('model');
  const model = span && valueAt(scan.bytes, span, model_bytes_max);
  if (typeof model !== 'string' || model === '') throw invalid('`model` must name a model', 'model');
  return model;
}

function usageOptions({ members, streamOptions, bytes }: RequestScan): {
  include: boolean;
  continuous: boolean;
} {
  const span = members.get('stream_options');
  if (!span) return { include: false, continuous: false };
  if (bytes[span.start] !== 123) {
    if (bytes[span.start] === 110) return { include: false, continuous: false };
    throw invalid('`stream_options` must be an object', 'stream_options');
  }
  const isTrue = (name: 'include_usage' | 'continuous_usage_stats'): boolean =>
    bytes[streamOptions.get(name)?.start ?? -1] === 116;
  return { include: isTrue('include_usage'), continuous: isTrue('continuous_usage_stats') };
}

function maxTokensOf(scan: RequestScan, dialect: StreamDialect): number | undefined {
  if (dialect === 'none') return 0;
  if (dialect === 'responses') return countOf(scan, 'max_output_tokens');
  return countOf(scan, 'max_completion_tokens') ?? countOf(scan, 'max_tokens');
}

/** @throws E_REQUEST_INVALID: what is no number here might be one for an engine, and count for nothing */
function askedOf(scan: RequestScan, member: 'n' | 'best_of'): number {
  const value = scalarOf(scan, member) ?? 1;
  if (typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= answers_max)
    return value;
  throw invalid(`\`${member}\` must be a whole number from 1 to ${answers_max}`, member);
}

function countOf(scan: RequestScan, member: Member): number | undefined {
  const value = scalarOf(scan, member);
  return typeof value === 'number' && value >= 0 ? Math.ceil(value) : undefined;
}

/** What is longer than a value may be stays as it is spelled: nothing of that name is known anywhere. */
function valueAt(bytes: Buffer, { start, end }: { start: number; end: number }, bytes_max: number): unknown {
  const first = bytes[start];
  if (first === 123 || first === 91) return {};
  if (first === 116) return true;
  if (first === 102) return false;
  if (first === 110) return null;
  if (end - start > bytes_max) return bytes.toString('latin1', start + 1, start + bytes_max);
  return JSON.parse(bytes.toString('utf8', start, end));
}

/** The first byte inside a container that is no white space. */
function firstInside(bytes: Buffer, open: number): number {
  let at = open + 1;
  while (bytes[at]! <= 32) at++;
  return at;
}

function invalid(what: string, param: string | undefined): HpcserveError {
  return new HpcserveError('E_REQUEST_INVALID', { what, details: param === undefined ? {} : { param } });
}
