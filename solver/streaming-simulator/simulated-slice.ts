import { nextChunk_tokens } from '../streaming/chunk-control.ts';
import { hostLink } from '../streaming/host-link.ts';
import type { ResidentShares } from '../streaming/iteration-cost.ts';
import {
  countedRate_bytes_per_s,
  type LinkEstimate,
  newLinkEstimate,
  observeTransfer,
} from '../streaming/link-estimate.ts';
import type { StreamedModel } from '../streaming/model-products.ts';
import type { ToldDevice, ToldModel } from '../streaming/request-load.ts';
import { residentTensors, type StreamedTensor } from '../streaming/resident-share.ts';
import type { CatalogueRequest } from './catalogue.ts';
import type { SimulatedSlice } from './machine.ts';
import type { IterationShape, SliceCosts } from './slice-costs.ts';

export interface StreamedSlo {
  ttft_ms: number;
  tpot_ms: number;
}

/** A request on its way. */
export interface StreamedSequence extends CatalogueRequest {
  prompt_left: number;
  generated: number;
  first_ms: number;
  last_ms: number;
  done_ms: number;
}

export interface RunningIteration {
  model: number;
  /** Input tokens by sequence, beside a token of each that decodes. */
  chunks: readonly { sequence: StreamedSequence; tokens: number }[];
  decoding: readonly StreamedSequence[];
  link_bytes: number;
  /** Bytes a second that it reads where nobody else does; 0: none. */
  demand: number;
  /** So long with all that it asks for. */
  alone_ms: number;
  /** Share that is done, at which pace it goes on, and since when. */
  done: number;
  pace: number;
  since_ms: number;
  began_ms: number;
  /** Counts the changes of its pace. */
  version: number;
}

export interface SliceOptions {
  slice: SimulatedSlice;
  costs: SliceCosts;
  models: readonly StreamedModel[];
  slo: StreamedSlo;
  chunk_control: boolean;
  /** Tensors that are used most stay; else everything is streamed. */
  keep_tensors: boolean;
}

/** Of the memory of a slice. The rest is its driver's and the results of graphs. */
const usable_share = 0.9;
/** Of what is usable, for KV caches; the arena and tensors that stay have the rest. */
const kv_share = 0.4;
/** Input tokens of an iteration where nothing controls them: what engines take without being told. */
const fixed_chunk_tokens = 512;
/** Weight of the last seconds in how often a model computes. */
const use_weight = 0.3;

/** One slice: sequences of several models, of which one has the next iteration. */
export class StreamingSlice {
  readonly id: string;
  readonly link: string;
  readonly figures: SimulatedSlice['figures'];
  readonly sequences: StreamedSequence[] = [];
  running: RunningIteration | undefined;
  estimate: LinkEstimate;
  kv_bytes_free: number;
  readonly #options: SliceOptions;
  readonly #resident: ResidentShares[];
  readonly #uses: number[];
  readonly #uses_per_s: number[];
  readonly #room_bytes: number;

  constructor(options: SliceOptions) {
    const { slice, models } = options;
    this.#options = options;
    this.id = slice.id;
    this.link = slice.link;
    this.figures = slice.figures;
    this.estimate = newLinkEstimate(slice.figures.link_bytes_per_s);
    const usable_bytes = usable_share * slice.device.memory_bytes;
    this.kv_bytes_free = kv_share * usable_bytes;
    const arena_bytes = 2 * Math.max(...models.map(({ layer_bytes_max }) => layer_bytes_max));
    this.#room_bytes = Math.max(0, (1 - kv_share) * usable_bytes - arena_bytes);
    this.#resident = models.map(() => ({ dense: 0, experts: 0 }));
    this.#uses = models.map(() => 0);
    this.#uses_per_s = models.map(() => 0);
  }

  kvBytesOf({ model, input_tokens, output_tokens }: CatalogueRequest): number {
    const { costs, models } = this.#options;
    return costs.kvBytesPerToken(models[model]!) * (input_tokens + output_tokens);
  }

  admit(sequence: StreamedSequence): void {
    this.kv_bytes_free -= this.kvBytesOf(sequence);
    this.sequences.push(sequence);
  }

  /** What its worker would tell of the models that it computes, and of one that is asked for. */
  told(asked: number): ToldDevice {
    const { models, slice, slo } = this.#options;
    const used = [...new Set([asked, ...this.sequences.map(({ model }) => model)])];
    const told: ToldDevice = {
      id: this.id,
      link: this.link,
      assumed: hostLink(slice.device),
      models: used.map((model): ToldModel => {
        const { busy_ms, link_bytes } = this.#decoding(model);
        const requests = this.sequences.filter((sequence) => sequence.model === model).length;
        const { tpot_ms } = slo;
        return { model: models[model]!.name, requests, compute_ms: busy_ms, step_bytes: link_bytes, tpot_ms };
      }),
    };
    const { reached_bytes_per_s } = this.estimate;
    if (reached_bytes_per_s) told.reached_bytes_per_s = reached_bytes_per_s;
    return told;
  }

  /** An iteration that decodes what is here. */
  #decoding(model: number): { busy_ms: number; link_bytes: number } {
    const decoding = Math.max(1, this.sequences.filter((sequence) => sequence.model === model).length);
    const shape = { decoding, input_tokens: 0, decode_keys: 0, prompt_keys: 0 };
    const { costs, models } = this.#options;
    return costs.of(models[model]!, shape, this.#resident[model]!, this.figures.link_bytes_per_s);
  }

  /** Begins the next iteration; undefined where nothing is to be done. */
  begin(now_ms: number): RunningIteration | undefined {
    const model = this.#mostUrgent();
    if (model === undefined) return undefined;
    const own = this.sequences.filter((sequence) => sequence.model === model);
    const decoding = own.filter(({ prompt_left }) => prompt_left === 0);
    const prompts = own.filter(({ prompt_left }) => prompt_left > 0);
    const chunks = takeChunks(prompts, this.#chunk(model, decoding, prompts, now_ms));
    const shape = shapeOf(decoding, chunks);
    const { costs, models } = this.#options;
    const resident = this.#resident[model]!;
    const counted = countedRate_bytes_per_s(this.estimate, this.#options.slice.link_share);
    const { busy_ms, link_bytes } = costs.of(models[model]!, shape, resident, counted);
    const alone_ms = Math.max(busy_ms, (1000 * link_bytes) / this.figures.link_bytes_per_s);
    this.#uses[model]!++;
    this.running = {
      model,
      chunks,
      decoding,
      link_bytes,
      demand: (1000 * link_bytes) / alone_ms,
      alone_ms,
      done: 0,
      pace: 1,
      since_ms: now_ms,
      began_ms: now_ms,
      version: 0,
    };
    return this.running;
  }

  /** The iteration is over: sequences go on, and those that are finished leave. */
  finish(now_ms: number): StreamedSequence[] {
    const { chunks, decoding, link_bytes, began_ms, demand, alone_ms } = this.running!;
    const elapsed_s = (now_ms - began_ms) / 1000;
    // It read as fast as it could, or was held up: else arithmetic set the pace.
    const isBound = demand >= 0.99 * this.figures.link_bytes_per_s || 1000 * elapsed_s > 1.01 * alone_ms;
    if (isBound) this.estimate = observeTransfer(this.estimate, link_bytes, elapsed_s);
    for (const sequence of decoding) {
      sequence.generated++;
      sequence.last_ms = now_ms;
    }
    for (const { sequence, tokens } of chunks) {
      sequence.prompt_left -= tokens;
      if (sequence.prompt_left > 0) continue;
      sequence.generated = 1;
      sequence.first_ms = now_ms;
      sequence.last_ms = now_ms;
    }
    this.running = undefined;
    const finished = this.sequences.filter(({ generated, output_tokens }) => generated >= output_tokens);
    for (const sequence of finished) {
      sequence.done_ms = now_ms;
      this.kv_bytes_free += this.kvBytesOf(sequence);
      this.sequences.splice(this.sequences.indexOf(sequence), 1);
    }
    return finished;
  }

  /** Looks again which tensors stay: they come with the iterations that read them anyway. */
  keepTensors(seconds: number): void {
    const { models, keep_tensors } = this.#options;
    for (const index of models.keys()) {
      const rate = this.#uses[index]! / seconds;
      this.#uses_per_s[index]! += use_weight * (rate - this.#uses_per_s[index]!);
      this.#uses[index] = 0;
    }
    if (!keep_tensors) return;
    const pieces = models.flatMap((model, index) => piecesOf(model, index, this.#uses_per_s[index]!));
    const kept = new Set(residentTensors(pieces, this.#room_bytes));
    for (const [index, shares] of this.#resident.entries()) {
      const of = (kind: Piece['kind']): number => {
        const all = [...pieces.keys()].filter(
          (at) => pieces[at]!.model === index && pieces[at]!.kind === kind,
        );
        return all.length === 0 ? 0 : all.filter((at) => kept.has(at)).length / all.length;
      };
      shares.dense = of('dense');
      shares.experts = of('experts');
    }
  }

  /** The model of the sequence whose next token is due first. */
  #mostUrgent(): number | undefined {
    let urgent: StreamedSequence | undefined;
    for (const sequence of this.sequences)
      if (!urgent || this.#due_ms(sequence) < this.#due_ms(urgent)) urgent = sequence;
    return urgent?.model;
  }

  /**
   * When its next token is due. What was late is not caught up: a model that cannot keep its promise would keep all
   * others from theirs.
   */
  #due_ms({ prompt_left, arrival_ms, first_ms, last_ms, generated }: StreamedSequence): number {
    const { ttft_ms, tpot_ms } = this.#options.slo;
    if (prompt_left > 0) return arrival_ms + ttft_ms;
    return Math.max(first_ms + generated * tpot_ms, last_ms + tpot_ms);
  }

  #chunk(
    model: number,
    decoding: readonly StreamedSequence[],
    prompts: readonly StreamedSequence[],
    now_ms: number,
  ): number {
    const waiting_tokens = prompts.reduce((sum, { prompt_left }) => sum + prompt_left, 0);
    const { chunk_control, costs, models } = this.#options;
    if (!chunk_control) return Math.min(waiting_tokens, fixed_chunk_tokens);
    if (waiting_tokens === 0) return 0;
    const base = shapeOf(decoding, []);
    const before = prompts[0]!.input_tokens - prompts[0]!.prompt_left;
    return nextChunk_tokens({
      waiting_tokens,
      budget_ms: this.#budget_ms(model, now_ms),
      iteration_ms: (input_tokens) =>
        costs.at(
          models[model]!,
          { ...base, input_tokens, prompt_keys: before },
          this.#resident[model]!,
          this.estimate.bytes_per_s,
        ).ms,
    });
  }

  /** Until somebody's next token is due; of other models their own iteration comes before it. */
  #budget_ms(model: number, now_ms: number): number {
    let budget_ms = Number.POSITIVE_INFINITY;
    const others = new Map<number, number>();
    for (const sequence of this.sequences) {
      if (sequence.prompt_left > 0) continue;
      const left_ms = this.#due_ms(sequence) - now_ms;
      if (sequence.model === model) budget_ms = Math.min(budget_ms, left_ms);
      else others.set(sequence.model, Math.min(left_ms, others.get(sequence.model) ?? left_ms));
    }
    for (const [other, left_ms] of others) {
      const { busy_ms, link_bytes } = this.#decoding(other);
      const own_ms = Math.max(busy_ms, (1000 * link_bytes) / this.figures.link_bytes_per_s);
      budget_ms = Math.min(budget_ms, left_ms - own_ms);
    }
    return budget_ms;
  }
}

interface Piece extends StreamedTensor {
  model: number;
  kind: 'dense' | 'experts';
}

/** A model in as many pieces of each kind as it has layers. Experts are read by the routing of one row. */
function piecesOf(model: StreamedModel, index: number, uses_per_s: number): Piece[] {
  if (uses_per_s === 0) return [];
  const { n_layer, experts } = model.shape;
  const read = experts ? experts.used_per_token / experts.count : 0;
  return Array.from({ length: n_layer }, (_, order): Piece[] => [
    { model: index, kind: 'dense', bytes: model.dense_bytes / n_layer, uses_per_s, order },
    ...(experts
      ? [
          {
            model: index,
            kind: 'experts' as const,
            bytes: model.expert_bytes / n_layer,
            uses_per_s,
            read_share: read,
            order,
          },
        ]
      : []),
  ]).flat();
}

function takeChunks(
  prompts: readonly StreamedSequence[],
  tokens: number,
): { sequence: StreamedSequence; tokens: number }[] {
  const chunks: { sequence: StreamedSequence; tokens: number }[] = [];
  let left = tokens;
  for (const sequence of prompts) {
    if (left === 0) break;
    const taken = Math.min(left, sequence.prompt_left);
    chunks.push({ sequence, tokens: taken });
    left -= taken;
  }
  return chunks;
}

function shapeOf(
  decoding: readonly StreamedSequence[],
  chunks: readonly { sequence: StreamedSequence; tokens: number }[],
): IterationShape {
  return {
    decoding: decoding.length,
    input_tokens: chunks.reduce((sum, { tokens }) => sum + tokens, 0),
    decode_keys: decoding.reduce((sum, { input_tokens, generated }) => sum + input_tokens + generated, 0),
    prompt_keys: chunks.reduce(
      (most, { sequence }) => Math.max(most, sequence.input_tokens - sequence.prompt_left),
      0,
    ),
  };
}
