/**
 * How much KV memory an instance should have (LLM-Mesh §6.1, §6.2). The bytes are budget over blocks that are taken on
 * demand, so that raising and lowering copies nothing; the watermark keeps budgets from moving with every request.
 */
import { finalLengthOf, type InstanceView, type RequestView } from './device-view.ts';
import type { SharingSettings } from './settings.ts';

/** What of an instance its demand depends on; L_min is never more than the longest sequence that it takes. */
type KvHolder = Pick<InstanceView, 'requests' | 'kv_bytes_per_token' | 'tokens_max' | 'kv_bytes_max'>;

export interface KvRequirement {
  /** M_require, Eq. 2. */
  required_bytes: number;
  /** M_recommend = M_require · (1 + w). */
  recommended_bytes: number;
}

/** @param newcomer a request that is about to be taken */
export function kvDemand(
  { requests, kv_bytes_per_token, tokens_max, kv_bytes_max }: KvHolder,
  settings: SharingSettings,
  newcomer?: RequestView,
): KvRequirement {
  let tokens = newcomer === undefined ? 0 : finalLengthOf(newcomer);
  for (const request of requests) tokens += finalLengthOf(request);
  const tokens_min = Math.min(settings.kv_tokens_min, tokens_max ?? settings.kv_tokens_min);
  const required_bytes = Math.ceil(kv_bytes_per_token * Math.max(tokens, tokens_min));
  const comfort_bytes = Math.ceil(required_bytes * (1 + settings.kv_watermark));
  const bytes_max = kv_bytes_max ?? Number.POSITIVE_INFINITY;
  return { required_bytes, recommended_bytes: Math.max(required_bytes, Math.min(comfort_bytes, bytes_max)) };
}

/** Early up: where what there is falls short of what is required, straight to what is recommended. */
export function raiseTo(kv_bytes: number, demand: KvRequirement): number {
  return kv_bytes < demand.required_bytes ? demand.recommended_bytes : kv_bytes;
}

/** Lazy down: only where even the recommended, by a watermark more, is less than what there is. */
export function lowerTo(kv_bytes: number, demand: KvRequirement, settings: SharingSettings): number {
  return demand.recommended_bytes * (1 + settings.kv_watermark) < kv_bytes
    ? demand.recommended_bytes
    : kv_bytes;
}
