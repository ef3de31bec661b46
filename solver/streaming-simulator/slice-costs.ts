import { attentionLayers } from '../catalog/model-shape.ts';
import { attentionCosts } from '../simulator/operators.ts';
import {
  busyTime_s,
  type IterationCost,
  iterationCost,
  linkTraffic_bytes,
  type ResidentShares,
  type StreamedKernelPolicy,
} from '../streaming/iteration-cost.ts';
import type { StreamedModel } from '../streaming/model-products.ts';
import type { SimulatedSlice } from './machine.ts';

/** The batch of one iteration. */
export interface IterationShape {
  decoding: number;
  input_tokens: number;
  /** Tokens of context that decoding sequences read, and those before the chunk. */
  decode_keys: number;
  prompt_keys: number;
}

/** Bits of an element of the KV cache. */
const kv_bits = 16;

/** What iterations of models take on slices of one kind; products are worked out once for each number of rows. */
export class SliceCosts {
  readonly #slice: SimulatedSlice;
  readonly #policy: StreamedKernelPolicy;
  readonly #known = new Map<string, IterationCost>();

  constructor(slice: SimulatedSlice, policy: StreamedKernelPolicy) {
    this.#slice = slice;
    this.#policy = policy;
  }

  kvBytesPerToken(model: StreamedModel): number {
    return attentionLayers(model.shape) * attentionCosts(model.shape, 1, kv_bits).bytes_per_key;
  }

  /**
   * @param link_bytes_per_s what kernels are chosen for
   * @returns time but for the link, and bytes over it
   */
  of(
    model: StreamedModel,
    shape: IterationShape,
    resident: ResidentShares,
    link_bytes_per_s: number,
  ): { busy_ms: number; link_bytes: number } {
    const products = this.#products(model, shape, link_bytes_per_s);
    const busy_s = busyTime_s(products, resident, this.#slice.figures.memory_bytes_per_s);
    return {
      busy_ms: 1000 * (busy_s + this.#rest_s(model, shape)),
      link_bytes: linkTraffic_bytes(products, resident),
    };
  }

  /** @returns time of an iteration that reads at the rate that its kernels were chosen for */
  at(
    model: StreamedModel,
    shape: IterationShape,
    resident: ResidentShares,
    link_bytes_per_s: number,
  ): { ms: number; link_bytes: number } {
    const { busy_ms, link_bytes } = this.of(model, shape, resident, link_bytes_per_s);
    return { ms: Math.max(busy_ms, (1000 * link_bytes) / link_bytes_per_s), link_bytes };
  }

  #products(model: StreamedModel, shape: IterationShape, link_bytes_per_s: number): IterationCost {
    const rows = rounded(shape.decoding + shape.input_tokens);
    const sampled = rounded(shape.decoding + (shape.input_tokens > 0 ? 1 : 0));
    // A fixed kernel does not ask for the link; others are chosen for steps of a quarter.
    const step = this.#policy === 'chosen' ? Math.round(4 * Math.log2(link_bytes_per_s)) : 0;
    const key = `${model.name}|${rows}|${sampled}|${step}`;
    let known = this.#known.get(key);
    if (!known) {
      const figures =
        step === 0 ? this.#slice.figures : { ...this.#slice.figures, link_bytes_per_s: 2 ** (step / 4) };
      known = iterationCost(model, { rows, sampled: Math.min(rows, sampled) }, figures, this.#policy);
      this.#known.set(key, known);
    }
    return known;
  }

  /** Attention, and what the engine's host takes. */
  #rest_s(
    model: StreamedModel,
    { decoding, input_tokens, decode_keys, prompt_keys }: IterationShape,
  ): number {
    const { calibration, device } = this.#slice;
    const { flops_per_pair, bytes_per_key } = attentionCosts(model.shape, 1, kv_bits);
    const layers = attentionLayers(model.shape);
    const bandwidth = device.memory_bandwidth_bytes_per_s * calibration.device.attention_memory;
    const peak = device.peak_flops_per_s.bf16! * calibration.device.attention_compute;
    const pairs = input_tokens * prompt_keys + (input_tokens * (input_tokens + 1)) / 2;
    const { engine } = calibration;
    return (
      (layers * decode_keys * bytes_per_key) / (bandwidth * engine.attention_memory) +
      (layers * pairs * flops_per_pair) / peak +
      engine.step_s +
      engine.layer_s * model.shape.n_layer +
      engine.sequence_s * (decoding + (input_tokens > 0 ? 1 : 0))
    );
  }
}

/** Few distinct numbers of rows, upwards. */
function rounded(rows: number): number {
  const step = rows <= 32 ? 1 : rows <= 256 ? 16 : 64;
  return Math.ceil(rows / step) * step;
}
