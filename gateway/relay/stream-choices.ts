import { chunkOf } from './journal/chunk.ts';

/** What stands in an event that says more of its choices than text. */
const says = /"finish_reason"\s*:\s*"/;

/** What is known of the choices of a stream that has several: each ends by itself, and in any order. */
export class StreamChoices {
  readonly #count: number;
  readonly #finished = new Set<number>();

  /** @param count choices that were asked for, of all prompts together */
  constructor(count: number) {
    this.#count = count;
  }

  /** Whether no choice has more to say. */
  get finished(): boolean {
    return this.#finished.size >= this.#count;
  }

  /** Takes note of the event [start, end). */
  see(bytes: Buffer, start: number, end: number): void {
    const event = bytes.toString('utf8', start, end);
    if (!says.test(event)) return;
    const choices = chunkOf(event)?.choices;
    if (!Array.isArray(choices)) return;
    for (const choice of choices) {
      const index = choice?.index ?? 0;
      const isKnown = Number.isInteger(index) && index >= 0 && index < this.#count;
      if (isKnown && typeof choice?.finish_reason === 'string') this.#finished.add(index);
    }
  }
}
