/** What is taken so far of a node that gets a job, and what that comes to. */
import type { UnitSpec } from '../../spec/launch.ts';
import {
  type NodeKindOffer,
  type PlacementQuestion,
  type PlacementSettings,
  pool_share,
} from '../../spec/plan.ts';
import { onRealGpu } from './engine-choice.ts';
import type { LentPart } from './lenders.ts';
import { demandOf, type LinkedDevice, streamingTime } from './link-budget.ts';
import { lockedCopies_bytes } from './locked-copies.ts';
import type { PlacementOption } from './options.ts';
import { residentLayers_bytes, type StreamedReplica } from './resident-layers.ts';
import type { StageCut } from './stage-plan.ts';

export interface OpenDevice {
  /** Without the arena, and without models that give way to one another. */
  bytes: number;
  /** Of each model that gives way to others, what it takes while it is there. */
  giving_way_bytes: readonly number[];
  /** What weights are streamed through, of all models of the device. */
  arena_bytes: number;
  /** Share of its time that its replicas are expected to compute. */
  time: number;
  models: string[];
  /** What is on it: models of a device worker, engines of which one is awake, or one that has it to itself. */
  by: 'native' | 'turns' | 'one' | undefined;
}

/** A node that gets a job, or several alike: what is taken of each so far. */
export interface OpenNode {
  offer: NodeKindOffer;
  count: number;
  /** Of its nodes all but the first are of this kind; absent: they are like that one. */
  lender: NodeKindOffer | undefined;
  /** What its replica takes on each of those. */
  lent: LentPart | undefined;
  /** CPUs that are free there. */
  cpus: number;
  time_limit_s?: number;
  /** Bytes taken and models placed, by device index. */
  devices: OpenDevice[];
  units: UnitSpec[];
  threads_by_device: Map<number, number>;
  host_bytes: number;
  /** Bytes of the files that weights are streamed from, by path: they are to stay in the page cache. */
  streamed_files: Map<string, number>;
  streamed: StreamedUnit[];
  /** The stages that a unit begins with where nobody else is on its devices, by unit. */
  finest: Map<string, readonly StageCut[]>;
}

export interface StreamedUnit extends StreamedReplica {
  option: PlacementOption;
  unit: string;
  device: number;
}

/** Devices of a node that something is on, and some others. */
export function linkedDevices(node: OpenNode, others: readonly number[]): LinkedDevice[] {
  return [...node.devices.entries()]
    .filter(([index, { models }]) => models.length > 0 || others.includes(index))
    .map(([index, { time }]) => {
      const own = node.streamed.filter(({ device }) => device === index);
      const streaming = own.reduce((sum, unit) => sum + streamingTime(unit), 0);
      return { index, time: Math.max(0, time - streaming), streamed: own.map(demandOf) };
    });
}

/** Of models that give way to one another, the one in use and the one that comes are there at once. */
export function reuseOf_bytes(giving_way_bytes: readonly number[]): number {
  const [largest = 0, second = 0] = giving_way_bytes.toSorted((a, b) => b - a);
  return largest + second;
}

interface JobMemory {
  /** Without the page cache. */
  memory_bytes: number;
  /** For the files of models whose weights are streamed. */
  page_cache_bytes: number;
  /** Of those files, what the node has no memory for. */
  uncached_bytes: number;
  /** The same of page-locked copies of weights, which come after the files. */
  unlocked_bytes: number;
}

export function jobMemory(node: OpenNode, { settings }: PlacementQuestion): JobMemory {
  const { offer } = node;
  const resident_bytes = onRealGpu(offer) ? 0 : sum(residentByUnit(node, settings).values());
  const own_bytes = node.host_bytes + resident_bytes + settings.host_overhead_bytes;
  const files_bytes = sum(node.streamed_files.values());
  const free_bytes = (taken_bytes: number): number => Math.max(0, offer.memory_bytes - taken_bytes);
  const uncached_bytes = Math.max(0, files_bytes - free_bytes(own_bytes));
  if (!onRealGpu(offer)) {
    const memory_bytes = Math.min(offer.memory_bytes, own_bytes);
    const page_cache_bytes = files_bytes - uncached_bytes;
    return { memory_bytes, page_cache_bytes, uncached_bytes, unlocked_bytes: 0 };
  }
  const locked_bytes = sum(lockedByUnit(node, settings).values());
  const unlocked_bytes = sum(node.streamed.map(({ option }) => lockedCopies_bytes(option))) - locked_bytes;
  const taken_bytes = own_bytes + locked_bytes;
  const share_bytes = Math.floor((offer.memory_bytes * devicesInUse(node)) / offer.devices.count);
  const memory_bytes = Math.max(share_bytes, node.host_bytes + locked_bytes > 0 ? taken_bytes : 0);
  // The share of its devices may be enough for them.
  const more_bytes = Math.max(0, taken_bytes + files_bytes - memory_bytes);
  const page_cache_bytes = Math.min(free_bytes(memory_bytes), more_bytes);
  return { memory_bytes, page_cache_bytes, uncached_bytes, unlocked_bytes };
}

/**
 * What page-locked copies of weights may take, by unit that has any. Files come first: without copies weights go
 * through the ring, and without files in the page cache they come from a disk.
 */
export function lockedByUnit(node: OpenNode, settings: PlacementSettings): ReadonlyMap<string, number> {
  const wanted = node.streamed.flatMap(({ unit, option }) => {
    const bytes = lockedCopies_bytes(option);
    return bytes > 0 ? [{ unit, bytes }] : [];
  });
  const wanted_bytes = sum(wanted.map(({ bytes }) => bytes));
  const files_bytes = sum(node.streamed_files.values());
  const left_bytes = node.offer.memory_bytes - node.host_bytes - settings.host_overhead_bytes - files_bytes;
  const part = Math.max(0, Math.min(1, left_bytes / wanted_bytes));
  return new Map(wanted.map(({ unit, bytes }) => [unit, Math.floor(part * bytes)]));
}

/**
 * What layers stay in, by unit, of models whose weights are streamed: what devices have left, which the job has whoever
 * uses it. Memory of CPUs is asked for byte by byte, and the page cache has all of a file there for every worker of the
 * node. A device that CPUs stand in for has its memory from the node, as far as that goes.
 */
export function residentByUnit(node: OpenNode, settings: PlacementSettings): ReadonlyMap<string, number> {
  const { offer } = node;
  const resident = new Map<string, number>();
  if (offer.devices.kind === 'cpu') return resident;
  let host_left = onRealGpu(offer)
    ? Number.POSITIVE_INFINITY
    : offer.memory_bytes - node.host_bytes - settings.host_overhead_bytes - sum(node.streamed_files.values());
  for (const [index, { bytes, giving_way_bytes, arena_bytes }] of node.devices.entries()) {
    const own = node.streamed.filter(({ device }) => device === index);
    const taken_bytes = bytes + reuseOf_bytes(giving_way_bytes) + arena_bytes;
    const left_bytes = Math.floor(pool_share * offer.devices.memory_bytes) - taken_bytes;
    const taken = residentLayers_bytes(own, Math.max(0, Math.min(left_bytes, host_left)));
    for (const [at, { unit }] of own.entries()) resident.set(unit, taken[at]!);
    host_left -= sum(taken);
  }
  return resident;
}

function sum(values: Iterable<number>): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

export function devicesInUse({ devices }: OpenNode): number {
  return devices.filter(({ models }) => models.length > 0).length;
}
