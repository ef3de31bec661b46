/** Of the device memory that a plan leaves, what layers of models with streamed weights stay in. Sizes are bytes. */
import type { PlacementModel, PlannedLaunch } from '../../spec/plan.ts';
import { arenaParts_bytes } from '../streaming/arena-size.ts';
import { residentTensors } from '../streaming/resident-share.ts';
import { workloadOf } from './model-facts.ts';
import { memoryShare } from './unit-memory.ts';

export interface StreamedReplica {
  model: PlacementModel;
  /** Among which the requests of its model are divided. */
  replicas: number;
}

/**
 * What of each of a device's replicas stays there. Layers are taken by reuse per byte over all of them, so that a model
 * which is asked more often keeps more; models that are asked alike keep alike.
 */
export function residentLayers_bytes(replicas: readonly StreamedReplica[], room_bytes: number): number[] {
  const layers = replicas.flatMap((replica, at) => {
    const uses_per_s = stepsOf_per_s(replica);
    const { summary } = replica.model;
    const parts = summary === undefined ? [] : arenaParts_bytes(summary);
    return parts.map((bytes, order) => ({ at, bytes, uses_per_s, order }));
  });
  const taken = replicas.map(() => 0);
  for (const index of residentTensors(layers, room_bytes)) {
    const { at, bytes } = layers[index]!;
    taken[at]! += bytes;
  }
  return taken;
}

/**
 * A launch without what stays of its models: that follows their measured requests, and is no matter of replicas that
 * run.
 */
export function withoutResident(launch: PlannedLaunch): PlannedLaunch {
  const { emulated, memory_bytes } = launch.devices_per_node;
  let taken_bytes = 0;
  const units = launch.units.map((unit) => {
    if (unit.memory?.resident_bytes === undefined) return unit;
    const { resident_bytes, ...memory } = unit.memory;
    taken_bytes += resident_bytes;
    const device_bytes = memory.device_bytes - resident_bytes;
    return { ...unit, memory: { ...memory, device_bytes, share: memoryShare(device_bytes, memory_bytes) } };
  });
  if (taken_bytes === 0) return launch;
  const memory_bytes_per_node = launch.memory_bytes_per_node - (emulated === undefined ? 0 : taken_bytes);
  return { ...launch, memory_bytes_per_node, units };
}

/** Steps of a replica, each of which needs every layer: one a token of an answer, and one for its prompt. */
export function stepsOf_per_s({ model, replicas }: StreamedReplica): number {
  const { rate_per_s, output_tokens } = workloadOf(model);
  return (rate_per_s * (1 + output_tokens)) / replicas;
}
