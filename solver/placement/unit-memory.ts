/** What one replica needs in memory, and how much KV cache it gets. Bytes throughout; per device. */
import {
  type DeviceOffer,
  defaultContextTokens,
  type PlacementModel,
  type PlacementSettings,
  type ResolvedEngine,
} from '../../spec/plan.ts';

export interface UnitMemory {
  context_tokens: number;
  /** KV tokens over all sequences; smaller than asked where memory ends first. */
  kv_tokens: number;
  kv_tokens_wanted: number;
  /** Weights, KV and margin on each device of the replica. */
  bytes_per_device: number;
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
}

/**
 * Sizes a replica for a device: weights and KV are divided evenly over its devices (key-value heads no further
 * than there are). The least it must hold is the weights, the margin, and KV for one sequence of full length.
 */
export function sizeUnit(
  model: PlacementModel,
  engine: ResolvedEngine,
  device: DeviceOffer,
  { tensor, pipeline, weight_bytes }: ReplicaSplit,
  settings: PlacementSettings,
): UnitMemory | MemoryShortage {
  const deviceCount = tensor * pipeline;
  const context = model.spec.context_tokens ?? Math.min(model.trained_context_tokens, defaultContextTokens);
  const wanted = Math.max(context, model.spec.kv_tokens ?? model.spec.max_sequences * context);
  const weights = weight_bytes / deviceCount;
  const kvPerToken =
    model.kv_bytes_per_token / (pipeline * Math.min(tensor, model.summary?.n_head_kv ?? tensor));
  const margin = settings.margin_fixed_bytes + settings.margin_weight_fraction * weights;
  const wrapped = engine !== 'native' && device.kind !== 'cpu';
  const available = Math.floor(device.memory_bytes * (wrapped ? settings.wrapped_memory_fraction : 1));
  const least = Math.ceil(weights + margin + kvPerToken * context);
  if (least > available) {
    const share = wrapped ? ` (${Math.round(settings.wrapped_memory_fraction * 100)} % of the device)` : '';
    return {
      needed: least,
      available,
      because:
        `needs ${formatGib(least)} on each of ${deviceCount} device(s): weights ${formatGib(weights)}, ` +
        `KV of one sequence of ${context} tokens ${formatGib(kvPerToken * context)}, margin ${formatGib(margin)}; ` +
        `${device.model} has ${formatGib(available)}${share}`,
    };
  }
  const room = kvPerToken > 0 ? Math.floor((available - weights - margin) / kvPerToken) : wanted;
  const kvTokens = Math.min(wanted, room);
  return {
    context_tokens: context,
    kv_tokens: kvTokens,
    kv_tokens_wanted: wanted,
    bytes_per_device: Math.ceil(weights + margin + kvPerToken * kvTokens),
  };
}

/** `12.3 GiB`, and MiB below one. */
export function formatGib(bytes: number): string {
  const gib = bytes / 1024 ** 3;
  return gib >= 1 ? `${gib.toFixed(1)} GiB` : `${(bytes / 1024 ** 2).toFixed(0)} MiB`;
}
