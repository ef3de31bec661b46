import type { DeviceSpec } from '../catalog/device-spec.ts';
import type { Interconnect } from '../catalog/interconnects.ts';
import { attentionLayers, ffnLayers, type ModelShape } from '../catalog/model-shape.ts';
import { readProbability } from '../streaming/expert-popularity.ts';
import type { Calibration } from './calibration.ts';
import { allReduceTime_s, stageTransfer_s } from './collectives.ts';
import { type Grouping, gemmTime_s } from './gemm.ts';
import {
  attentionCosts,
  computeOn,
  elementwiseBytesPerToken,
  type Gemm,
  type LayerOperators,
  layerOperators,
  outputGemm,
} from './operators.ts';

export interface StepModelInput {
  shape: ModelShape;
  device: DeviceSpec;
  tp: number;
  pp: number;
  interconnect: Interconnect;
  /** Bits of one element of the KV cache: 16, or 8. */
  kv_bits: number;
  calibration: Calibration;
  /** See `ReplicaConfig`. */
  streamed_s?: number | undefined;
  streamed_experts_s?: number | undefined;
}

/** Where the time of one step goes, in seconds. */
export interface StepParts {
  attention_projections: number;
  feed_forward: number;
  experts: number;
  attention: number;
  elementwise: number;
  collectives: number;
  output: number;
  overhead: number;
}

const activation_bytes = 2;
const memoized_tokens = 16_384;

/** Times by a whole number, worked out once each; grows with the largest number asked for. */
class Memo {
  #seconds = new Float64Array(0);
  readonly #of: (index: number) => number;

  constructor(of: (index: number) => number) {
    this.#of = of;
  }

  at(index: number): number {
    if (index >= this.#seconds.length) {
      const grown = new Float64Array(2 ** Math.ceil(Math.log2(index + 64))).fill(Number.NaN);
      grown.set(this.#seconds);
      this.#seconds = grown;
    }
    const known = this.#seconds[index]!;
    if (!Number.isNaN(known)) return known;
    const seconds = this.#of(index);
    this.#seconds[index] = seconds;
    return seconds;
  }
}

/**
 * Time of one engine step (one forward pass over a mixed batch) of a model on a tensor- and pipeline-parallel
 * group of devices. Split into parts that depend on the number of tokens, on the decoding sequences' contexts
 * and on each prompt chunk, so that a simulation can sum many like steps in closed form.
 */
export class StepModel {
  readonly input: StepModelInput;
  readonly #layers: LayerOperators;
  readonly #output: Gemm;
  readonly #token_s = new Memo((tokens) => sum(this.#tokenParts(tokens)));
  readonly #output_s = new Memo((rows) => this.#gemm(this.#output, rows));
  /** Seconds per key token read by decode attention, in all full and in all windowed layers. */
  readonly #decode_key_s: { full: number; windowed: number };
  readonly #prefill_pair_s: number;
  readonly #prefill_key_s: number;
  /** Reading and writing one sequence's state in all linear layers. */
  readonly #state_s: number;
  readonly #layersWindowed: number;
  readonly #layersFull: number;
  /** Tokens of the sliding window; infinite where there is none. */
  readonly window: number;

  constructor(input: StepModelInput) {
    this.input = input;
    const { shape, device, tp, kv_bits, calibration } = input;
    this.#layers = layerOperators(shape, device, tp);
    this.#output = outputGemm(shape, device, tp);
    this.#layersWindowed = shape.sliding_window?.n_layer ?? 0;
    this.#layersFull = attentionLayers(shape) - this.#layersWindowed;
    this.#state_s =
      linearState_bytes(shape, tp) /
      (device.memory_bandwidth_bytes_per_s * calibration.device.elementwise_memory);
    this.window = shape.sliding_window?.tokens ?? Number.POSITIVE_INFINITY;
    const { flops_per_pair, bytes_per_key } = attentionCosts(shape, tp, kv_bits);
    const peak = device.peak_flops_per_s[computeOn(device, 'bf16')] ?? 1;
    const bandwidth = device.memory_bandwidth_bytes_per_s * calibration.device.attention_memory;
    const pair_s = flops_per_pair / (peak * calibration.device.attention_compute);
    const key_s = Math.max(bytes_per_key / (bandwidth * calibration.engine.attention_memory), pair_s);
    this.#decode_key_s = {
      full: key_s * this.#layersFull,
      windowed: key_s * this.#layersWindowed,
    };
    this.#prefill_pair_s = pair_s;
    this.#prefill_key_s = bytes_per_key / bandwidth;
  }

  /** Everything that depends on the number of tokens alone; `tokens` may be fractional (pipelines). */
  tokenTime_s(tokens: number): number {
    const index = Math.ceil(tokens);
    const computed_s = index > memoized_tokens ? sum(this.#tokenParts(tokens)) : this.#token_s.at(index);
    // Copies and products overlap: a step takes the longer of both.
    return tokens > 0 ? Math.max(computed_s, this.#streamed_s(tokens)) : computed_s;
  }

  /** What the weights of such a step take over the link of their device, where they lie in host memory. */
  #streamed_s(tokens: number): number {
    const { streamed_s = 0, streamed_experts_s = 0, shape } = this.input;
    if (streamed_experts_s === 0 || !shape.experts) return streamed_s;
    const { count, used_per_token } = shape.experts;
    return streamed_s + streamed_experts_s * readProbability(used_per_token / count, tokens);
  }

  /** The output matrix for `rows` sequences that sample a token. */
  outputTime_s(rows: number): number {
    return rows === 0 ? 0 : this.#output_s.at(Math.min(memoized_tokens, Math.ceil(rows)));
  }

  /**
   * Attention of decoding sequences: linear in the keys they read, summed over the sequences; `windowedKeys`
   * counts at most the window of each.
   */
  decodeAttention_s(keys: number, windowedKeys: number): number {
    return keys * this.#decode_key_s.full + windowedKeys * this.#decode_key_s.windowed;
  }

  /** Attention of a chunk of `tokens` prompt tokens after `before` tokens that are in the cache. */
  prefillAttention_s(tokens: number, before: number): number {
    const layer = (pairs: number, keys: number): number =>
      Math.max(pairs * this.#prefill_pair_s, keys * this.#prefill_key_s);
    const full = layer(tokens * before + (tokens * (tokens + 1)) / 2, before + tokens);
    if (this.#layersWindowed === 0) return full * this.#layersFull;
    // A token at position p sees min(p, window) keys.
    const ramp = Math.max(0, Math.min(tokens, this.window - before));
    const pairs = ramp * before + (ramp * (ramp + 1)) / 2 + (tokens - ramp) * this.window;
    const windowed = layer(pairs, Math.min(before, this.window) + tokens);
    return full * this.#layersFull + windowed * this.#layersWindowed;
  }

  /** What no operator accounts for: host work, launches, gaps. */
  overheadTime_s(sequences: number, prompt_tokens: number): number {
    const { engine } = this.input.calibration;
    return (
      engine.step_s +
      engine.layer_s * this.input.shape.n_layer +
      (engine.sequence_s + this.#state_s) * sequences +
      (prompt_tokens > 0 ? engine.prompt_step_s + engine.prompt_token_s * prompt_tokens : 0)
    );
  }

  /** Hops between pipeline stages that a batch of `tokens` makes in one step. */
  pipelineTime_s(tokens: number): number {
    const { pp, tp, shape, device, interconnect, calibration } = this.input;
    if (pp <= 1) return 0;
    const bytes = tokens * shape.n_embd * activation_bytes;
    let seconds = 0;
    for (let stage = 1; stage < pp; stage++) {
      const crosses =
        Math.floor((stage * tp) / device.link.devices) !== Math.floor((stage * tp - 1) / device.link.devices);
      seconds += stageTransfer_s(bytes, device.link, interconnect, crosses, calibration.device);
    }
    return seconds;
  }

  /**
   * One whole step: `decoding` sequences with `keys` tokens of context in all, and prompt chunks. With
   * pipeline stages the step is one turn of all micro-batches: each of the pp micro-batches holds 1/pp of the
   * sequences and passes all layers, so a turn lasts as long as one micro-batch takes through the whole model.
   */
  stepTime_s(
    decoding: number,
    keys: number,
    windowedKeys: number,
    chunks: readonly { tokens: number; before: number; last: boolean }[] = [],
  ): number {
    const { pp } = this.input;
    let prompt_tokens = 0;
    let rows = decoding;
    let attention = this.decodeAttention_s(keys, windowedKeys);
    for (const chunk of chunks) {
      prompt_tokens += chunk.tokens;
      if (chunk.last) rows++;
      attention += this.prefillAttention_s(chunk.tokens, chunk.before);
    }
    const tokens = (decoding + prompt_tokens) / pp;
    return (
      this.tokenTime_s(tokens) +
      this.outputTime_s(rows / pp) +
      attention / pp +
      this.pipelineTime_s(tokens) +
      this.overheadTime_s(decoding + chunks.length, prompt_tokens)
    );
  }

  /** The parts of one step, for people who ask where the time goes. */
  parts(decoding: number, keys: number, prompt_tokens = 0, before = 0): StepParts {
    const token = this.#tokenParts(decoding + prompt_tokens);
    return {
      ...token,
      attention:
        this.decodeAttention_s(keys, decoding === 0 ? 0 : Math.min(keys, decoding * this.window)) +
        (prompt_tokens > 0 ? this.prefillAttention_s(prompt_tokens, before) : 0),
      output: this.outputTime_s(decoding + (prompt_tokens > 0 ? 1 : 0)),
      overhead: this.overheadTime_s(decoding + (prompt_tokens > 0 ? 1 : 0), prompt_tokens),
    };
  }

  #tokenParts(tokens: number): StepParts {
    const { shape, device, tp, interconnect, calibration } = this.input;
    const kinds = ffnLayers(shape);
    const run = (gemms: readonly Gemm[]): number =>
      gemms.reduce((seconds, gemm) => seconds + this.#gemm(gemm, tokens), 0);
    const bandwidth = device.memory_bandwidth_bytes_per_s * calibration.device.elementwise_memory;
    const moved =
      kinds.dense * elementwiseBytesPerToken(shape, tp, false) +
      kinds.expert * elementwiseBytesPerToken(shape, tp, true);
    const reduce = allReduceTime_s(
      tokens * shape.n_embd * activation_bytes,
      tp,
      device.link,
      interconnect,
      calibration.device,
      calibration.engine.one_shot_s,
    );
    return {
      attention_projections:
        attentionLayers(shape) * run(this.#layers.attention) +
        (shape.linear?.n_layer ?? 0) * run(this.#layers.linear),
      feed_forward: kinds.dense * run(this.#layers.dense) + kinds.expert * run(this.#layers.expert_side),
      experts: kinds.expert === 0 ? 0 : kinds.expert * this.#expertTime_s(tokens),
      elementwise: (tokens * moved) / bandwidth,
      collectives: 2 * shape.n_layer * reduce,
      attention: 0,
      output: 0,
      overhead: 0,
    };
  }

  /**
   * Grouped products of the routed experts: each of `count` experts is hit by a token with probability
   * used/count, so count × (1 − (1 − used/count)^tokens) of them are read.
   */
  #expertTime_s(tokens: number): number {
    const { shape, calibration } = this.input;
    const experts = shape.experts;
    if (experts === undefined) return 0;
    const grouping = {
      groups: experts.count * (1 - (1 - experts.used_per_token / experts.count) ** tokens),
      compute_share: calibration.engine.expert_compute,
      memory_share: calibration.engine.expert_memory,
    };
    const rows = tokens * experts.used_per_token;
    return this.#layers.expert.reduce((seconds, gemm) => seconds + this.#gemm(gemm, rows, grouping), 0);
  }

  #gemm(gemm: Gemm, rows: number, grouping?: Grouping): number {
    return gemmTime_s(gemm, rows, this.input.device, this.input.calibration.device, grouping);
  }
}

/** Linear attention keeps its state in 32 bits, and reads and writes all of it at every token. */
function linearState_bytes({ linear }: ModelShape, tp: number): number {
  return linear === undefined ? 0 : (linear.n_layer * linear.state_elements * 2 * 4) / tp;
}

function sum(parts: StepParts): number {
  return (
    parts.attention_projections +
    parts.feed_forward +
    parts.experts +
    parts.elementwise +
    parts.collectives +
    parts.attention +
    parts.output +
    parts.overhead
  );
}
