/**
 * Models whose weights are streamed, served on slices that share links, by discrete events: requests are placed, each
 * slice computes one iteration after the other, and while they run their pace follows what the link gives to each.
 */
import { byEngine } from '../routing/by-engine.ts';
import type { Candidate } from '../routing/candidate.ts';
import { SimulationEvents } from '../sharing-simulator/simulation-events.ts';
import type { HybridSetting } from '../streaming/hybrid-product.ts';
import type { StreamedModel } from '../streaming/model-products.ts';
import { requestLoad, type ToldDevice } from '../streaming/request-load.ts';
import { divideLink } from '../streaming/shared-link.ts';
import type { CatalogueRequest } from './catalogue.ts';
import type { StreamingMachine } from './machine.ts';
import { type StreamedSequence, type StreamedSlo, StreamingSlice } from './simulated-slice.ts';
import { SliceCosts } from './slice-costs.ts';

export interface StreamingPolicy {
  name: string;
  /**
   * `budgets`: as gateways do; `time`: as if no device shared its link; `batches`: as if devices told nothing of steps
   * and links; `fewest`: where the fewest sequences are.
   */
  placement: 'budgets' | 'time' | 'batches' | 'fewest';
  /** Input tokens of an iteration follow time and link; else there is one number. */
  chunk_control: boolean;
  /** `chosen`: by shape and what the link gives; else one setting. */
  kernels: 'chosen' | HybridSetting;
  /** Tensors that are used most stay on the slice. */
  keep_tensors: boolean;
}

export interface StreamingOptions {
  machine: StreamingMachine;
  models: readonly StreamedModel[];
  policy: StreamingPolicy;
  slo: StreamedSlo;
}

export interface StreamingOutcome {
  sequences: readonly StreamedSequence[];
  iterations: number;
  /** Bytes over each link, and until when. */
  link_bytes: number;
  end_ms: number;
}

type Event =
  | { kind: 'arrival'; request: CatalogueRequest }
  | { kind: 'done'; slice: StreamingSlice; version: number; began_ms: number }
  | { kind: 'tick' };

/** Between two looks at which tensors stay. */
const tick_ms = 2000;
/** Requests wait for KV, and not at slices. */
const order = byEngine(0);
/** A slice takes as many sequences as it has KV for. */
const max_sequences = Number.MAX_SAFE_INTEGER;

/** Serves all requests to their ends. */
export function serveStreaming(
  requests: readonly CatalogueRequest[],
  options: StreamingOptions,
): StreamingOutcome {
  return new StreamingServing(requests, options).run();
}

/** One run. */
class StreamingServing {
  readonly #options: StreamingOptions;
  readonly #events = new SimulationEvents<Event>();
  readonly #slices: readonly StreamingSlice[];
  readonly #waiting: StreamedSequence[] = [];
  readonly #sequences: StreamedSequence[] = [];
  #left: number;
  #now_ms = 0;
  #iterations = 0;
  #link_bytes = 0;

  constructor(requests: readonly CatalogueRequest[], options: StreamingOptions) {
    this.#options = options;
    const { machine, models, slo, policy } = options;
    const { chunk_control, keep_tensors, kernels } = policy;
    const costs = new Map<string, SliceCosts>();
    this.#slices = machine.slices.map((slice) => {
      const known = costs.get(slice.device.name) ?? new SliceCosts(slice, kernels);
      costs.set(slice.device.name, known);
      return new StreamingSlice({ slice, costs: known, models, slo, chunk_control, keep_tensors });
    });
    this.#left = requests.length;
    for (const request of requests) this.#events.add(request.arrival_ms, { kind: 'arrival', request });
    this.#events.add(tick_ms, { kind: 'tick' });
  }

  run(): StreamingOutcome {
    while (this.#left > 0) {
      const { at_ms, event } = this.#events.next()!;
      this.#now_ms = at_ms;
      if (event.kind === 'arrival') this.#arrive(event.request);
      else if (event.kind === 'done') this.#finish(event);
      else {
        for (const slice of this.#slices) slice.keepTensors(tick_ms / 1000);
        this.#events.add(at_ms + tick_ms, { kind: 'tick' });
      }
    }
    return {
      sequences: this.#sequences,
      iterations: this.#iterations,
      link_bytes: this.#link_bytes,
      end_ms: this.#now_ms,
    };
  }

  #arrive(request: CatalogueRequest): void {
    const sequence: StreamedSequence = {
      ...request,
      prompt_left: request.input_tokens,
      generated: 0,
      first_ms: Number.NaN,
      last_ms: Number.NaN,
      done_ms: Number.NaN,
    };
    this.#sequences.push(sequence);
    this.#waiting.push(sequence);
    this.#placeWaiting();
  }

  /** In order; the first that has no place keeps the others back, so that large ones get theirs. */
  #placeWaiting(): void {
    while (this.#waiting.length > 0) {
      const slice = this.#sliceFor(this.#waiting[0]!);
      if (!slice) return;
      slice.admit(this.#waiting.shift()!);
      this.#begin(slice);
    }
  }

  #sliceFor(sequence: StreamedSequence): StreamingSlice | undefined {
    const roomy = this.#slices.filter((slice) => slice.kv_bytes_free >= slice.kvBytesOf(sequence));
    if (roomy.length === 0) return undefined;
    const { placement } = this.#options.policy;
    if (placement === 'fewest')
      return roomy.reduce((best, next) => (next.sequences.length < best.sequences.length ? next : best));
    const { name } = this.#options.models[sequence.model]!;
    const told = new Map(this.#slices.map((slice) => [slice, slice.told(sequence.model)]));
    const candidates = roomy.map((slice): Candidate => {
      const own = told.get(slice)!;
      const isBeside = ({ link }: ToldDevice): boolean => link === own.link && placement === 'budgets';
      const beside = [...told.values()].filter((device) => device === own || isBeside(device));
      return {
        session_id: slice.id,
        running: slice.sequences.filter(({ model }) => model === sequence.model).length,
        max_sequences,
        ...{ waiting: 0, unreported: 0, unanswered: 0, kv_tokens_total: 0, kv_tokens_used: 0 },
        native: true,
        cpu: false,
        budget_load: placement === 'batches' ? undefined : requestLoad(name, own, beside),
      };
    });
    const request = { now_ms: this.#now_ms, expected_ms: 0, expected_tokens: 0 };
    const chosen = order.choose(candidates, request, [], this.#sequences.length);
    return roomy.find(({ id }) => id === chosen?.session_id);
  }

  #begin(slice: StreamingSlice): void {
    if (slice.running || !slice.begin(this.#now_ms)) return;
    this.#iterations++;
    this.#link_bytes += slice.running!.link_bytes;
    this.#divide(slice.link, slice);
  }

  #finish({ slice, version, began_ms }: Event & { kind: 'done' }): void {
    const { running } = slice;
    // Its pace changed meanwhile, or it is another iteration.
    if (running?.version !== version || running.began_ms !== began_ms) return;
    const finished = slice.finish(this.#now_ms);
    this.#left -= finished.length;
    if (finished.length > 0) this.#placeWaiting();
    this.#begin(slice);
    if (!slice.running) this.#divide(slice.link);
  }

  /** Divides a link anew; iterations whose pace changes end at another time. */
  #divide(link: string, begun?: StreamingSlice): void {
    const readers = this.#slices.filter((slice) => slice.link === link && slice.running);
    const given = divideLink(
      this.#options.machine.links.get(link)!,
      readers.map(({ running }) => running!.demand),
    );
    for (const [index, slice] of readers.entries()) {
      const own = slice.running!;
      const pace = own.demand === 0 ? 1 : given[index]! / own.demand;
      if (slice !== begun && Math.abs(pace - own.pace) < 1e-9) continue;
      own.done += ((this.#now_ms - own.since_ms) * own.pace) / own.alone_ms;
      own.since_ms = this.#now_ms;
      own.pace = pace;
      own.version++;
      const left_ms = ((1 - own.done) * own.alone_ms) / pace;
      const { version, began_ms } = own;
      this.#events.add(this.#now_ms + Math.max(0, left_ms), { kind: 'done', slice, version, began_ms });
    }
  }
}
