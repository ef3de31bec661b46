/** A replica that computes by iterations: one token for each running sequence, and chunks of prompts in their order. */
import { BlockCache } from './block-cache.ts';
import type { ReplayedRequest } from './requests.ts';

export interface ReplicaSpeed {
  prefill_tokens_per_s: number;
  /** Of an iteration, and of each sequence in it. */
  iteration_s: number;
  sequence_s: number;
  max_sequences: number;
  /** Tokens of an iteration. */
  batch_tokens: number;
  kv_tokens: number;
}

/** A request at a replica. */
export interface RunningRequest {
  readonly request: ReplayedRequest;
  readonly arrived_s: number;
  cached_tokens: number;
  /** Of its prompt. */
  left_tokens: number;
  /** Of its answer. */
  answer_left: number;
  first_token_s: number | undefined;
}

export interface ReplicaEvents {
  firstToken(of: RunningRequest, at_s: number): void;
  ended(of: RunningRequest, at_s: number): void;
}

/** One replica: its queue, its cache, and the iteration that it computes. */
export class SimulatedReplica {
  readonly #speed: ReplicaSpeed;
  readonly #block_tokens: number;
  readonly #events: ReplicaEvents;
  readonly #cache: BlockCache;
  readonly #queue: RunningRequest[] = [];
  readonly #prefilling: RunningRequest[] = [];
  #decoding: RunningRequest[] = [];
  /** What the running iteration computes. */
  #chunks: { of: RunningRequest; tokens: number }[] = [];
  /** When the running iteration ends; infinite where there is none. */
  next_s = Number.POSITIVE_INFINITY;

  constructor(speed: ReplicaSpeed, block_tokens: number, events: ReplicaEvents) {
    this.#speed = speed;
    this.#block_tokens = block_tokens;
    this.#events = events;
    this.#cache = new BlockCache(Math.floor(speed.kv_tokens / block_tokens));
  }

  get running(): number {
    return this.#prefilling.length + this.#decoding.length;
  }

  get waiting(): number {
    return this.#queue.length;
  }

  arrive(request: ReplayedRequest, at_s: number): RunningRequest {
    const of: RunningRequest = {
      request,
      arrived_s: at_s,
      cached_tokens: 0,
      left_tokens: request.input_tokens,
      answer_left: Math.max(1, request.output_tokens),
      first_token_s: undefined,
    };
    this.#queue.push(of);
    if (this.next_s === Number.POSITIVE_INFINITY) this.#begin(at_s);
    return of;
  }

  /** The running iteration ends, and the next one begins. */
  step(): void {
    const now_s = this.next_s;
    for (const of of this.#decoding) of.answer_left--;
    const ended = this.#decoding.filter(({ answer_left }) => answer_left <= 0);
    if (ended.length > 0) this.#decoding = this.#decoding.filter(({ answer_left }) => answer_left > 0);
    for (const { of, tokens } of this.#chunks) {
      of.left_tokens -= tokens;
      if (of.left_tokens > 0) continue;
      this.#prefilling.splice(this.#prefilling.indexOf(of), 1);
      of.first_token_s = now_s;
      of.answer_left--;
      this.#events.firstToken(of, now_s);
      if (of.answer_left > 0) this.#decoding.push(of);
      else ended.push(of);
    }
    for (const of of ended) {
      this.#cache.leave(of.request.blocks, this.#answerBlocks(of), of.request.answer_blocks);
      this.#events.ended(of, now_s);
    }
    this.#begin(now_s);
  }

  #begin(now_s: number): void {
    this.#admit();
    const { iteration_s, sequence_s, prefill_tokens_per_s, batch_tokens } = this.#speed;
    let room_tokens = Math.max(1, batch_tokens - this.#decoding.length);
    this.#chunks = [];
    let prefill_tokens = 0;
    for (const of of this.#prefilling) {
      const tokens = Math.min(of.left_tokens, room_tokens);
      if (tokens === 0) break;
      this.#chunks.push({ of, tokens });
      room_tokens -= tokens;
      prefill_tokens += tokens;
    }
    const idle = this.#decoding.length === 0 && this.#chunks.length === 0;
    const takes_s = iteration_s + sequence_s * this.#decoding.length + prefill_tokens / prefill_tokens_per_s;
    this.next_s = idle ? Number.POSITIVE_INFINITY : now_s + takes_s;
  }

  #admit(): void {
    while (this.#queue.length > 0 && this.running < this.#speed.max_sequences) {
      const of = this.#queue[0]!;
      const { blocks, input_tokens } = of.request;
      const hits = this.#cache.hits(blocks);
      if (!this.#cache.take(blocks, this.#answerBlocks(of))) return;
      of.cached_tokens = Math.min(hits * this.#block_tokens, input_tokens - 1);
      of.left_tokens = input_tokens - of.cached_tokens;
      this.#queue.shift();
      this.#prefilling.push(of);
    }
  }

  #answerBlocks({ request: { output_tokens } }: RunningRequest): number {
    return Math.ceil(output_tokens / this.#block_tokens);
  }
}
