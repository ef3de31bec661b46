/** A way to run a model on nodes of a kind, before it is known whether it can be. */
import type {
  EngineSeen,
  NodeKindOffer,
  PlacementModel,
  RejectedOption,
  ResolvedEngine,
} from '../../spec/plan.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import type { ModelShape } from '../catalog/model-shape.ts';
import type { PrecisionChoice } from './precision.ts';

/** A model on devices of a kind, each of its layers split over so many of them. */
export interface SplitModel {
  model: PlacementModel;
  shape: ModelShape | undefined;
  offer: NodeKindOffer;
  /** The device as the catalog, the site config, or an estimate has it. */
  device: DeviceSpec;
  /** What people should know of these figures. */
  device_note: string | undefined;
  engine: ResolvedEngine;
  tensor: number;
}

export interface WayToRun extends SplitModel {
  precision: PrecisionChoice;
}

/** The way on as many nodes as it takes. */
export interface WayOnNodes extends WayToRun {
  nodes: number;
  /** Of these all but the first are of this kind; absent: they are like that one. */
  lender?: NodeKindOffer;
}

export interface BrokenConstraint {
  constraint: RejectedOption['constraint'];
  because: string;
  numbers: { engine?: ResolvedEngine; needed?: number; available?: number };
}

/** What an engine said that runs so. */
export function seenOf(
  { model, offer, engine, tensor, lender }: WayToRun & Pick<WayOnNodes, 'lender'>,
  pipeline: number,
): EngineSeen | undefined {
  return model.seen?.find(
    (each) =>
      each.node_kind === offer.node_kind &&
      each.engine === engine &&
      each.tensor === tensor &&
      each.pipeline === pipeline &&
      // What a stage took on other devices says nothing of these.
      (each.lender ?? offer.node_kind) === (lender?.node_kind ?? offer.node_kind),
  );
}

/** Compute threads on a node for so many of its devices. */
export function threadsOn(
  { devices, cpus }: NodeKindOffer,
  count: number,
  spec: PlacementModel['spec'],
): number {
  return spec.cpu_threads ?? (coresOf(devices) ?? Math.max(1, Math.floor(cpus / devices.count))) * count;
}

/** Of CPU devices that are made of so many cores: the scheduler may count hardware threads. */
function coresOf({ kind, emulated, cores }: NodeKindOffer['devices']): number | undefined {
  return kind === 'cpu' && emulated === undefined ? cores : undefined;
}

export function tooManyThreads(engine: ResolvedEngine, threads: number, cpus: number): BrokenConstraint {
  return {
    constraint: 'cpus_per_node',
    because: `cpu_threads asks for ${threads}; a node has ${cpus} CPUs`,
    numbers: { engine, needed: threads, available: cpus },
  };
}
