import { type Chunk, type ChunkChoice, chunkOf } from './chunk.ts';
import type { JournalMemory } from './journal-memory.ts';
import { JournalTokens } from './journal-tokens.ts';

/** Members in which engines stream reasoning: vLLM's and SGLang's of different years. */
const reasoningMembers = ['reasoning_content', 'reasoning'] as const;
export type ReasoningMember = (typeof reasoningMembers)[number];

/** A tool call as far as the client has it. */
export interface CallSoFar {
  name: string;
  arguments: string;
}

/** What the client has of one choice, and the tokens behind it. */
export class ChoiceSoFar {
  readonly prompt_ids: JournalTokens;
  readonly ids: JournalTokens;
  /** Every chunk that had something came with its ids, and the engine counts as many tokens. */
  ids_known = true;
  content = '';
  reasoning = '';
  reasoning_member: ReasoningMember | undefined;
  /** By their index. */
  readonly calls = new Map<number, CallSoFar>();
  /** By the engine's count; else chunks that carried text, which may be fewer. */
  tokens = 0;
  /** Log probabilities of its tokens are out: the client knows of tokens whose text is not. */
  has_logprobs = false;
  finished = false;

  constructor(memory: JournalMemory) {
    this.prompt_ids = new JournalTokens(memory);
    this.ids = new JournalTokens(memory);
  }

  /** Whether the client has none of it, except perhaps whose turn it is. */
  get untouched(): boolean {
    return (
      !this.finished &&
      !this.has_logprobs &&
      this.content === '' &&
      this.reasoning === '' &&
      this.calls.size === 0
    );
  }

  /** It goes on behind so many of its tokens; the others are computed again. */
  restart(tokens: number): void {
    this.ids.truncate(tokens);
    this.tokens = tokens;
  }

  release(): void {
    this.prompt_ids.release();
    this.ids.release();
  }
}

/** What the client has of an answer, read from the chunks of its stream. */
export class AnswerSoFar {
  readonly choices: ChoiceSoFar[] = [];
  /** Members that all chunks of an answer share. */
  head: Pick<Chunk, 'id' | 'created' | 'model'> | undefined;
  /** Some of it could not be kept. */
  incomplete = false;
  readonly #memory: JournalMemory;
  readonly #choices_max: number;
  #held_bytes = 0;

  /** @param choices_max that were asked for: others are not looked at */
  constructor(memory: JournalMemory, choices_max: number) {
    this.#memory = memory;
    this.#choices_max = choices_max;
  }

  /** Of all choices together. */
  get tokens(): number {
    return this.choices.reduce((sum, { tokens }) => sum + tokens, 0);
  }

  choice(index: number): ChoiceSoFar {
    this.choices[index] ??= new ChoiceSoFar(this.#memory);
    return this.choices[index];
  }

  /** Takes note of an event of the stream. */
  read(event: string): void {
    const chunk = event === '' ? undefined : chunkOf(event);
    if (!chunk) return;
    this.head ??= { id: chunk.id, created: chunk.created, model: chunk.model };
    for (const said of chunk.choices ?? []) {
      const index = said.index ?? 0;
      if (!Number.isInteger(index) || index < 0 || index >= this.#choices_max) continue;
      const choice = this.choice(index);
      this.#readIds(choice, said, chunk.prompt_token_ids);
      this.#readText(choice, said);
      if (said.finish_reason) choice.finished = true;
      if (said.logprobs) choice.has_logprobs = true;
      this.#count(choice, chunk.usage?.completion_tokens, said);
    }
  }

  /** The answer is computed anew: the prompt is the same, and nothing of what was computed counts. */
  forgetTokens(): void {
    for (const choice of this.choices) choice?.restart(0);
  }

  release(): void {
    this.#memory.give(this.#held_bytes);
    this.#held_bytes = 0;
    // Holes, where a choice has not begun, are skipped.
    this.choices.forEach((choice) => void choice.release());
    this.choices.length = 0;
  }

  #readIds(choice: ChoiceSoFar, said: ChunkChoice, ofChat: number[] | null | undefined): void {
    const prompt_ids = said.prompt_token_ids ?? ofChat;
    if (prompt_ids && choice.prompt_ids.length === 0)
      for (const id of prompt_ids) this.#kept(choice.prompt_ids.push(id));
    if (Array.isArray(said.token_ids)) for (const id of said.token_ids) this.#kept(choice.ids.push(id));
    else if (said.finish_reason || carriesSomething(said)) choice.ids_known = false;
  }

  #readText(choice: ChoiceSoFar, { text, delta }: ChunkChoice): void {
    choice.content += this.#held(text ?? delta?.content);
    for (const member of reasoningMembers) {
      const reasoning = this.#held(delta?.[member]);
      if (reasoning === '') continue;
      choice.reasoning += reasoning;
      choice.reasoning_member = member;
      // Some engines say it under both names.
      break;
    }
    if (Array.isArray(delta?.tool_calls)) for (const call of delta.tool_calls) this.#readCall(choice, call);
    if (delta?.function_call) this.#readCall(choice, { function: delta.function_call });
  }

  #readCall(choice: ChoiceSoFar, call: unknown): void {
    const { index = 0, function: said } = call as {
      index?: number;
      function?: { name?: unknown; arguments?: unknown };
    };
    const so_far = choice.calls.get(index) ?? { name: '', arguments: '' };
    so_far.name += this.#held(said?.name);
    so_far.arguments += this.#held(said?.arguments);
    choice.calls.set(index, so_far);
  }

  #count(choice: ChoiceSoFar, counted: unknown, said: ChunkChoice): void {
    if (typeof counted === 'number') {
      choice.tokens = counted;
      // vLLM before 0.13 leaves out the ids of chunks that its parser of tool calls holds back.
      if (counted !== choice.ids.length) choice.ids_known = false;
    } else if (Array.isArray(said.token_ids)) choice.tokens = choice.ids.length;
    else if (carriesSomething(said)) choice.tokens++;
  }

  /** A text that counts in the journals' memory: two bytes a character at most in V8's heap. */
  #held(text: unknown): string {
    if (typeof text !== 'string' || text === '') return '';
    if (this.#memory.take(2 * text.length)) this.#held_bytes += 2 * text.length;
    else this.incomplete = true;
    return text;
  }

  #kept(kept: boolean): void {
    if (!kept) this.incomplete = true;
  }
}

function carriesSomething({ text, delta }: ChunkChoice): boolean {
  if (text !== undefined) return text !== '';
  return Object.entries(delta ?? {}).some(
    ([name, value]) =>
      name !== 'role' && value !== '' && value !== null && !(Array.isArray(value) && value.length === 0),
  );
}
