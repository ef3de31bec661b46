import type { AnswerSoFar, ChoiceSoFar } from './answer-so-far.ts';
import { type Chunk, type ChunkChoice, chunkOf } from './chunk.ts';
import type { AnswerPhase } from './reasoning-phase.ts';
import { ReasoningSplit } from './reasoning-split.ts';
import { StopBoundary, type StopRules } from './stop-boundary.ts';
import type { CompletionsPath } from './text-continuation.ts';

/** One choice that goes on behind its ids. */
export interface MovedChoice extends AnswerPhase {
  /** In the answer. */
  index: number;
  choice: ChoiceSoFar;
  prompt_ids: number[];
  /** Tokens of the answer that stand in its prompt now. */
  begins_at: number;
  /** Tokens that it may still have. */
  left: number;
  /** What its tokens spell so far. */
  text: string;
  stops: StopRules;
}

interface Continuation {
  path: CompletionsPath;
  answer: AnswerSoFar;
  /** In the order of the prompts that were sent. */
  choices: readonly MovedChoice[];
  /** What each may have at most of this request. */
  tokens: number;
  /** Of all prompts of the client together. */
  prompt_tokens: number;
}

interface Running {
  of: MovedChoice;
  stops: StopBoundary;
  split: ReasoningSplit | undefined;
  /** Tokens since it goes on. */
  tokens: number;
  /** Characters before its text; Python counts code points. */
  readonly characters: number;
  ended: boolean;
}

const dropped = Buffer.alloc(0);

/**
 * Makes the chunks of a text completion that goes on behind token ids those of the answer that was begun: its identity,
 * its choices, chat deltas with reasoning apart where it was a chat, and usage of the whole.
 */
export class ChunksFromIds {
  readonly #continuation: Continuation;
  readonly #running: Running[];
  /** Of the answer, before it went on. */
  readonly #tokens_before: number;

  constructor(continuation: Continuation) {
    this.#continuation = continuation;
    this.#running = continuation.choices.map((of) => ({
      of,
      stops: new StopBoundary(of.stops, of.text, of.pending),
      split: of.reasoning && new ReasoningSplit(of.reasoning),
      tokens: 0,
      characters: [...of.choice.content, ...of.pending].length,
      ended: false,
    }));
    this.#tokens_before = continuation.answer.tokens;
  }

  /** A choice may have more tokens than this request could give it. */
  get more(): boolean {
    return this.#running.some(({ ended, tokens, of }) => !ended && tokens > 0 && tokens < of.left);
  }

  rewrite(bytes: Buffer, start: number, end: number): Buffer {
    const chunk = chunkOf(bytes.toString('utf8', start, end));
    if (!chunk) return bytes.subarray(start, end);
    const { answer, path } = this.#continuation;
    const told = chunk.choices ?? [];
    const choices = told.flatMap<ChunkChoice>((said) => this.#choice(said, chunk.usage) ?? []);
    if (told.length > 0 && choices.length === 0) return dropped;
    if (told.length === 0) {
      if (chunk.usage && this.more) return dropped;
      if (chunk.usage) this.#wholeUsage(chunk.usage);
    }
    if (path === '/v1/chat/completions') chunk.object = 'chat.completion.chunk';
    for (const [name, value] of Object.entries(answer.head ?? {}))
      if (value !== undefined) chunk[name] = value;
    chunk.choices = choices;
    return Buffer.from(`data: ${JSON.stringify(chunk)}\n\n`);
  }

  /** Undefined: it has nothing for the client. */
  #choice(said: ChunkChoice, usage: Chunk['usage']): ChunkChoice | undefined {
    const running = this.#running[said.index ?? 0];
    if (!running || running.ended) return undefined;
    const { of, stops, split } = running;
    const { path, tokens: tokens_max } = this.#continuation;
    if (said.token_ids) running.tokens += said.token_ids.length;
    else if (typeof usage?.completion_tokens === 'number') running.tokens = usage.completion_tokens;
    if (usage) this.#usageOf(running, usage);
    let finish_reason = said.finish_reason ?? null;
    // It has reached the end of the request, and not of what it may have.
    if (finish_reason === 'length' && of.left > tokens_max) finish_reason = null;
    const { text, stopped } = stops.next(said.text ?? '', finish_reason !== null, running.tokens);
    const stop_reason = stopped ?? said.stop_reason;
    if (stopped !== undefined) finish_reason = 'stop';
    running.ended = finish_reason !== null;
    const choice: ChunkChoice = { index: of.index };
    if (path === '/v1/completions') choice.text = text;
    else choice.delta = split ? split.next(text, finish_reason !== null) : { content: text };
    choice.logprobs = this.#logprobs(running, said.logprobs);
    choice.finish_reason = finish_reason;
    if (stop_reason !== undefined && (path === '/v1/completions' || finish_reason !== null))
      choice.stop_reason = stop_reason;
    choice.token_ids = said.token_ids ?? null;
    return choice;
  }

  #logprobs({ characters }: Running, said: ChunkChoice['logprobs']): ChunkChoice['logprobs'] {
    if (!said) return null;
    if (this.#continuation.path === '/v1/completions') {
      const offsets = said.text_offset;
      return Array.isArray(offsets)
        ? { ...said, text_offset: offsets.map((offset: number) => offset + characters) }
        : said;
    }
    const { tokens, token_logprobs } = said as { tokens?: string[]; token_logprobs?: (number | null)[] };
    const content = (tokens ?? []).map((token, at) => ({
      token,
      logprob: token_logprobs?.[at] ?? -9999,
      bytes: [...Buffer.from(token)],
      top_logprobs: [],
    }));
    return { content };
  }

  /** In a chunk of one choice: of that alone. */
  #usageOf({ of, tokens }: Running, usage: Record<string, unknown>): void {
    const completion_tokens = of.begins_at + tokens;
    const prompt_tokens = of.prompt_ids.length;
    Object.assign(usage, {
      prompt_tokens,
      completion_tokens,
      total_tokens: prompt_tokens + completion_tokens,
    });
  }

  #wholeUsage(usage: Record<string, unknown>): void {
    const { prompt_tokens } = this.#continuation;
    const completion_tokens = this.#running.reduce((sum, { tokens }) => sum + tokens, this.#tokens_before);
    Object.assign(usage, {
      prompt_tokens,
      completion_tokens,
      total_tokens: prompt_tokens + completion_tokens,
    });
    // What of the longer prompt was found in a cache says nothing of the client's.
    delete usage.prompt_tokens_details;
  }
}
