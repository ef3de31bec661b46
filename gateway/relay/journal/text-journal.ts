import type { ParsedRequest } from '../request-body.ts';
import type { TokenUsage } from '../usage.ts';
import { type Chunk, chunkOf } from './chunk.ts';
import type { ContinuedRequest, StreamJournal } from './journal.ts';
import type { JournalMemory } from './journal-memory.ts';
import { rewriteChunks, type TextSoFar } from './rewrite-chunks.ts';
import { type CompletionsPath, continuesText, requestFromText } from './text-continuation.ts';

const first_bytes = 2048;
/** Events are kept as they are up to here, and then read. Lower: less memory; higher: fewer streams pay for reading. */
const raw_bytes_max = 32 * 1024;

/**
 * The journal of a stream from a wrapped engine, which goes on from text. Events are only copied; they are read
 * where they become many, or when the stream is to be continued. How many tokens the client has is then only
 * known as the number of events that carried text: engines send one token an event, more where they are behind.
 */
export class TextJournal implements StreamJournal {
  readonly cut_end = -1;
  readonly #memory: JournalMemory;
  readonly #path: CompletionsPath;
  #raw = Buffer.alloc(0);
  #length = 0;
  #held_bytes = 0;
  #why: string | undefined;
  readonly #so_far: TextSoFar = { text: '', text_events: 0 };

  constructor(memory: JournalMemory, path: CompletionsPath) {
    this.#memory = memory;
    this.#path = path;
  }

  take(bytes: Buffer, start: number, end: number): number {
    if (this.#why !== undefined) return -1;
    const length = end - start;
    if (this.#length + length > this.#raw.length && !this.#makeRoom(length)) {
      this.#why = 'the gateway has no memory left to keep its text';
      this.release();
      return -1;
    }
    bytes.copy(this.#raw, this.#length, start, end);
    this.#length += length;
    return -1;
  }

  accepts(engine: string | undefined): boolean {
    return continuesText(engine, this.#path);
  }

  get progress(): TokenUsage | undefined {
    if (this.#why !== undefined) return undefined;
    this.#read();
    return { completion_tokens: this.#so_far.text_events };
  }

  continued(parsed: ParsedRequest): ContinuedRequest | string {
    if (this.#why === undefined) this.#read();
    if (this.#why !== undefined) return this.#why;
    const request = requestFromText(parsed, this.#path, this.#so_far);
    if (typeof request === 'string') return request;
    return { body: request, rewrite: rewriteChunks(this.#so_far) };
  }

  release(): void {
    this.#memory.give(this.#held_bytes);
    this.#held_bytes = 0;
    this.#raw = Buffer.alloc(0);
    this.#length = 0;
  }

  #makeRoom(bytes: number): boolean {
    if (this.#length + bytes > raw_bytes_max) this.#read();
    if (this.#length + bytes <= this.#raw.length) return true;
    const capacity = Math.max(first_bytes, this.#raw.length * 2, this.#length + bytes);
    if (!this.#hold(capacity - this.#raw.length)) return false;
    const more = Buffer.allocUnsafeSlow(capacity);
    this.#raw.copy(more, 0, 0, this.#length);
    this.#raw = more;
    return true;
  }

  #hold(bytes: number): boolean {
    if (!this.#memory.take(bytes)) return false;
    this.#held_bytes += bytes;
    return true;
  }

  #read(): void {
    const events = this.#raw.toString('utf8', 0, this.#length).split(/\r?\n\r?\n/);
    this.#length = 0;
    for (const event of events) {
      const chunk = event === '' ? undefined : chunkOf(event);
      if (chunk) this.#readChunk(chunk);
    }
  }

  #readChunk(chunk: Chunk): void {
    const so_far = this.#so_far;
    so_far.head ??= { id: chunk.id, created: chunk.created, model: chunk.model };
    for (const { index, text, delta, finish_reason } of chunk.choices ?? []) {
      if ((index ?? 0) > 0) this.#why ??= 'it has several choices';
      if (finish_reason) this.#why ??= 'its last token is out already';
      if (delta?.tool_calls || delta?.function_call) this.#why ??= 'it is in the middle of a tool call';
      if (delta?.reasoning_content || delta?.reasoning)
        this.#why ??= 'its engine cannot go on behind a reasoning';
      const added = text ?? delta?.content;
      if (typeof added !== 'string' || added === '') continue;
      // Two bytes a character at most in V8's heap.
      if (!this.#hold(2 * added.length)) this.#why ??= 'the gateway has no memory left to keep its text';
      so_far.text += added;
      so_far.text_events++;
    }
  }
}
