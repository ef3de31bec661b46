/**
 * Discrete-event simulation of continuous batching on one replica (Orca, OSDI '22; chunked prefill:
 * Sarathi-Serve, OSDI '24; paged KV with preemption by recomputation: vLLM, SOSP '23). Between arrivals,
 * finishes and moments of full memory nothing changes but the contexts' lengths, which lengthen a step by the
 * same amount each time: such runs of steps are summed in closed form.
 */
import { PagedKvCache } from './kv-cache.ts';
import type { RequestColumns } from './requests.ts';
import type { StepModel } from './step-model.ts';

export interface BatchingLimits {
  /** Sequences that run at once (`max_num_seqs`). */
  max_sequences: number;
  /** Tokens of one step (`max_num_batched_tokens`). */
  max_batched_tokens: number;
  /** Tokens the KV cache holds. */
  kv_tokens: number;
  block_tokens: number;
  /** `grow`: blocks as tokens come, preempting the newest when full; `reserve`: all blocks at admission. */
  admission: 'grow' | 'reserve';
  /** `chunked`: prompts share steps with decoding; `prompts-first`: whole prompts in steps of their own. */
  prompts: 'chunked' | 'prompts-first';
  /** What this replica does: all, prompts up to the first token, or decoding of prompts that came with KV. */
  role: 'both' | 'prefill' | 'decode';
  /** Requests that are outstanding at once, each finish letting the next one in; 0 goes by arrival times. */
  concurrency: number;
}

/** Columns by request; times in seconds, NaN for requests too long for the KV cache. */
export interface ReplicaRecord {
  arrival_s: Float64Array;
  first_token_s: Float64Array;
  finish_s: Float64Array;
  preemptions: Int32Array;
  /** Requests that can never fit into the KV cache. */
  refused: number;
  steps: number;
  /** Tokens computed, prompts and recomputation included, and tokens generated. */
  prompt_tokens: number;
  generated_tokens: number;
  recomputed_tokens: number;
  /** Share of KV blocks in use, averaged over time, and the most at any time. */
  kv_mean: number;
  kv_peak: number;
  /** Time during which steps ran. */
  busy_s: number;
  end_s: number;
  /** Gaps between tokens of a sequence: durations with the number of tokens they stand for. */
  gaps: { seconds: number[]; tokens: number[] };
}

const unlimited = Number.MAX_SAFE_INTEGER;

export function simulateReplica(
  model: StepModel,
  requests: RequestColumns,
  limits: BatchingLimits,
): ReplicaRecord {
  return new Replica(model, requests, limits).run();
}

class Replica {
  readonly #model: StepModel;
  readonly #limits: BatchingLimits;
  readonly #kv: PagedKvCache;
  readonly #input: Int32Array;
  readonly #output: Int32Array;
  readonly #arrival: Float64Array;
  readonly #record: ReplicaRecord;
  readonly #pp: number;
  readonly #budget: number;

  /** Tokens to prefill before (more) tokens come: the prompt, and after a preemption what was generated. */
  readonly #target: Int32Array;
  readonly #computed: Int32Array;
  readonly #generated: Int32Array;
  readonly #held: Int32Array;
  /** While a request decodes: the decode step at which it joined, and its context at that moment. */
  readonly #joined: Float64Array;
  readonly #context: Int32Array;
  readonly #finishStep: Float64Array;

  #now = 0;
  /** Decode steps so far: all decoding sequences advance together. */
  #step = 0;
  #next = 0;
  #released = 0;
  readonly #waiting = new Deque();
  #prefilling: number[] = [];
  #decoding: number[] = [];
  #keys = 0;
  #windowedKeys = 0;
  #belowWindow = 0;
  #lastDecodeEnd = 0;
  #kvTime = 0;

  constructor(model: StepModel, requests: RequestColumns, limits: BatchingLimits) {
    const n = requests.arrival_s.length;
    this.#model = model;
    this.#limits = limits;
    this.#pp = model.input.pp;
    this.#budget = limits.max_batched_tokens * this.#pp;
    this.#kv = new PagedKvCache(Math.floor(limits.kv_tokens / limits.block_tokens), limits.block_tokens);
    this.#input = requests.input_tokens;
    this.#output = limits.role === 'prefill' ? new Int32Array(n).fill(1) : requests.output_tokens;
    this.#arrival =
      limits.concurrency > 0 ? new Float64Array(n).fill(Number.POSITIVE_INFINITY) : requests.arrival_s;
    for (let i = 0; i < limits.concurrency && i < n; i++) this.#arrival[i] = 0;
    this.#released = limits.concurrency > 0 ? Math.min(n, limits.concurrency) : n;
    this.#target = Int32Array.from(requests.input_tokens);
    this.#computed = new Int32Array(n);
    this.#generated = new Int32Array(n);
    this.#held = new Int32Array(n);
    this.#joined = new Float64Array(n);
    this.#context = new Int32Array(n);
    this.#finishStep = new Float64Array(n);
    this.#record = {
      arrival_s: this.#arrival,
      first_token_s: new Float64Array(n).fill(Number.NaN),
      finish_s: new Float64Array(n).fill(Number.NaN),
      preemptions: new Int32Array(n),
      refused: 0,
      steps: 0,
      prompt_tokens: 0,
      generated_tokens: 0,
      recomputed_tokens: 0,
      kv_mean: 0,
      kv_peak: 0,
      busy_s: 0,
      end_s: 0,
      gaps: { seconds: [], tokens: [] },
    };
  }

  run(): ReplicaRecord {
    const n = this.#arrival.length;
    for (;;) {
      this.#admitArrivals();
      const running = this.#decoding.length + this.#prefilling.length;
      if (running === 0 && this.#waiting.length === 0) {
        if (this.#next >= n) break;
        this.#passTime(this.#arrival[this.#next]! - this.#now, false);
        continue;
      }
      const chunks = this.#scheduleChunks();
      if (chunks.length > 0) this.#mixedStep(chunks);
      else if (this.#decoding.length > 0) this.#decodeRun();
      // Prompts in progress that found no block were preempted; the next turn admits the oldest of them.
      else if (running === 0) throw new Error(`no request can start, of ${this.#waiting.length} that wait`);
    }
    const record = this.#record;
    record.kv_peak = this.#kv.total === 0 ? 0 : this.#kv.peak / this.#kv.total;
    record.kv_mean =
      this.#now === 0 || this.#kv.total === 0 ? 0 : this.#kvTime / (this.#now * this.#kv.total);
    record.end_s = this.#now;
    return record;
  }

  #admitArrivals(): void {
    while (this.#next < this.#arrival.length && this.#arrival[this.#next]! <= this.#now) {
      const request = this.#next++;
      if (this.#kv.blocksOf(this.#input[request]! + this.#output[request]!) > this.#kv.total) {
        this.#record.refused++;
        this.#releaseNext();
      } else this.#waiting.pushBack(request);
    }
  }

  /** Prompt chunks for the next step; takes the blocks they need. Empty when only decoding goes on. */
  #scheduleChunks(): Chunk[] {
    const { prompts, max_sequences } = this.#limits;
    const chunks: Chunk[] = [];
    const whole = prompts === 'prompts-first';
    let budget = whole ? this.#budget : this.#budget - this.#decoding.length;
    for (let index = 0; index < this.#prefilling.length && budget > 0; index++) {
      const request = this.#prefilling[index]!;
      const tokens = Math.min(this.#target[request]! - this.#computed[request]!, budget);
      while (!this.#takeFor(request, tokens) && this.#preemptNewest(request)) {}
      if (this.#held[request]! * this.#kv.block_tokens < this.#computed[request]! + tokens) {
        this.#preempt(request);
        break;
      }
      chunks.push({ request, tokens, before: this.#computed[request]!, last: false });
      budget -= tokens;
    }
    while (budget > 0 && this.#waiting.length > 0) {
      if (this.#decoding.length + this.#prefilling.length >= max_sequences * this.#pp) break;
      const request = this.#waiting.first();
      if (this.#limits.role === 'decode' && this.#generated[request] === 0) {
        if (!this.#takeWhole(request)) break;
        this.#waiting.popFront();
        this.#computed[request] = this.#target[request]!;
        this.#firstToken(request);
        continue;
      }
      const wanted = this.#target[request]!;
      // Room for a first chunk alone would let prompts in that push each other out before they are computed.
      if (this.#kv.blocksOf(wanted) > this.#kv.free) break;
      const tokens = whole ? wanted : Math.min(wanted, budget);
      if (whole && tokens > budget && chunks.length > 0) break;
      if (!(this.#limits.admission === 'reserve' ? this.#takeWhole(request) : this.#takeFor(request, tokens)))
        break;
      this.#waiting.popFront();
      this.#prefilling.push(request);
      chunks.push({ request, tokens, before: 0, last: false });
      budget -= tokens;
    }
    return chunks;
  }

  /** Blocks for `tokens` more prompt tokens of a request; false, with nothing taken, where they are not free. */
  #takeFor(request: number, tokens: number): boolean {
    const needed = this.#kv.blocksOf(this.#computed[request]! + tokens) - this.#held[request]!;
    if (needed <= 0) return true;
    if (needed > this.#kv.free) return false;
    this.#kv.take(needed);
    this.#held[request]! += needed;
    return true;
  }

  /** All blocks at once: to the end where they are reserved, of the prompt where KV arrives from elsewhere. */
  #takeWhole(request: number): boolean {
    const reserve = this.#limits.admission === 'reserve';
    const blocks = this.#kv.blocksOf(
      reserve ? this.#input[request]! + this.#output[request]! : this.#target[request]!,
    );
    if (blocks > this.#kv.free) return false;
    this.#kv.take(blocks);
    this.#held[request] = blocks;
    return true;
  }

  /** One step with prompt chunks, and with all decoding sequences unless prompts go first. */
  #mixedStep(chunks: Chunk[]): void {
    const alone = this.#limits.prompts === 'prompts-first';
    if (!alone && this.#decoding.length > 0) this.#makeRoomForOneStep(chunks);
    for (const chunk of chunks) chunk.last = chunk.before + chunk.tokens >= this.#target[chunk.request]!;
    const decoding = alone ? 0 : this.#decoding.length;
    const seconds = this.#model.stepTime_s(
      decoding,
      decoding === 0 ? 0 : this.#keys + decoding,
      decoding === 0 ? 0 : this.#windowedKeys + this.#belowWindow,
      chunks,
    );
    if (decoding > 0) this.#grow(1);
    this.#passTime(seconds, true);
    this.#record.steps++;
    if (decoding > 0) this.#advanceDecoding(1, seconds);
    const started: number[] = [];
    for (const { request, tokens, last } of chunks) {
      this.#computed[request]! += tokens;
      this.#record.prompt_tokens += tokens;
      if (last) started.push(request);
    }
    if (started.length > 0) {
      this.#prefilling = this.#prefilling.filter((request) => !started.includes(request));
      for (const request of started) this.#firstToken(request);
    }
    if (decoding > 0) this.#finishDue();
  }

  /** As many decode steps as pass before anything else happens, in closed form. */
  #decodeRun(): void {
    this.#makeRoomForOneStep([]);
    const sequences = this.#decoding.length;
    if (sequences === 0) return;
    let steps = unlimited;
    for (const request of this.#decoding) steps = Math.min(steps, this.#finishStep[request]! - this.#step);
    if (this.#belowWindow > 0)
      for (const request of this.#decoding) {
        const left = this.#model.window - this.#contextOf(request);
        if (left > 0) steps = Math.min(steps, left);
      }
    if (this.#limits.admission === 'grow') steps = this.#kv.stepsThatFit(this.#step, steps);
    const first = this.#model.stepTime_s(
      sequences,
      this.#keys + sequences,
      this.#windowedKeys + this.#belowWindow,
    );
    const growth = this.#model.decodeAttention_s(sequences, this.#belowWindow) / this.#pp;
    const mayEnter = this.#waiting.length === 0 && sequences < this.#limits.max_sequences * this.#pp;
    if (mayEnter && this.#next < this.#arrival.length)
      steps = Math.min(steps, stepsToReach(this.#arrival[this.#next]! - this.#now, first, growth));
    const seconds = steps * first + (growth * steps * (steps - 1)) / 2;
    const usedBefore = this.#kv.used;
    this.#grow(steps);
    this.#kvTime -= (seconds * (this.#kv.used - usedBefore)) / 2;
    this.#passTime(seconds, true);
    this.#record.steps += steps;
    this.#advanceDecoding(steps, seconds);
    this.#finishDue();
  }

  /** Preempts the newest until every decoding sequence can take one more token. */
  #makeRoomForOneStep(chunks: Chunk[]): void {
    if (this.#limits.admission !== 'grow') return;
    while (this.#decoding.length > 0 && this.#kv.growth(this.#step, 1) > this.#kv.free) {
      const victim = this.#prefilling.at(-1) ?? this.#decoding.at(-1)!;
      const scheduled = chunks.findIndex((chunk) => chunk.request === victim);
      if (scheduled >= 0) chunks.splice(scheduled, 1);
      this.#preempt(victim);
    }
  }

  /** Preempts the newest running request that is newer than `request`; false where there is none. */
  #preemptNewest(request: number): boolean {
    const newest = this.#prefilling.at(-1);
    if (newest === undefined || newest === request) return false;
    this.#preempt(newest);
    return true;
  }

  #preempt(request: number): void {
    if (this.#prefilling.at(-1) === request) this.#prefilling.pop();
    else if (this.#prefilling.includes(request))
      this.#prefilling = this.#prefilling.filter((other) => other !== request);
    else {
      const context = this.#contextOf(request);
      this.#generated[request] = this.#generatedBy(request);
      this.#leaveDecoding(request, context);
      this.#decoding = this.#decoding.filter((other) => other !== request);
    }
    this.#record.recomputed_tokens += this.#computed[request]!;
    this.#record.preemptions[request]!++;
    this.#kv.release(this.#held[request]!);
    this.#held[request] = 0;
    this.#computed[request] = 0;
    // What was generated is prefilled again with the prompt; its last token has no KV yet, and is the input.
    this.#target[request] = this.#input[request]! + this.#generated[request]!;
    this.#waiting.pushFront(request);
  }

  /** The prompt is computed (or came with its KV): a token is there, and the rest is decoded. */
  #firstToken(request: number): void {
    const record = this.#record;
    const handedOver = this.#limits.role === 'decode' && this.#generated[request] === 0;
    this.#generated[request]!++;
    if (!handedOver) record.generated_tokens++;
    if (Number.isNaN(record.first_token_s[request]!)) record.first_token_s[request] = this.#now;
    if (this.#generated[request]! >= this.#output[request]!) {
      this.#finish(request);
      return;
    }
    const context = this.#computed[request]!;
    this.#joined[request] = this.#step;
    this.#context[request] = context;
    this.#finishStep[request] = this.#step + this.#output[request]! - this.#generated[request]!;
    this.#decoding.push(request);
    this.#keys += context;
    this.#windowedKeys += Math.min(context, this.#model.window);
    if (context < this.#model.window) this.#belowWindow++;
    if (this.#limits.admission === 'grow') this.#kv.startGrowing(context, this.#step);
    if (this.#decoding.length === 1) this.#lastDecodeEnd = this.#now;
  }

  #grow(steps: number): void {
    if (this.#limits.admission !== 'grow') return;
    this.#kv.take(this.#kv.growth(this.#step, steps));
  }

  #advanceDecoding(steps: number, seconds: number): void {
    const sequences = this.#decoding.length;
    this.#keys += sequences * steps;
    this.#windowedKeys += this.#belowWindow * steps;
    this.#step += steps;
    if (this.#belowWindow > 0) this.#recountWindow();
    this.#record.generated_tokens += sequences * steps;
    // The first gap also holds what passed since the last decode step: prompts that went first.
    const stall = this.#now - seconds - this.#lastDecodeEnd;
    const { gaps } = this.#record;
    if (stall > 1e-9) {
      gaps.seconds.push(stall + seconds / steps);
      gaps.tokens.push(sequences);
    }
    const rest = stall > 1e-9 ? steps - 1 : steps;
    if (rest > 0) {
      gaps.seconds.push(seconds / steps);
      gaps.tokens.push(sequences * rest);
    }
    this.#lastDecodeEnd = this.#now;
  }

  #recountWindow(): void {
    let below = 0;
    let windowed = 0;
    for (const request of this.#decoding) {
      const context = this.#contextOf(request);
      if (context < this.#model.window) below++;
      windowed += Math.min(context, this.#model.window);
    }
    this.#belowWindow = below;
    this.#windowedKeys = windowed;
  }

  #finishDue(): void {
    const due = this.#decoding.filter((request) => this.#finishStep[request]! <= this.#step);
    if (due.length === 0) return;
    this.#decoding = this.#decoding.filter((request) => this.#finishStep[request]! > this.#step);
    for (const request of due) {
      this.#leaveDecoding(request, this.#contextOf(request));
      this.#finish(request);
    }
  }

  /** Takes a request out of the sums over decoding sequences, and sets its blocks to what it holds by now. */
  #leaveDecoding(request: number, context: number): void {
    this.#keys -= context;
    this.#windowedKeys -= Math.min(context, this.#model.window);
    if (context < this.#model.window) this.#belowWindow--;
    this.#computed[request] = context;
    if (this.#limits.admission !== 'grow') return;
    this.#kv.stopGrowing(context, this.#step);
    this.#held[request] = this.#kv.blocksOf(context);
  }

  #finish(request: number): void {
    this.#record.finish_s[request] = this.#now;
    this.#kv.release(this.#held[request]!);
    this.#held[request] = 0;
    this.#releaseNext();
  }

  /** With a fixed concurrency, the next request comes when one has left. */
  #releaseNext(): void {
    if (this.#limits.concurrency > 0 && this.#released < this.#arrival.length)
      this.#arrival[this.#released++] = this.#now;
  }

  #passTime(seconds: number, busy: boolean): void {
    this.#kvTime += seconds * this.#kv.used;
    this.#now += seconds;
    if (busy) this.#record.busy_s += seconds;
  }

  #contextOf(request: number): number {
    return this.#context[request]! + this.#step - this.#joined[request]!;
  }

  #generatedBy(request: number): number {
    return this.#generated[request]! + this.#step - this.#joined[request]!;
  }
}

interface Chunk {
  request: number;
  tokens: number;
  before: number;
  last: boolean;
}

/** The smallest number of steps, first + k·growth each, that last at least `seconds`; at least 1. */
function stepsToReach(seconds: number, first: number, growth: number): number {
  if (seconds <= first) return 1;
  if (seconds === Number.POSITIVE_INFINITY) return unlimited;
  // n·first + growth·n(n−1)/2 ≥ seconds; written so that a vanishing growth does not cancel digits.
  const b = first - growth / 2;
  const steps = Math.ceil((2 * seconds) / (b + Math.sqrt(b * b + 2 * growth * seconds)));
  return Math.max(1, steps);
}

/** A queue of request numbers with cheap operations at both ends. */
class Deque {
  #front: number[] = [];
  #back: number[] = [];
  #head = 0;

  get length(): number {
    return this.#front.length + this.#back.length - this.#head;
  }

  pushBack(value: number): void {
    this.#back.push(value);
  }

  pushFront(value: number): void {
    this.#front.push(value);
  }

  first(): number {
    return this.#front.length > 0 ? this.#front.at(-1)! : this.#back[this.#head]!;
  }

  popFront(): number {
    if (this.#front.length > 0) return this.#front.pop()!;
    const value = this.#back[this.#head++]!;
    if (this.#head > 1024 && this.#head * 2 > this.#back.length) {
      this.#back = this.#back.slice(this.#head);
      this.#head = 0;
    }
    return value;
  }
}
