/**
 * Which devices stages of several models have where a device may have more than one: FlexPipe §6.2, Eq. 6 to 8, by
 * `solver/multiplexing`. Pure.
 */
import type { UnitSpec } from '../../spec/launch.ts';
import {
  type MultiplexedDevice,
  type MultiplexingSettings,
  multiplexing_settings,
  type PlacedStage,
  placeStages,
} from '../multiplexing/place-stages.ts';
import type { StageCut } from './stage-plan.ts';

/** Of arrivals that nothing is known of: those of a Poisson process. */
export const cv_assumed = 1;
/**
 * Devices of a job are few, and more than that takes longer than it is worth. Lower: less time for large jobs; higher:
 * the optimum for larger ones.
 */
const settings: MultiplexingSettings = { ...multiplexing_settings, nodes_max: 20_000 };

/**
 * The units of a job with where their pipelines begin. A pipeline that may get more stages than it begins with has
 * devices to choose from, and takes those that others leave alone.
 */
export function spreadStages(units: readonly UnitSpec[]): UnitSpec[] {
  const choosing = units.filter(canChoose);
  if (!choosing.some((unit) => units.some((other) => other !== unit && overlap(unit, other))))
    return [...units];
  const kind = choosing[0]!.device_kind;
  const count = Math.max(...units.map(({ first_device, device_count }) => first_device + device_count));
  const devices = Array.from({ length: count }, (_, device): MultiplexedDevice => {
    const there = units.filter((unit) => !choosing.includes(unit) && hasDevice(unit, device));
    return {
      id: String(device),
      // Each device has room for a stage of each of its units: so they were packed.
      memory_bytes: Number.MAX_SAFE_INTEGER,
      models: [...new Set(there.map(({ model }) => model.name))],
    };
  });
  const stages = choosing.flatMap((unit) =>
    unit.stages!.map(
      (_, stage): PlacedStage => ({
        id: `${unit.unit} ${stage}`,
        model: unit.model.name,
        memory_bytes: Math.max(1, unit.memory?.device_bytes ?? unit.weight_bytes),
        cv: cv_assumed,
        // The devices of a job are alike.
        rates_per_s: devices.map((_, device) =>
          unit.device_kind === kind && hasDevice(unit, device) ? 1 : 0,
        ),
      }),
    ),
  );
  const found = placeStages(stages, devices, settings);
  if (!found.feasible) return [...units];
  const placed = new Map(stages.map(({ id }, at) => [id, Number(found.devices[at])]));
  return units.map((unit) => {
    if (!choosing.includes(unit)) return unit;
    const own = unit.stages!.map((_, stage) => placed.get(`${unit.unit} ${stage}`)! - unit.first_device);
    // The first stage is the replica: where any order will do, devices count up.
    return { ...unit, stage_devices: own.sort((a, b) => a - b) };
  });
}

/**
 * The units of a job with the stages that they begin with: the finest where nobody else is on their devices. A stage
 * more on a device of others would cost these (Eq. 6).
 * @param finest by unit
 */
export function withFinestStages(
  units: readonly UnitSpec[],
  finest: ReadonlyMap<string, readonly StageCut[]>,
): UnitSpec[] {
  return units.map((unit) => {
    const stages = finest.get(unit.unit);
    const isAlone = !units.some((other) => other !== unit && overlap(unit, other));
    return stages !== undefined && isAlone ? { ...unit, stages: [...stages] } : unit;
  });
}

/** Of a stage that starts, and the devices that it may start on. */
export interface StartingStages {
  model: string;
  /** CV of the model's arrivals. */
  cv: number;
  /** Weights of each. */
  stage_bytes: readonly number[];
  /** What a batch takes in each, s. */
  stage_s: readonly number[];
}

/**
 * Devices for stages that start, of those that others are on and those that nobody is on.
 * @param models that others have on each device
 * @returns of each stage, the devices that are as good as the best one; all of them where nobody shares any
 */
export function devicesToStartOn(
  { model, cv, stage_bytes, stage_s }: StartingStages,
  models: readonly (readonly string[])[],
): number[][] {
  const all = [...models.keys()];
  if (models.every((there) => there.length === 0)) return stage_bytes.map(() => all);
  const stages = stage_bytes.map(
    (bytes, stage): PlacedStage => ({
      id: String(stage),
      model,
      memory_bytes: Math.max(1, bytes),
      cv,
      rates_per_s: models.map(() => 1 / stage_s[stage]!),
    }),
  );
  const devices = models.map((there, device): MultiplexedDevice => {
    // What the job gives the model it gives it on each of its devices.
    return { id: String(device), memory_bytes: Number.MAX_SAFE_INTEGER, models: there };
  });
  const found = placeStages(stages, devices, settings);
  if (!found.feasible) return stage_bytes.map(() => all);
  const isShared = (device: number): boolean => models[device]!.length > 0;
  return found.devices.map((chosen) =>
    all.filter((device) => isShared(device) === isShared(Number(chosen)) && !models[device]!.includes(model)),
  );
}

function canChoose({ stages, nodes, device_count, model }: UnitSpec): boolean {
  return (
    stages !== undefined &&
    nodes === undefined &&
    model.parallel.jobs === undefined &&
    stages.length < device_count
  );
}

function hasDevice({ first_device, device_count }: UnitSpec, device: number): boolean {
  return device >= first_device && device < first_device + device_count;
}

function overlap(a: UnitSpec, b: UnitSpec): boolean {
  return (
    a.device_kind === b.device_kind &&
    a.first_device < b.first_device + b.device_count &&
    b.first_device < a.first_device + a.device_count
  );
}
