/**
 * When KV memory falls short after all (LLM-Mesh §6.4): who gives way, and what becomes of its KV. Nobody is lost: an
 * evicted request is placed again, on this device or another.
 */
import { type DeviceView, lengthOf, type ParkingPlace, type RequestView } from './device-view.ts';
import type { IterationProfile } from './profile.ts';
import { headroom } from './slo.ts';

export interface Eviction {
  instance: string;
  request: RequestView;
  freed_bytes: number;
  because: string;
}

/**
 * Requests that give way, the one with the longest headroom first, until enough is free; the one that needs the memory
 * may be among them. Those that run in the present iteration, or hold nothing, are left alone.
 * @returns fewer bytes than asked for where nobody is left
 */
export function chooseEvictions(
  device: DeviceView,
  needed_bytes: number,
  now_ms: number,
  isBusy: (request: RequestView) => boolean = () => false,
): Eviction[] {
  const candidates = device.instances
    .flatMap((instance) =>
      instance.requests
        .filter((request) => !isBusy(request))
        .map((request) => ({
          instance,
          request,
          headroom_ms: headroom(request, now_ms),
          freed_bytes: (lengthOf(request) - request.prefill_tokens_left) * instance.kv_bytes_per_token,
        })),
    )
    .filter(({ freed_bytes }) => freed_bytes > 0)
    .sort((a, b) => b.headroom_ms - a.headroom_ms);
  const evictions: Eviction[] = [];
  let left_bytes = needed_bytes;
  for (const { instance, request, headroom_ms, freed_bytes } of candidates) {
    if (left_bytes <= 0) break;
    left_bytes -= freed_bytes;
    evictions.push({
      instance: instance.id,
      request,
      freed_bytes,
      because: `it can wait longest: its next token is due in ${Math.round(headroom_ms)} ms`,
    });
  }
  return evictions;
}

export type KvFate<Place extends ParkingPlace = ParkingPlace> =
  | { do: 'park'; place: Place; restore_ms: number; because: string }
  | { do: 'recompute'; recompute_ms: number; because: string };

/** Whether an evicted request's KV is kept, and where, or computed again: what is cheapest, and fits. */
export function decideKvFate<Place extends ParkingPlace>(
  request: RequestView,
  kv_bytes_per_token: number,
  profile: IterationProfile,
  places: readonly Place[],
): KvFate<Place> {
  const tokens = lengthOf(request);
  const recompute_ms = profile.prefill_ms(tokens);
  const recompute = (because: string): KvFate<Place> => ({ do: 'recompute', recompute_ms, because });
  if (places.length === 0) return recompute('there is no place to park KV');
  if (request.prefill_tokens_left > 0) return recompute('its prompt is not done yet');
  const bytes = tokens * kv_bytes_per_token;
  const [best] = places
    .filter(({ free_bytes }) => bytes <= free_bytes)
    .map((place) => ({ place, restore_ms: place.latency_ms + (bytes / place.bytes_per_s) * 1000 }))
    .sort((a, b) => a.restore_ms - b.restore_ms);
  if (best === undefined) {
    const most_bytes = Math.max(...places.map(({ free_bytes }) => free_bytes));
    return recompute(`${Math.ceil((bytes - most_bytes) / 2 ** 20)} MiB do not fit the parking place`);
  }
  const { place, restore_ms } = best;
  const times = `restoring takes ${Math.round(restore_ms)} ms, computing ${Math.round(recompute_ms)} ms`;
  return restore_ms < recompute_ms ? { do: 'park', place, restore_ms, because: times } : recompute(times);
}
