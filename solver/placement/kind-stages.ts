/**
 * Stages of a replica of the native engine on devices of one kind of node, or the last ones on those of another kind:
 * for a plan, and for a pipeline that runs.
 */
import type { EngineSeen, NodeKindOffer, PlacementModel, PlacementSettings } from '../../spec/plan.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { offeredDevice } from '../catalog/offered-device.ts';
import type { NoPartition, StageDevices } from '../partition/partition.ts';
import { shapeOf, workloadOf } from './model-facts.ts';
import { relativeSpeed } from './stage-operators.ts';
import { planStages, type StageCut, type StagePlan, type StagePlanQuestion } from './stage-plan.ts';

export interface KindStages {
  model: PlacementModel;
  offer: NodeKindOffer;
  device: DeviceSpec;
  precision: string;
  weight_bytes: number;
  max_sequences: number;
  /** Of one batch; absent: the sequences that decode, divided into as many batches as there are stages. */
  rows?: number;
  /** Every stage has room for the KV of so many tokens. */
  kv_tokens: number;
  /** Of each device, all that the replica may take there. */
  device_bytes: number;
  /** Stages of the pipeline that runs; absent: there is none. */
  from?: readonly StageCut[];
  /** Devices of another kind, which so many of the last stages are on; absent: all are alike. */
  last?: { stages: number; offer: NodeKindOffer; device: DeviceSpec; device_bytes: number };
}

export function stagesOnKind(
  of: KindStages,
  stages: number,
  settings: PlacementSettings,
  seen?: EngineSeen['stages'],
): StagePlan | NoPartition {
  const { input_tokens, output_tokens } = workloadOf(of.model);
  const { last } = of;
  const on = (
    { devices }: NodeKindOffer,
    count: number,
    device_bytes: number,
    speed: number,
  ): StageDevices => ({
    kind: devices.model,
    count,
    memory_bytes: device_bytes - settings.margin_fixed_bytes,
    speed,
  });
  const operators = {
    model: of.model,
    shape: shapeOf(of.model),
    device: of.device,
    precision: of.precision,
    weight_bytes: of.weight_bytes,
    rows: of.rows ?? Math.max(1, Math.round(of.max_sequences / stages)),
    context_tokens: Math.round(input_tokens + output_tokens / 2),
  };
  const first = stages - (last?.stages ?? 0);
  const devices = [on(of.offer, first, of.device_bytes, 1)];
  let times = seen;
  if (last) {
    const speed = relativeSpeed(operators, last.device, stages);
    devices.push(on(last.offer, last.stages, last.device_bytes, speed));
    times = seen?.map((stage, at) => (at < first ? stage : slower(stage, speed)));
  }
  const asked: StagePlanQuestion = {
    ...operators,
    seen: times,
    stages,
    devices,
    margin_weight_fraction: settings.margin_weight_fraction,
    kv_tokens: of.kv_tokens,
  };
  if (of.from) asked.from = of.from;
  return planStages(asked);
}

/** What a stage took on a device, as the first device would have taken it. */
function slower(stage: SeenStage, speed: number): SeenStage {
  const taken: SeenStage = { ...stage, compute_s: stage.compute_s * speed };
  if (stage.operators_s) taken.operators_s = stage.operators_s.map((seconds) => seconds * speed);
  return taken;
}

type SeenStage = NonNullable<EngineSeen['stages']>[number];

/** The device of an offer, as the catalog, the site config or an estimate has it. */
export function deviceOf(offer: NodeKindOffer): DeviceSpec {
  const { devices, cpus, isa = [], architecture } = offer;
  return offeredDevice(devices, { cpus, isa, architecture }, devices.figures).device;
}
