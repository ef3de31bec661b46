/**
 * What has to end and what has to start for a new plan to stand: launches that run are kept as they are where the plan
 * has the same replicas on the same nodes, however it numbers and packs them. Pure.
 */
import type { UnitSpec } from '../../spec/launch.ts';
import { plannedNameOf, unitStem } from '../../spec/model-pools.ts';
import type { NodeKindOffer, PlannedLaunch } from '../../spec/plan.ts';
import { unitName } from '../placement/packing.ts';
import { startAtOnce } from './waiting.ts';

export interface KeptPlace {
  launch_id: string;
  planned: PlannedLaunch;
}

export interface Rearrangement {
  /** Launches that stay; that are to go once their successors serve. */
  staying: string[];
  leaving: string[];
  /** Jobs to submit, with names for their replicas that nobody else has. */
  starting: PlannedLaunch[];
}

/** Of a launch that loses replicas this share at least must be wanted, or all of it is started anew. */
const kept_share_min = 0.5;

/**
 * @param standing in the order of preference: the first are kept before others
 * @param names of replicas beside them, which stay whatever is proposed
 */
export function rearrange(
  standing: readonly KeptPlace[],
  proposed: readonly PlannedLaunch[],
  names: readonly string[] = [],
): Rearrangement {
  const left = new Map<string, number>();
  for (const launch of proposed) for (const unit of launch.units) add(left, placeOf(launch, unit), 1);
  const staying: KeptPlace[] = [];
  const keep = (place: KeptPlace): void => {
    for (const unit of place.planned.units) {
      const key = placeOf(place.planned, unit);
      // A replica that nobody asked for here serves in the place of one of its model elsewhere.
      if ((left.get(key) ?? 0) > 0) add(left, key, -1);
      else {
        const elsewhere = [...left].find(
          ([other, count]) => count > 0 && modelOf(other) === plannedNameOf(unit),
        );
        if (elsewhere) add(left, elsewhere[0], -1);
      }
    }
    staying.push(place);
  };
  // Whole ones first, so that one that would be torn takes nothing from them.
  for (const share of [1, kept_share_min])
    for (const place of standing)
      if (!staying.includes(place) && wantedShare(place, left) >= share) keep(place);
  const taken = new Set([...names, ...staying.flatMap(({ planned }) => unitNames(planned))]);
  return {
    staying: staying.map(({ launch_id }) => launch_id),
    leaving: standing.filter((place) => !staying.includes(place)).map(({ launch_id }) => launch_id),
    starting: proposed.flatMap((launch) => {
      const wanted = launch.units.filter((unit) => {
        const key = placeOf(launch, unit);
        const isWanted = (left.get(key) ?? 0) > 0;
        if (isWanted) add(left, key, -1);
        return isWanted;
      });
      return wanted.length === 0 ? [] : [renamed(trimmed(launch, wanted), taken)];
    }),
  };
}

/** Whether these find their devices free once launches of the same deployment are gone. */
export function startInRoomOf(
  starting: readonly PlannedLaunch[],
  leaving: readonly PlannedLaunch[],
  offers: readonly NodeKindOffer[],
): boolean {
  const freed = offers.map((offer) => ({
    ...offer,
    free: [
      ...(offer.free ?? []),
      ...leaving
        .filter(
          (launch) =>
            launch.node_kind === offer.node_kind && launch.devices_per_node.model === offer.devices.model,
        )
        .map((launch) => ({
          nodes: launch.node_count,
          devices: launch.devices_per_node.count,
          cpus: launch.cpus_per_node,
        })),
    ],
  }));
  return startAtOnce(starting, freed);
}

export function unitNames({ units }: PlannedLaunch): string[] {
  return units.map(({ unit }) => unit);
}

const separator = '\n';

/** What is the same of two replicas: model, nodes, engine, precision and split. */
function placeOf(launch: PlannedLaunch, unit: UnitSpec): string {
  const { model, engine, tensor, pipeline, nodes } = unit;
  const device = launch.devices_per_node.model;
  const name = plannedNameOf(unit);
  return [name, launch.node_kind, device, engine, model.precision, tensor, pipeline, nodes ?? 1].join(
    separator,
  );
}

function modelOf(place: string): string {
  return place.slice(0, place.indexOf(separator));
}

function add(counts: Map<string, number>, key: string, count: number): void {
  counts.set(key, (counts.get(key) ?? 0) + count);
}

/** Of the replicas of a launch, how many a plan still wants there. */
function wantedShare({ planned }: KeptPlace, left: ReadonlyMap<string, number>): number {
  const taken = new Map<string, number>();
  const wanted = planned.units.filter((unit) => {
    const key = placeOf(planned, unit);
    add(taken, key, 1);
    return taken.get(key)! <= (left.get(key) ?? 0);
  });
  return planned.units.length === 0 ? 0 : wanted.length / planned.units.length;
}

/** The launch with only these units, and what they need of its devices, CPUs and memory. */
function trimmed(launch: PlannedLaunch, units: readonly UnitSpec[]): PlannedLaunch {
  if (units.length === launch.units.length) return launch;
  const devicesOf = (some: readonly UnitSpec[]): number[] => [
    ...new Set(
      some.flatMap(({ first_device, device_count }) =>
        Array.from({ length: Math.max(1, device_count) }, (_, at) => first_device + at),
      ),
    ),
  ];
  const devices = devicesOf(units).sort((a, b) => a - b);
  const share = devices.length / devicesOf(launch.units).length;
  const { count } = launch.devices_per_node;
  const kept: PlannedLaunch = {
    ...launch,
    devices_per_node: { ...launch.devices_per_node, count: count === 0 ? 0 : devices.length },
    cpus_per_node: Math.max(1, Math.ceil(launch.cpus_per_node * share)),
    memory_bytes_per_node: Math.ceil(launch.memory_bytes_per_node * share),
    units: units.map((unit) => ({ ...unit, first_device: devices.indexOf(unit.first_device) })),
  };
  if (launch.page_cache_bytes !== undefined)
    kept.page_cache_bytes = Math.floor(launch.page_cache_bytes * share);
  return kept;
}

function renamed(launch: PlannedLaunch, names: Set<string>): PlannedLaunch {
  return {
    ...launch,
    units: launch.units.map((unit) => {
      let name = unit.unit;
      for (let replica = 0; names.has(name); replica++)
        name = unitName(unitStem(plannedNameOf(unit)), replica);
      names.add(name);
      return name === unit.unit ? unit : { ...unit, unit: name };
    }),
  };
}
