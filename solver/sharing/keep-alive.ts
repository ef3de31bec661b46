/** Idle instances go after the keep-alive (LLM-Mesh §4); their tensors stay in the pool until others need the room. */
import type { InstanceView } from './device-view.ts';
import type { SharingSettings } from './settings.ts';

/** When the instance may go; Infinity while it has requests. */
export function recycleAt(instance: InstanceView, settings: SharingSettings): number {
  if (instance.requests.length > 0 || instance.idle_since_ms === undefined) return Number.POSITIVE_INFINITY;
  return Math.max(instance.idle_since_ms, instance.ready_at_ms) + settings.keep_alive_ms;
}
