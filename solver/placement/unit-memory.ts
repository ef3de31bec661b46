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
import { hasLatentKv } from './model-facts.ts';
import { kvOfSequence_tokens, longestSequence_tokens, sequenceKv } from './sequence-kv.ts';
import type { StageShare } from './stage-plan.ts';

export interface UnitMemory {
  context_tokens: number;
  /**
   * The engine is told so: model.yaml asks for it, memory does not hold what the model was trained for, or its files do
   * not say what that is.
   */
  context_told: boolean;
  /**
   * KV tokens over all sequences, each kept by all layers; smaller than asked where memory ends first. Fewer than
   * `context_tokens` where some layers keep less of a sequence (`SequenceKv`).
   */
  kv_tokens: number;
  kv_tokens_wanted: number;
  /** KV on each device of the replica. */
  kv_bytes: number;
  /** Its weights are streamed through so many bytes, which models of a device share; absent: they lie there. */
  arena_bytes?: number;
  /** Of its layers, what stays beside the arena: known once all replicas have their places. Absent: nothing. */
  resident_bytes?: number;
  /** Its memory is that of other models, too: of those that are so, the two largest of a device are there at once. */
  gives_way?: true;
  /** Weights (or the arena), KV and what the engine computes in, on each device of the replica. */
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
  /** Weights stay in host memory, and this is what a device has of them at a time; absent: all of them. */
  arena_bytes?: number;
  /** What each stage holds, where stages are cut as we say; absent: all hold the same. */
  shares?: readonly StageShare[];
  /** KV tokens that its devices of another kind have room for; absent: all devices are alike. */
  kv_tokens_elsewhere?: number;
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
  /** Of a device of each kind that the replica has: one, or one for each stage. */
  parts: readonly SizedPart[];
  available: number;
}

/** What one of a replica's devices holds. */
interface SizedPart {
  weights: number;
  kv_per_token: number;
  margin: number;
}

/**
 * Sizes a replica for a device: weights and KV are divided evenly over its devices (key-value heads no further
 * than there are, and latent vectors over stages alone), or as its stages are cut; then the one that needs most
 * counts. The least it must hold is the weights, the margin, and KV for one sequence: of the length asked for, else of
 * what the model was trained for, at most 8192.
 *
 * On GPUs a wrapped engine has all of its share: what weights and working memory leave is KV, and sequences may be as
 * long as the model was trained for, as far as that KV holds one. Elsewhere KV is what sequences need.
 */
export function sizeUnit(
  model: PlacementModel,
  engine: ResolvedEngine,
  device: DeviceOffer,
  split: ReplicaSplit,
  settings: PlacementSettings,
  defaults: EngineDefaults = nativeDefaults,
): UnitMemory | MemoryShortage {
  const { spec } = model;
  const { tensor } = split;
  const least_context = leastContext(model);
  const onGpu = engine !== 'native' && device.kind !== 'cpu';
  const available = Math.floor(device.memory_bytes * (onGpu ? settings.wrapped_memory_fraction : 1));
  const parts = partsOf(model, engine, split, settings);
  const sized: Sized = { engine, device, parts, available };
  const most = (tokens: number): number => Math.max(...parts.map((part) => part_bytes(part, tokens)));
  const kept = sequenceKv(model, engine, split.precision, onGpu, defaults);
  const one = (context: number): number => Math.ceil(kvOfSequence_tokens(kept, context));
  const least_tokens = one(least_context);
  const least = Math.ceil(most(least_tokens));
  if (least > available) return shortage(sized, least, least_context, least_tokens, split, settings);
  const sequences = spec.max_sequences ?? nativeDefaults.max_sequences;
  const wanted = Math.max(least_tokens, spec.kv_tokens ?? sequences * least_tokens);
  const room = (working: number): number =>
    Math.min(
      ...parts.map(({ weights, margin, kv_per_token }) =>
        kv_per_token > 0
          ? Math.floor((available - weights - Math.max(margin, working)) / kv_per_token)
          : wanted,
      ),
    );
  const roomy = Math.max(least_tokens, room(onGpu ? workingMemory(model, engine, tensor, defaults) : 0));
  const context = contextOf(model, engine, longestSequence_tokens(kept, roomy));
  const takesAll = onGpu && device.emulated === undefined && !reserving.has(engine);
  const elsewhere = split.kv_tokens_elsewhere ?? Number.POSITIVE_INFINITY;
  const kv_tokens = Math.max(one(context), takesAll ? roomy : Math.min(wanted, room(0), elsewhere));
  const kv_bytes = Math.ceil(kv_tokens * Math.max(...parts.map(({ kv_per_token }) => kv_per_token)));
  const bytes_per_device = takesAll ? available : Math.min(available, Math.ceil(most(kv_tokens)));
  const memory: UnitMemory = {
    context_tokens: context,
    // An engine to whom the files say nothing either would take a length of its own.
    context_told:
      spec.context_tokens !== undefined ||
      model.trained_context_tokens === 0 ||
      context < model.trained_context_tokens,
    kv_tokens,
    kv_tokens_wanted: wanted,
    kv_bytes,
    bytes_per_device,
    share: memoryShare(bytes_per_device, device.memory_bytes),
  };
  if (split.arena_bytes !== undefined) memory.arena_bytes = split.arena_bytes;
  if (spec.weights === 'reuse') memory.gives_way = true;
  return memory;
}

/** Of a device's declared memory, rounded down to thousandths. */
export function memoryShare(bytes: number, device_memory_bytes: number): number {
  return Math.floor((1000 * bytes) / device_memory_bytes) / 1000;
}

/** Tokens of the one sequence that a replica must hold at least. */
export function leastContext(model: PlacementModel): number {
  return model.spec.context_tokens ?? Math.min(trainedContext_tokens(model), context_tokens_default);
}

/** What the model was trained for; the default where its files do not say it. */
function trainedContext_tokens({ trained_context_tokens }: PlacementModel): number {
  return trained_context_tokens > 0 ? trained_context_tokens : context_tokens_default;
}

function partsOf(
  model: PlacementModel,
  engine: ResolvedEngine,
  { tensor, pipeline, weight_bytes, precision, programs_bytes, arena_bytes, shares }: ReplicaSplit,
  settings: PlacementSettings,
): SizedPart[] {
  const n_layer = model.summary?.n_layer ?? pipeline;
  const kvParts = hasLatentKv(model) ? 1 : Math.min(tensor, model.summary?.n_head_kv ?? tensor);
  const even: StageShare = {
    weight_bytes: arena_bytes ?? weight_bytes / (tensor * pipeline),
    layers: n_layer / pipeline,
  };
  return (shares ?? [even]).map(({ weight_bytes: weights, layers }) => ({
    weights,
    kv_per_token: ((layers / n_layer) * kvBytesPerToken(engine, model, precision)) / kvParts,
    margin: settings.margin_fixed_bytes + settings.margin_weight_fraction * weights + programs_bytes,
  }));
}

function part_bytes({ weights, margin, kv_per_token }: SizedPart, tokens: number): number {
  return weights + margin + kv_per_token * tokens;
}

/** @param room tokens of the longest sequence that there is memory for */
function contextOf(model: PlacementModel, engine: ResolvedEngine, room: number): number {
  if (model.spec.context_tokens !== undefined) return model.spec.context_tokens;
  const trained = trainedContext_tokens(model);
  const bounded = Math.min(trained, context_tokens_default);
  if (reserving.has(engine)) return bounded;
  if (room >= trained) return trained;
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
  { engine, device, parts, available }: Sized,
  needed: number,
  context: number,
  kv_tokens: number,
  { tensor, pipeline, arena_bytes }: ReplicaSplit,
  settings: PlacementSettings,
): MemoryShortage {
  const { weights, kv_per_token, margin } = parts.reduce((largest, part) =>
    part_bytes(part, kv_tokens) > part_bytes(largest, kv_tokens) ? part : largest,
  );
  const shared = engine !== 'native' && device.kind !== 'cpu';
  const share = shared ? ` (${Math.round(settings.wrapped_memory_fraction * 100)} % of the device)` : '';
  return {
    needed,
    available,
    because:
      `needs ${formatGib(needed)} on each of ${tensor * pipeline} device(s): ` +
      `${arena_bytes === undefined ? 'weights' : 'an arena for streamed weights'} ${formatGib(weights)}, ` +
      `KV of one sequence of ${context} tokens ${formatGib(kv_per_token * kv_tokens)}, margin ${formatGib(margin)}; ` +
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
