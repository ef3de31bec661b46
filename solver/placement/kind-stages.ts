/**
 * Stages of a replica of the native engine on devices of one kind of node: for a plan, and for a pipeline that runs.
 */
import type { EngineSeen, NodeKindOffer, PlacementModel, PlacementSettings } from '../../spec/plan.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { offeredDevice } from '../catalog/offered-device.ts';
import type { NoPartition } from '../partition/partition.ts';
import { shapeOf, workloadOf } from './model-facts.ts';
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
}

export function stagesOnKind(
  of: KindStages,
  stages: number,
  settings: PlacementSettings,
  seen?: EngineSeen['stages'],
): StagePlan | NoPartition {
  const { input_tokens, output_tokens } = workloadOf(of.model);
  const { model: kind } = of.offer.devices;
  const asked: StagePlanQuestion = {
    model: of.model,
    shape: shapeOf(of.model),
    device: of.device,
    precision: of.precision,
    weight_bytes: of.weight_bytes,
    rows: of.rows ?? Math.max(1, Math.round(of.max_sequences / stages)),
    context_tokens: Math.round(input_tokens + output_tokens / 2),
    seen,
    stages,
    devices: [{ kind, count: stages, memory_bytes: of.device_bytes - settings.margin_fixed_bytes, speed: 1 }],
    margin_weight_fraction: settings.margin_weight_fraction,
    kv_tokens: of.kv_tokens,
  };
  if (of.from) asked.from = of.from;
  return planStages(asked);
}

/** The device of an offer, as the catalog, the site config or an estimate has it. */
export function deviceOf(offer: NodeKindOffer): DeviceSpec {
  const { devices, cpus, isa = [], architecture } = offer;
  return offeredDevice(devices, { cpus, isa, architecture }, devices.figures).device;
}
