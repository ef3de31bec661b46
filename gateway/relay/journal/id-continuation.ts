import { z } from 'zod';
import { type BodyEdit, spliced } from '../body-edits.ts';
import {
  answersEach,
  type ParsedRequest,
  scalarOf,
  setMember,
  usageEdits,
  wantsTokenIds,
} from '../request-body.ts';
import type { RequestScan } from '../request-scan.ts';
import type { AnswerSoFar, ChoiceSoFar } from './answer-so-far.ts';
import { ChunksFromIds, type MovedChoice } from './chunks-from-ids.ts';
import { earlierPenalties } from './earlier-penalties.ts';
import type { ContinuedRequest, ContinuingReplica } from './journal.ts';
import { type AnswerPhase, closing, phaseOf } from './reasoning-phase.ts';
import { settledText } from './settled-text.ts';
import type { StopRules } from './stop-boundary.ts';
import { boundObstacle, type CompletionsPath, limitOf } from './text-continuation.ts';

/** Members of a chat that mean something else in a text completion, or that its prompt's ids have in them already. */
const inThePrompt = ['messages', 'tools', 'tool_choice', 'max_completion_tokens', 'top_logprobs'] as const;

/**
 * The request with which an engine goes on token for token, behind the ids of the prompt and of the answer; or why it
 * cannot. A chat goes on as a text completion, whose text becomes what the chat's parsers would have made of it.
 * @throws Error where the replica does not spell the tokens
 */
export async function requestFromIds(
  parsed: ParsedRequest,
  path: CompletionsPath,
  answer: AnswerSoFar,
  replica: ContinuingReplica,
): Promise<ContinuedRequest | string> {
  const { scan } = parsed;
  const why = boundObstacle(scan) ?? (path === '/v1/completions' ? undefined : chatObstacle(scan));
  if (why !== undefined) return why;
  const choices: MovedChoice[] = [];
  for (let index = 0; index < parsed.choices; index++) {
    // One that has not begun has the prompt of those before it.
    if (answer.choice(index).finished) continue;
    const continued = await continuedChoice(parsed, path, answer, index, replica);
    if (typeof continued === 'string') return continued;
    choices.push(continued);
  }
  if (choices.length === 0) return 'its last token is out already';
  // One request has one limit: those that may have more go on after it.
  const tokens = Math.min(...choices.map(({ left }) => left));
  for (const { choice, begins_at } of choices) choice.restart(begins_at);
  const prompt_tokens = sumOfPrompts(answer, scan);
  const chunks = new ChunksFromIds({ path, answer, choices, tokens, prompt_tokens });
  return {
    path: '/v1/completions',
    body: spliced(scan.bytes, edits(parsed, path, choices, tokens)),
    rewrite: Object.assign(chunks.rewrite.bind(chunks), { more: () => chunks.more }),
  };
}

async function continuedChoice(
  parsed: ParsedRequest,
  path: CompletionsPath,
  answer: AnswerSoFar,
  index: number,
  replica: ContinuingReplica,
): Promise<MovedChoice | string> {
  const { scan } = parsed;
  const choice = answer.choice(index);
  const prompt_ids = promptOf(answer, index, scan);
  if (prompt_ids.length === 0) return 'its engine did not tell the ids of its prompt';
  const settled = await settledText(prompt_ids, choice.ids.toArray(), (ids) => replica.detokenize(ids));
  if (!settled) return 'its tokens spell no text by themselves';
  const { tokens: begins_at, text } = settled;
  if (begins_at < choice.ids.length && (choice.has_logprobs || wantsTokenIds(scan)))
    return 'the client knows of tokens that are parts of a character, and they would be computed again';
  const stops = stopsOf(scan, begins_at);
  const phase = path === '/v1/completions' ? plainPhase(choice, text, stops) : phaseOf(choice, settled);
  if (!phase || !mayBeHeld(phase, stops)) return 'its text is not what its tokens spell';
  const limit = limitOf(scan, path) ?? replica.context_tokens - prompt_ids.length;
  const left = limit - begins_at;
  if (left <= 0) return 'it has all the tokens that were asked for';
  return { index, choice, prompt_ids, begins_at, left, text, stops, ...phase };
}

/** Nothing reads the text of a completion: where nothing is held back for a stop string, all of it is out. */
function plainPhase(
  { content }: ChoiceSoFar,
  text: string,
  { strings }: StopRules,
): { pending: string } | undefined {
  if (strings.length === 0) return { pending: '' };
  return text.startsWith(content) ? { pending: text.slice(content.length) } : undefined;
}

/**
 * Whether an engine may have held back what the client does not have: it may be the beginning of a stop string, or of a
 * parser's mark. What else there is, such as special tokens, is not meant for the client.
 */
function mayBeHeld({ pending, reasoning }: AnswerPhase, { strings }: StopRules): boolean {
  const isMark = reasoning !== undefined && closing.startsWith(pending);
  return isMark || pending.trim() === '' || strings.some(({ length }) => pending.length < length);
}

/** The prompt of a choice: told with it, or with the first choice of the same prompt. */
function promptOf(answer: AnswerSoFar, index: number, scan: RequestScan): number[] {
  const own = answer.choice(index).prompt_ids;
  if (own.length > 0) return own.toArray();
  return answer.choice(index - (index % answersEach(scan))).prompt_ids.toArray();
}

function sumOfPrompts(answer: AnswerSoFar, scan: RequestScan): number {
  let sum = 0;
  for (let first = 0; first < answer.choices.length; first += answersEach(scan))
    sum += promptOf(answer, first, scan).length;
  return sum;
}

/** Strings that end the answer also where they began before the stream moved; the engine sees only what is new. */
function stopsOf(scan: RequestScan, begins_at: number): StopRules {
  const span = scan.members.get('stop');
  const value: unknown = span && JSON.parse(scan.bytes.toString('utf8', span.start, span.end));
  const strings = (Array.isArray(value) ? value : [value]).filter(
    (stop) => typeof stop === 'string' && stop !== '',
  );
  const least = scalarOf(scan, 'min_tokens');
  return {
    strings: strings as string[],
    included: scalarOf(scan, 'include_stop_str_in_output') === true,
    behind: typeof least === 'number' ? Math.max(0, least - begins_at) : 0,
  };
}

/** Why a chat does not go on as a text completion. */
function chatObstacle(scan: RequestScan): string | undefined {
  if (mayCallTools(scan)) return 'its engine reads tool calls out of its text';
  const alternatives = scalarOf(scan, 'top_logprobs');
  if (scalarOf(scan, 'logprobs') === true && typeof alternatives === 'number' && alternatives > 0)
    return 'it has log probabilities of alternatives';
  if (typeof scalarOf(scan, 'thinking_token_budget') === 'number')
    return 'its engine would count its reasoning anew';
  return isAllText(scan) ? undefined : 'its prompt is more than text';
}

function mayCallTools(scan: RequestScan): boolean {
  const tools = scan.members.get('tools');
  if (!tools || scan.bytes[tools.start] !== 91 || scalarOf(scan, 'tool_choice') === 'none') return false;
  const listed: unknown = JSON.parse(scan.bytes.toString('utf8', tools.start, tools.end));
  return !Array.isArray(listed) || listed.length > 0;
}

/** Parts of messages that are texts; engines have more kinds, which the ids of a prompt only stand for. */
const textPart = z.union([
  z.string(),
  z.object({ type: z.enum(['text', 'input_text', 'output_text', 'refusal', 'thinking']) }),
]);
const textMessages = z.array(z.object({ content: z.union([z.string(), z.array(textPart)]).nullish() }));

function isAllText({ members, bytes }: RequestScan): boolean {
  const span = members.get('messages');
  if (!span) return false;
  return textMessages.safeParse(JSON.parse(bytes.toString('utf8', span.start, span.end))).success;
}

function edits(
  parsed: ParsedRequest,
  path: CompletionsPath,
  choices: readonly MovedChoice[],
  tokens: number,
): BodyEdit[] {
  const { scan } = parsed;
  const prompts = choices.map(({ prompt_ids, choice }) => [...prompt_ids, ...choice.ids.toArray()]);
  const set: BodyEdit[] = [
    setMember(scan, 'prompt', JSON.stringify(prompts.length === 1 ? prompts[0] : prompts)),
    setMember(scan, 'max_tokens', String(tokens)),
    setMember(scan, 'return_token_ids', 'true'),
  ];
  if (scan.members.has('n')) set.push(setMember(scan, 'n', '1'));
  if (scan.members.has('best_of')) set.push(setMember(scan, 'best_of', '1'));
  if (scan.members.has('truncate_prompt_tokens')) set.push(setMember(scan, 'truncate_prompt_tokens', 'null'));
  const least = scalarOf(scan, 'min_tokens');
  if (typeof least === 'number') {
    const begins_at = Math.min(...choices.map((choice) => choice.begins_at));
    set.push(setMember(scan, 'min_tokens', String(Math.min(tokens, Math.max(0, least - begins_at)))));
  }
  if (path === '/v1/chat/completions') {
    for (const member of inThePrompt) if (scan.members.has(member)) set.push(setMember(scan, member, 'null'));
    if (scan.members.has('logprobs'))
      set.push(setMember(scan, 'logprobs', scalarOf(scan, 'logprobs') === true ? '0' : 'null'));
  }
  // One bias is for all prompts of a request.
  const given = choices.length === 1 ? choices[0]!.choice.ids.toArray() : [];
  return [...usageEdits(parsed, 'vllm'), ...set, ...earlierPenalties(scan, given)];
}
