/** What one sequence keeps in an engine's KV, where not every layer keeps all of its tokens. */
import type { PlacementModel, ResolvedEngine } from '../../spec/plan.ts';
import type { EngineDefaults } from '../catalog/engine-defaults.ts';
import { argumentOf, kvBits } from '../catalog/kv-type.ts';
import { kvElementsPerLayer, type ModelShape } from '../catalog/model-shape.ts';
import { shapeOf } from './model-facts.ts';

/**
 * KV of a sequence, counted in tokens that all layers keep: what an engine says that it has room for is counted so.
 *
 *   all layers   ─── full:     every token
 *                ├── windowed: the last `kept_tokens` at most
 *                └── linear:   a state, whatever the length
 */
export interface SequenceKv {
  /** Shares of the layers, padding included: their sum may be above 1. */
  full: number;
  windowed: number;
  kept_tokens: number;
  /** What states of linear layers weigh. */
  state_tokens: number;
}

const everyToken: SequenceKv = { full: 1, windowed: 0, kept_tokens: 0, state_tokens: 0 };

/** Blocks of vLLM's KV that a window may touch beyond its tokens: one is begun before it, one behind it. */
const blockEdges_tokens = 2 * 16;
/** States are kept at 32 bits at most. */
const state_bits = 32;

/**
 * vLLM's hybrid KV manager keeps the window alone of windowed layers, and the chunk that a step computes beside it
 * (`SlidingWindowSpec.max_memory_usage_bytes` in vllm/v1/kv_cache_interface.py); linear ones have a state. It is
 * switched off by an option, by some connectors that carry KV elsewhere, and for Llama 4's chunks. Others count in
 * full: SGLang divides its memory between kinds of layers once and for all, llama.cpp reserves for each slot, and the
 * native engine computes no model with windows.
 *
 * @param onGpu where it is not, that manager may be missing
 */
export function sequenceKv(
  model: PlacementModel,
  engine: ResolvedEngine,
  precision: string,
  onGpu: boolean,
  { batched_tokens }: Pick<EngineDefaults, 'batched_tokens'>,
): SequenceKv {
  if (engine !== 'vllm' || !onGpu || model.architecture.startsWith('llama4')) return everyToken;
  if (isSwitchedOff(model.spec.engine_args)) return everyToken;
  const shape = shapeOf(model);
  if (shape === undefined || (shape.sliding_window === undefined && shape.linear === undefined))
    return everyToken;
  const { spec } = model;
  const told = Number(argumentOf(spec.engine_args, ['--max-num-batched-tokens']));
  const chunk_tokens = told > 0 ? told : (spec.prefill_chunk_tokens ?? batched_tokens);
  return keptBy(shape, kvBits('vllm', model, precision), chunk_tokens);
}

/** @param chunk_tokens that a step computes of a prompt at most */
function keptBy(shape: ModelShape, kv_bits: number, chunk_tokens: number): SequenceKv {
  const { n_layer, sliding_window, linear } = shape;
  const windowed = sliding_window?.n_layer ?? 0;
  const states = linear?.n_layer ?? 0;
  const full = n_layer - windowed - states;
  const group = groupOf([full, windowed, states].filter((layers) => layers > 0));
  const share = (layers: number): number => (Math.ceil(layers / group) * group) / n_layer;
  const token_bits = kvElementsPerLayer(shape) * kv_bits;
  return {
    full: share(full),
    windowed: share(windowed),
    kept_tokens: sliding_window ? sliding_window.tokens - 1 + chunk_tokens + blockEdges_tokens : 0,
    state_tokens: (share(states) * (linear?.state_elements ?? 0) * state_bits) / token_bits,
  };
}

/**
 * Layers that have blocks together: as many of each kind, the rest is padding. Kinds of nearly one size make one group
 * each (`_get_kv_cache_groups_uniform_page_size` in vllm/v1/core/kv_cache_utils.py).
 */
function groupOf(kinds: readonly number[]): number {
  const [least, most] = [Math.min(...kinds), Math.max(...kinds)];
  return most < 1.25 * least ? most : least;
}

function isSwitchedOff(engine_args: readonly string[]): boolean {
  const switches = /^--(disable[-_]hybrid[-_]kv[-_]cache[-_]manager|kv[-_]transfer[-_]config)\b/;
  return engine_args.some((word) => switches.test(word));
}

/** @returns what a sequence of so many tokens takes, in tokens of all layers */
export function kvOfSequence_tokens(kv: SequenceKv, tokens: number): number {
  return kv.full * tokens + kv.windowed * Math.min(tokens, kv.kept_tokens) + kv.state_tokens;
}

/** The longest sequence for which there is room. @param room in tokens of all layers */
export function longestSequence_tokens(kv: SequenceKv, room: number): number {
  const left = room - kv.state_tokens;
  const whole = left / (kv.full + kv.windowed);
  const isWhole = whole <= kv.kept_tokens || kv.windowed === 0;
  const tokens = Math.floor(isWhole ? whole : (left - kv.windowed * kv.kept_tokens) / kv.full);
  // Shares of layers are fractions, whose rounding may count a token too many or too few.
  if (kvOfSequence_tokens(kv, tokens) > room) return tokens - 1;
  return kvOfSequence_tokens(kv, tokens + 1) <= room && Number.isFinite(tokens) ? tokens + 1 : tokens;
}
