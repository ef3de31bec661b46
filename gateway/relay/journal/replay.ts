import { bodyFor, type ParsedRequest } from '../request-body.ts';
import type { AnswerSoFar, CallSoFar, ChoiceSoFar } from './answer-so-far.ts';
import { type ChunkChoice, chunkOf } from './chunk.ts';
import { type ContinuedRequest, OtherAnswer } from './journal.ts';

/**
 * The whole request once more, of which the client gets nothing until the new answer is where it is. For answers that
 * come out the same again, greedy ones and those of a seed: what the engine has counted and drawn, its parsers of tool
 * calls and its grammars are then in the state they were in. It takes as long as the answer has taken so far. Each
 * token is compared with what it was, and another one throws `OtherAnswer`.
 */
export function replayRequest(
  parsed: ParsedRequest,
  answer: AnswerSoFar,
  engine: string,
): Required<Pick<ContinuedRequest, 'body' | 'rewrite'>> {
  const replay = new Replay(answer);
  return { body: bodyFor(parsed, engine), rewrite: replay.rewrite.bind(replay) };
}

/** What has come again of one choice. */
interface Replayed {
  ids: number[];
  tokens: number;
  content: number;
  reasoning: number;
  calls: Map<number, { name: number; arguments: number }>;
}

interface Before {
  ids: number[];
  content: string;
  reasoning: string;
  calls: ReadonlyMap<number, CallSoFar>;
  finished: boolean;
}

const dropped = Buffer.alloc(0);

/** Holds an answer that comes again against what the client has, and lets pass what goes beyond that. */
class Replay {
  readonly #before: readonly Before[];
  readonly #again: Replayed[];
  readonly #head: AnswerSoFar['head'];

  constructor({ choices, head }: AnswerSoFar) {
    this.#before = choices.map(beforeOf);
    this.#again = choices.map(() => ({ ids: [], tokens: 0, content: 0, reasoning: 0, calls: new Map() }));
    this.#head = head;
  }

  /** @throws OtherAnswer */
  rewrite(bytes: Buffer, start: number, end: number): Buffer {
    const chunk = chunkOf(bytes.toString('utf8', start, end));
    if (!chunk) return bytes.subarray(start, end);
    const told = chunk.choices ?? [];
    for (const [name, value] of Object.entries(this.#head ?? {}))
      if (value !== undefined) chunk[name] = value;
    delete chunk.prompt_token_ids;
    chunk.choices = told.filter((choice) => this.#isNew(choice));
    if (told.length > 0 && chunk.choices.length === 0) return dropped;
    return Buffer.from(`data: ${JSON.stringify(chunk)}\n\n`);
  }

  /** Takes out of a choice what the client has. Returns whether anything is left. */
  #isNew(choice: ChunkChoice): boolean {
    const before = this.#before[choice.index ?? 0];
    const again = this.#again[choice.index ?? 0];
    if (!before || !again) return true;
    if (before.finished) return false;
    const known = this.#compareIds(choice, before, again);
    const { delta } = choice;
    delete choice.prompt_token_ids;
    if (choice.text !== undefined) choice.text = remainder(choice.text, before.content, again, 'content');
    if (delta) {
      delete delta.role;
      if (typeof delta.content === 'string')
        delta.content = remainder(delta.content, before.content, again, 'content');
      this.#cutReasoning(delta, before, again);
      if (Array.isArray(delta.tool_calls)) this.#cutCalls(delta, before, again);
    }
    const carries =
      (choice.text ?? '') !== '' ||
      Object.values(delta ?? {}).some((value) => value !== '' && value !== null);
    return carries || choice.finish_reason != null || known < (choice.token_ids?.length ?? 0);
  }

  /** @returns how many of the chunk's tokens the client has */
  #compareIds(choice: ChunkChoice, before: Before, again: Replayed): number {
    const ids = choice.token_ids ?? [];
    const known = Math.max(0, Math.min(ids.length, before.ids.length - again.tokens));
    for (let at = 0; at < known; at++)
      if (ids[at] !== before.ids[again.tokens + at])
        throw new OtherAnswer(`computed again, token ${again.tokens + at + 1} of the answer is another one`);
    again.tokens += ids.length;
    if (known === 0) return known;
    choice.token_ids = ids.slice(known);
    if (choice.logprobs) choice.logprobs = cutLogprobs(choice.logprobs, known);
    return known;
  }

  #cutReasoning(delta: Record<string, unknown>, before: Before, again: Replayed): void {
    const names = (['reasoning_content', 'reasoning'] as const).filter(
      (name) => typeof delta[name] === 'string',
    );
    if (names.length === 0) return;
    const left = remainder(delta[names[0]!] as string, before.reasoning, again, 'reasoning');
    for (const name of names) delta[name] = left;
  }

  #cutCalls(delta: Record<string, unknown>, before: Before, again: Replayed): void {
    const left = (delta.tool_calls as Record<string, unknown>[]).filter((call) => {
      const index = (call.index as number | undefined) ?? 0;
      const has = before.calls.get(index);
      if (!has) return true;
      const so_far = again.calls.get(index) ?? { name: 0, arguments: 0 };
      again.calls.set(index, so_far);
      const said = { ...(call.function as Record<string, string> | undefined) };
      // Its id was another one: the client has the first.
      delete call.id;
      delete call.type;
      for (const member of ['name', 'arguments'] as const)
        if (said[member] !== undefined) said[member] = remainder(said[member], has[member], so_far, member);
      if (said.name === '') delete said.name;
      call.function = said;
      return said.name !== undefined || (said.arguments ?? '') !== '';
    });
    if (left.length > 0) delta.tool_calls = left;
    else delete delta.tool_calls;
  }
}

function beforeOf({ ids, content, reasoning, calls, finished }: ChoiceSoFar): Before {
  const copies = [...calls].map(([index, call]) => [index, { ...call }] as const);
  return { ids: ids.toArray(), content, reasoning, calls: new Map(copies), finished };
}

/**
 * What of a text goes beyond what the client has.
 * @throws OtherAnswer where it is another text
 */
function remainder<K extends string>(
  text: string,
  has: string,
  so_far: Record<K, number>,
  member: K,
): string {
  const from = so_far[member];
  so_far[member] += text.length;
  const known = Math.min(text.length, Math.max(0, has.length - from));
  if (text.slice(0, known) !== has.slice(from, from + known))
    throw new OtherAnswer('computed again, the answer has another text');
  return text.slice(known);
}

function cutLogprobs(logprobs: Record<string, unknown>, known: number): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(logprobs).map(([name, value]) => [
      name,
      Array.isArray(value) ? value.slice(known) : value,
    ]),
  );
}
