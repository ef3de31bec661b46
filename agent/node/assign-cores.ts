import type { Processors } from '../../host/processors.ts';
import type { NodeDevice } from '../devices/node-device.ts';

type Host = Pick<Processors, 'allowed_cores' | 'siblings_of'>;

/** Processes that one core list is for; see `UnitGroup`. */
interface Claimant {
  engine: string;
  devices: readonly NodeDevice[];
  threads: number;
}

/**
 * Which cores the processes of each group keep to, by group; a group that is not among them keeps to none. Pure.
 *
 * - On CPU devices: those of its devices. Processes that are on one device share its cores by their threads, except
 *   device workers among themselves, whose threads `assignDevices` bounds.
 * - On accelerators: of the cores next to each, which no CPU device has, an even share for every accelerator in use.
 * - Where cores stand in for devices, none: several such nodes may be one host.
 *
 * Hardware threads of one physical core stay together as long as there are enough of them. Where there are fewer cores
 * than processes to share them, nobody is bound: two processes on one core are slower than the system's own choice.
 */
export function assignCores<Group extends Claimant>(
  groups: readonly Group[],
  host: Host,
): Map<Group, number[]> {
  const assigned = onCpus(groups, host);
  const taken = new Set([...assigned.values()].flat());
  for (const [group, cores] of besideAccelerators(groups, host, taken)) assigned.set(group, cores);
  return assigned;
}

function onCpus<Group extends Claimant>(groups: readonly Group[], host: Host): Map<Group, number[]> {
  const found = new Map<Group, number[]>();
  const own = groups.filter(({ devices }) => devices.length > 0 && devices.every(isRealCpu));
  for (const device of new Set(own.flatMap(({ devices }) => devices))) {
    const cores = (device.description.cores ?? []).filter((core) => host.allowed_cores.includes(core));
    const here = own.filter(({ devices }) => devices.includes(device));
    const isShared = here.length > 1 && here.some(({ engine }) => engine !== 'native');
    const weights = here.map(({ threads, devices }) => threads / devices.length);
    const shares = isShared ? divided(cores, weights, host) : here.map(() => cores);
    here.forEach((group, at) => {
      found.set(group, [...(found.get(group) ?? []), ...(shares?.[at] ?? [])]);
    });
  }
  return sorted(found);
}

function besideAccelerators<Group extends Claimant>(
  groups: readonly Group[],
  host: Host,
  taken: ReadonlySet<number>,
): Map<Group, number[]> {
  const found = new Map<Group, number[]>();
  const here = groups.filter(
    ({ engine, devices }) => engine !== 'native' && devices.length > 0 && devices.every(isRealAccelerator),
  );
  /** Accelerators in use, by the cores next to them. */
  const domains = new Map<string, { cores: number[]; devices: NodeDevice[] }>();
  for (const device of new Set(here.flatMap(({ devices }) => devices))) {
    const cores = coresBeside(device, host, taken);
    const domain = domains.get(cores.join()) ?? { cores, devices: [] };
    domain.devices.push(device);
    domains.set(cores.join(), domain);
  }
  for (const { cores, devices } of domains.values()) {
    // An accelerator that several processes share counts once; each of them has its part of that.
    const claims = devices.flatMap((device) => {
      const users = here.filter((group) => group.devices.includes(device));
      return users.map((group) => ({ group, weight: 1 / users.length }));
    });
    const weights = claims.map(({ weight }) => weight);
    const shares = divided(cores, weights, host);
    claims.forEach(({ group }, at) => {
      found.set(group, [...(found.get(group) ?? []), ...(shares?.[at] ?? [])]);
    });
  }
  return sorted(found);
}

/** Next to it and nobody's; else nobody's; else all. */
function coresBeside({ near_cores }: NodeDevice, host: Host, taken: ReadonlySet<number>): number[] {
  const free = host.allowed_cores.filter((core) => !taken.has(core));
  const near = free.filter((core) => near_cores?.includes(core) ?? true);
  return [near, free].find((cores) => cores.length > 0) ?? [...host.allowed_cores];
}

function isRealCpu({ description }: NodeDevice): boolean {
  return description.kind === 'cpu' && description.emulated === undefined;
}

function isRealAccelerator({ description }: NodeDevice): boolean {
  return description.kind !== 'cpu' && description.emulated === undefined;
}

/** Contiguous parts in proportion to the weights, at least one core each; undefined where there are too few. */
function divided(
  cores: readonly number[],
  weights: readonly number[],
  host: Host,
): readonly (readonly number[])[] | undefined {
  for (const pieces of [physicalCores(cores, host), cores.map((core) => [core])]) {
    if (pieces.length < weights.length) continue;
    const left = [...pieces];
    return apportioned(pieces.length, weights).map((count) => left.splice(0, count).flat());
  }
  return undefined;
}

/** By the method of D'Hondt, one each to begin with. */
function apportioned(seats: number, weights: readonly number[]): number[] {
  const counts = weights.map(() => 1);
  for (let left = seats - weights.length; left > 0; left--) {
    const quotients = weights.map((weight, at) => weight / (counts[at]! + 1));
    counts[quotients.indexOf(Math.max(...quotients))]! += 1;
  }
  return counts;
}

/** The cores, each with those of its physical core that are among them; in the order of their first. */
export function physicalCores(
  cores: readonly number[],
  { siblings_of }: Pick<Host, 'siblings_of'>,
): number[][] {
  const pieces = new Map<number, number[]>();
  for (const core of [...cores].sort((a, b) => a - b)) {
    const first = Math.min(core, ...(siblings_of?.get(core) ?? []));
    pieces.set(first, [...(pieces.get(first) ?? []), core]);
  }
  return [...pieces.values()];
}

/** Without the groups that got none. */
function sorted<Group>(found: ReadonlyMap<Group, number[]>): Map<Group, number[]> {
  return new Map(
    [...found]
      .filter(([, cores]) => cores.length > 0)
      .map(([group, cores]) => [group, [...new Set(cores)].sort((a, b) => a - b)]),
  );
}
