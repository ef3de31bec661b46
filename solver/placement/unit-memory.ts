/** What one replica needs in memory, how much KV it gets, and how long its sequences may be. Bytes; per device. */
import {
  context_tokens_default,
  type DeviceOffer,
  type PlacementModel,
  type PlacementSettings,
  type ResolvedEngine,
} from '../../spec/plan.ts';
import { type EngineDefaults, nativeDefaults } from '../catalog/engine-defaults.ts';
import { kvBytesPerToken } from '../catalog/kv-type.ts';

export interface UnitMemory {
  context_tokens: number;
  /** The engine is told so: model.yaml asks for it, or memory does not hold what the model was trained for. */
  context_told: boolean;
  /** KV tokens over all sequences; smaller than asked where memory ends first. */
  kv_tokens: number;
  kv_tokens_wanted: number;
  /** KV on each device of the replica. */
  kv_bytes: number;
  /** Weights, KV and what the engine computes in, on each device of the replica. */
  bytes_per_device: number;
  /** Of the device's declared memory, 0 to 1, rounded down to thousandths. */
  share: number;
}

export interface MemoryShortage {
  needed: number;
  available: number;
  because: string;
}

/** How a replica is split: over `tensor` × `pipeline` devices, with so many bytes of weights in all. */
export interface ReplicaSplit {
  tensor: number;
  pipeline: number;
  weight_bytes: number;
  /** As the engine is asked for it: its KV may follow. */
  precision: string;
  /** See `ownPrograms_bytes`. */
  programs_bytes: number;
}

/** Engines that set aside, from the start, memory for so many sequences of full length. */
const reserving: ReadonlySet<ResolvedEngine> = new Set(['native', 'llama.cpp', 'ollama']);
/** Engines whose own processes take much of the memory that weights and KV are in, on CPUs. */
const python: ReadonlySet<ResolvedEngine> = new Set(['vllm', 'sglang']);

/**
 * What an engine's own processes take of a device: on CPUs, where they have the memory that weights and KV are in. What
 * was seen counts where it is more than is assumed; where it is less, only if nothing fits otherwise (`isTight`), since
 * what runs as it was planned is not to change for it.
 */
export function ownPrograms_bytes(
  engine: ResolvedEngine,
  device: DeviceOffer,
  settings: PlacementSettings,
  seen_bytes = 0,
  isTight = false,
): number {
  if (device.kind !== 'cpu') return 0;
  const assumed = python.has(engine) ? settings.python_engine_bytes : 0;
  return isTight && seen_bytes > 0 ? Math.min(seen_bytes, assumed) : Math.max(seen_bytes, assumed);
}

/** CUDA context, captured graphs, NCCL buffers and fragmentation, as vLLM reports them on large GPUs. */
const gpu_reserve_bytes = 2 * 2 ** 30;
/** Of a wrapped engine, beside captured graphs: SGLang's own rule, bytes for each token of a step. */
const sglang_token_bytes = 1.5 * 2 ** 20;
/** A context that memory bounds is a multiple of so many tokens. */
const context_step_tokens = 256;

interface Sized {
  engine: ResolvedEngine;
  device: DeviceOffer;
  weights: number;
  kv_per_token: number;
  margin: number;
  available: number;
}

/**
 * Sizes a replica for a device: weights and KV are divided evenly over its devices (key-value heads no further
 * than there are). The least it must hold is the weights, the margin, and KV for one sequence: of the length asked for,
 * else of what the model was trained for, at most 8192.
 *
 * On GPUs a wrapped engine has all of its share: what weights and working memory leave is KV, and sequences may be as
 * long as the model was trained for, as far as that KV holds one. Elsewhere KV is what sequences need.
 */
export function sizeUnit(
  model: PlacementModel,
  engine: ResolvedEngine,
  device: DeviceOffer,
  { tensor, pipeline, weight_bytes, precision, programs_bytes }: ReplicaSplit,
  settings: PlacementSettings,
  defaults: EngineDefaults = nativeDefaults,
): UnitMemory | MemoryShortage {
  const { spec } = model;
  const deviceCount = tensor * pipeline;
  const least_context = spec.context_tokens ?? Math.min(model.trained_context_tokens, context_tokens_default);
  const onGpu = engine !== 'native' && device.kind !== 'cpu';
  const weights = weight_bytes / deviceCount;
  const sized: Sized = {
    engine,
    device,
    weights,
    kv_per_token:
      kvBytesPerToken(engine, model, precision) /
      (pipeline * Math.min(tensor, model.summary?.n_head_kv ?? tensor)),
    margin: settings.margin_fixed_bytes + settings.margin_weight_fraction * weights + programs_bytes,
    available: Math.floor(device.memory_bytes * (onGpu ? settings.wrapped_memory_fraction : 1)),
  };
  const { kv_per_token, margin, available } = sized;
  const least = Math.ceil(weights + margin + kv_per_token * least_context);
  if (least > available) return shortage(sized, least, least_context, deviceCount, settings);
  const sequences = spec.max_sequences ?? nativeDefaults.max_sequences;
  const wanted = Math.max(least_context, spec.kv_tokens ?? sequences * least_context);
  const room = (reserve: number): number =>
    kv_per_token > 0 ? Math.floor((available - weights - reserve) / kv_per_token) : wanted;
  const reserve = onGpu ? Math.max(margin, workingMemory(model, engine, tensor, defaults)) : margin;
  const roomy = Math.max(least_context, room(reserve));
  const context = contextOf(model, engine, roomy);
  const takesAll = onGpu && device.emulated === undefined && !reserving.has(engine);
  const kv_tokens = Math.max(context, takesAll ? roomy : Math.min(wanted, room(margin)));
  const kv_bytes = Math.ceil(kv_per_token * kv_tokens);
  const bytes_per_device = takesAll ? available : Math.min(available, Math.ceil(weights + margin + kv_bytes));
  return {
    context_tokens: context,
    context_told: spec.context_tokens !== undefined || context < model.trained_context_tokens,
    kv_tokens,
    kv_tokens_wanted: wanted,
    kv_bytes,
    bytes_per_device,
    share: Math.floor((1000 * bytes_per_device) / device.memory_bytes) / 1000,
  };
}

/** @param room KV tokens there is memory for */
function contextOf(
  { spec, trained_context_tokens }: PlacementModel,
  engine: ResolvedEngine,
  room: number,
): number {
  if (spec.context_tokens !== undefined) return spec.context_tokens;
  const bounded = Math.min(trained_context_tokens, context_tokens_default);
  if (reserving.has(engine)) return bounded;
  if (room >= trained_context_tokens) return trained_context_tokens;
  return Math.max(bounded, Math.floor(room / context_step_tokens) * context_step_tokens);
}

/**
 * What a wrapped engine computes in on a GPU: activations of its largest step and logits of its largest batch, beside
 * what CUDA, graphs and collectives take. SGLang sets aside 1.5 MiB for each token of a step instead
 * (`_handle_gpu_memory_settings` in sglang/srt/server_args.py).
 */
function workingMemory(
  { summary }: PlacementModel,
  engine: ResolvedEngine,
  tensor: number,
  { batched_tokens, max_sequences }: EngineDefaults,
): number {
  if (engine === 'sglang') return gpu_reserve_bytes + batched_tokens * sglang_token_bytes;
  if (summary === undefined) return gpu_reserve_bytes;
  const { n_embd, n_ff, n_vocab } = summary;
  const activations = batched_tokens * (4 * n_embd + (3 * n_ff) / tensor) * 2;
  return gpu_reserve_bytes + activations + Math.min(max_sequences, 1024) * n_vocab * 4;
}

function shortage(
  { engine, device, weights, kv_per_token, margin, available }: Sized,
  needed: number,
  context: number,
  deviceCount: number,
  settings: PlacementSettings,
): MemoryShortage {
  const shared = engine !== 'native' && device.kind !== 'cpu';
  const share = shared ? ` (${Math.round(settings.wrapped_memory_fraction * 100)} % of the device)` : '';
  return {
    needed,
    available,
    because:
      `needs ${formatGib(needed)} on each of ${deviceCount} device(s): weights ${formatGib(weights)}, ` +
      `KV of one sequence of ${context} tokens ${formatGib(kv_per_token * context)}, margin ${formatGib(margin)}; ` +
      `${device.model} has ${formatGib(available)}${share}`,
  };
}

/**
 * Sequences that a replica computes at once: asked for, or what its engine chooses. Engines that divide their KV among
 * slots have no more of them than sequences of full length fit.
 */
export function sequencesOf(
  { spec }: PlacementModel,
  engine: ResolvedEngine,
  { kv_tokens, context_tokens }: UnitMemory,
  defaults: EngineDefaults,
): number {
  const asked = spec.max_sequences ?? defaults.max_sequences;
  if (engine !== 'llama.cpp' && engine !== 'ollama') return asked;
  return Math.max(1, Math.min(asked, Math.floor(kv_tokens / context_tokens)));
}

/** `12.3 GiB`, and MiB below one. */
export function formatGib(bytes: number): string {
  const gib = bytes / 1024 ** 3;
  return gib >= 1 ? `${gib.toFixed(1)} GiB` : `${(bytes / 1024 ** 2).toFixed(0)} MiB`;
}
