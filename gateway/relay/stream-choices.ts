import { type Chunk, chunkOf } from './journal/chunk.ts';
import { type TokenUsage, tokenUsageOf } from './usage.ts';

/** What stands in an event that says more of its choices than text. */
const says = /"finish_reason"\s*:\s*"|"usage"\s*:\s*\{/;

/** What is known of the choices of a stream that has several: each ends by itself, and in any order. */
export class StreamChoices {
  readonly #count: number;
  readonly #each: number;
  readonly #finished = new Set<number>();
  /** What the last chunk of a choice said of that choice. */
  readonly #used = new Map<number, TokenUsage>();

  /**
   * @param count choices that were asked for, of all prompts together
   * @param each of them to each prompt
   */
  constructor(count: number, each: number) {
    this.#count = count;
    this.#each = each;
  }

  /** Whether no choice has more to say. */
  get finished(): boolean {
    return this.#finished.size >= this.#count;
  }

  /** What all choices have used so far, each prompt counted once; undefined where none has said it. */
  get usage(): TokenUsage | undefined {
    if (this.#used.size === 0) return undefined;
    const total: TokenUsage = {};
    const prompts = new Map<number, TokenUsage>();
    for (const [index, used] of this.#used) {
      add(total, used, 'completion_tokens');
      add(total, used, 'reasoning_tokens');
      prompts.set(Math.floor(index / this.#each), used);
    }
    for (const used of prompts.values()) {
      add(total, used, 'prompt_tokens');
      add(total, used, 'cached_tokens');
    }
    return total;
  }

  /**
   * Takes note of the event [start, end).
   * @returns whether its usage is that of one choice, as vLLM and SGLang say it in each chunk
   */
  see(bytes: Buffer, start: number, end: number): boolean {
    const event = bytes.toString('utf8', start, end);
    if (!says.test(event)) return false;
    const chunk = chunkOf(event);
    if (!chunk || !Array.isArray(chunk.choices)) return false;
    for (const choice of chunk.choices) {
      const index = choice?.index ?? 0;
      if (typeof choice?.finish_reason === 'string' && this.#isKnown(index)) this.#finished.add(index);
    }
    return this.#takeUsage(chunk);
  }

  #takeUsage({ choices, usage }: Chunk): boolean {
    const used = choices!.length === 1 && usage ? tokenUsageOf(usage) : undefined;
    const index = choices![0]?.index ?? 0;
    if (!used || !this.#isKnown(index)) return false;
    this.#used.set(index, used);
    return true;
  }

  #isKnown(index: number): boolean {
    return Number.isInteger(index) && index >= 0 && index < this.#count;
  }
}

function add(total: TokenUsage, used: TokenUsage, name: keyof TokenUsage): void {
  const tokens = used[name];
  if (tokens !== undefined) total[name] = (total[name] ?? 0) + tokens;
}
