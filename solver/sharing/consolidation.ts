/**
 * Reactive defragmentation (LLM-Mesh §7.2), a step further: the paper lets the smaller of two instances of a model run
 * dry; where KV can be moved, its requests go to the larger at once, and its place is free.
 */
import type { DeviceView, InstanceView, ParkingPlace } from './device-view.ts';
import { findPlaces, type Move, moves_max } from './moves.ts';
import type { SharingSettings } from './settings.ts';

export interface Consolidation {
  device: DeviceView;
  /** Goes. */
  instance: InstanceView;
  moves: Move[];
  because: string;
}

/** The smallest instance whose requests all fit, within their SLOs, onto larger ones of the same model. */
export function planConsolidation(
  devices: readonly DeviceView[],
  now_ms: number,
  settings: SharingSettings,
  parking?: ParkingPlace,
): Consolidation | undefined {
  const byModel = new Map<string, { device: DeviceView; instance: InstanceView }[]>();
  for (const device of devices)
    for (const instance of device.instances) {
      const same = byModel.get(instance.model) ?? [];
      byModel.set(instance.model, [...same, { device, instance }]);
    }
  const smaller = [...byModel.values()]
    .filter((same) => same.length > 1)
    .map((same) => same.sort((a, b) => a.instance.requests.length - b.instance.requests.length)[0]!)
    .filter(
      ({ instance }) =>
        !instance.fixed && instance.requests.length <= moves_max && instance.ready_at_ms <= now_ms,
    )
    .sort((a, b) => a.instance.requests.length - b.instance.requests.length);
  for (const { device, instance } of smaller) {
    const others = devices.filter(({ id }) => id !== device.id);
    const moves = findPlaces(instance, others, undefined, now_ms, settings, parking);
    if (moves === undefined) continue;
    const count = instance.requests.length;
    return {
      device,
      instance,
      moves,
      because: `${instance.id} (batch ${count}) is a fragment: ${[...new Set(moves.map((move) => move.instance))].join(', ') || 'nobody'} takes its requests`,
    };
  }
  return undefined;
}
