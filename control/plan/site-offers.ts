/** What a site config and the cluster's own words offer to placement. */
import { availableParallelism, cpus, totalmem } from 'node:os';
import { readProcessors } from '../../host/processors.ts';
import type { EngineOffer, NodeKindOffer, NodeSpace, ResolvedEngine } from '../../spec/plan.ts';
import { type SiteConfig, slurmSettings } from '../../spec/site.ts';
import type { DeviceConfig, NodeKind } from '../../spec/site-nodes.ts';
import type { SiteEngine } from '../../spec/site-runtime.ts';
import { parseSlurmDuration_s } from '../../spec/slurm-types.ts';
import { programOnPath } from '../state/site-files.ts';
import type { LiveFacts, LiveNodes } from './live-facts.ts';
import { gpuLibraries, localAccelerators, readsHostWeights } from './native-devices.ts';
import { pythonPackageOnPath } from './python-package.ts';
import { givenWhole } from './whole-nodes.ts';

/** Share of this machine's memory the local site plans with: the rest is for the person's other programs. */
const localMemoryShare = 0.8;
const gigabyte = 1e9;

/**
 * One offer for each node kind and each of its device entries.
 * @param reservation that the deployment names; absent: as the site config says
 */
export function offersOf(
  site: SiteConfig,
  live: LiveFacts | undefined,
  environment: Readonly<Record<string, string | undefined>>,
  reservation?: string,
): NodeKindOffer[] {
  const kinds = site.kind === 'local' ? localKinds(site, environment) : site.node_kinds;
  const offers = kinds.flatMap((kind) =>
    devicesOf(site, kind, live).map((device) => ({
      offer: offerOf(site, kind, device, live, environment, reservation),
      kind,
      nodes: nodeNames(live ? usableNodes(nodesOfKind(site, kind, live)) : []),
    })),
  );
  return withPools(offers, live !== undefined);
}

interface OfferOfKind {
  offer: NodeKindOffer;
  kind: NodeKind;
  /** Names of its nodes, where Slurm was asked. */
  nodes: ReadonlySet<string>;
}

/**
 * Kinds that are the same nodes under another partition, such as a scavenger twin, get a pool: their nodes are there
 * once. By the names of nodes; from the site config alone, by features, GRES type and devices.
 */
function withPools(offers: readonly OfferOfKind[], asked: boolean): NodeKindOffer[] {
  const sameNodes = (a: OfferOfKind, b: OfferOfKind): boolean => {
    if (a.offer.devices.model !== b.offer.devices.model || a.offer.devices.kind !== b.offer.devices.kind)
      return false;
    if (asked) return [...a.nodes].some((node) => b.nodes.has(node));
    const marks = ({ kind }: OfferOfKind): string =>
      [kind.gres_type ?? '', ...[...kind.features].sort()].join();
    return marks(a) !== '' && marks(a) === marks(b);
  };
  const pools: OfferOfKind[][] = [];
  for (const each of offers) {
    const touching = pools.filter((pool) => pool.some((other) => sameNodes(each, other)));
    for (const pool of touching) pools.splice(pools.indexOf(pool), 1);
    pools.push([...touching.flat(), each]);
  }
  return offers.map((each) => {
    const pool = pools.find((members) => members.includes(each))!;
    if (pool.length < 2) return each.offer;
    const names = new Set(pool.flatMap(({ nodes }) => [...nodes]));
    const nodes = asked ? names.size : Math.max(...pool.map(({ offer }) => offer.nodes_total));
    return { ...each.offer, pool: { id: pool.map(({ offer }) => offer.node_kind).join('+'), nodes } };
  });
}

/**
 * Where nothing is said of devices, the accelerators that the native engine computes on are a kind of their own: they
 * are there once, however many agents share the cores.
 */
function localKinds(
  site: SiteConfig,
  environment: Readonly<Record<string, string | undefined>>,
): readonly NodeKind[] {
  const kinds = site.node_kinds.length > 0 ? site.node_kinds : [localNodeKind('local')];
  if (kinds.some(({ devices }) => devices.length > 0)) return kinds;
  const devices = localAccelerators(site, environment);
  return devices.length === 0 ? kinds : [...kinds, { ...localNodeKind(`${kinds[0]!.name}-gpus`), devices }];
}

function localNodeKind(name: string): NodeKind {
  return {
    name,
    count: 1,
    features: [],
    devices: [],
    architecture: process.arch === 'arm64' ? 'aarch64' : 'x86_64',
    isa: readProcessors().isa,
    interconnect: 'none',
    tier: 'stable',
  };
}

/** Declared devices; where none are, the CPUs of the node are one. */
function devicesOf(site: SiteConfig, kind: NodeKind, live: LiveFacts | undefined): DeviceConfig[] {
  if (kind.devices.length > 0) return kind.devices;
  if (site.kind === 'local') {
    const agents = kind.count ?? 1;
    return [
      {
        kind: 'cpu',
        model: cpuModelName(),
        count: 1,
        memory_gb: (totalmem() * localMemoryShare) / agents / gigabyte,
        cores: Math.max(1, Math.floor(availableParallelism() / agents)),
      },
    ];
  }
  const nodes = live ? nodesOfKind(site, kind, live) : [];
  return [
    {
      kind: 'cpu',
      model: 'CPU',
      count: 1,
      memory_gb: kind.memory_gb ?? (nodes[0]?.memory_mb ?? 0) * (1024 ** 2 / gigabyte),
    },
  ];
}

function offerOf(
  site: SiteConfig,
  kind: NodeKind,
  device: DeviceConfig,
  live: LiveFacts | undefined,
  environment: Readonly<Record<string, string | undefined>>,
  reservation = reservationOf(site, kind),
): NodeKindOffer {
  const nodes = live ? nodesOfKind(site, kind, live) : [];
  const usable = usableNodes(nodes);
  const open = openNodes(usable, reservation);
  const counts = live
    ? {
        nodes_total: nodeNames(usable).size,
        nodes_idle: nodeNames(open.filter((group) => group.states.includes('idle'))).size,
        free: freeSpace(site, kind, device, takingNodes(site, kind, live, open)),
      }
    : { nodes_total: kind.count ?? (site.kind === 'local' ? 1 : Number.MAX_SAFE_INTEGER) };
  const agents = site.kind === 'local' ? (kind.count ?? 1) : 1;
  const cpuCount =
    kind.cpus ??
    (site.kind === 'local'
      ? Math.max(1, Math.floor(availableParallelism() / agents))
      : (usable[0]?.cpus ?? (device.cores ?? 1) * device.count));
  const memory =
    kind.memory_gb !== undefined
      ? kind.memory_gb * gigabyte
      : site.kind === 'local'
        ? (totalmem() * localMemoryShare) / agents
        : usable[0]
          ? usable[0].memory_mb * 1024 ** 2
          : device.memory_gb * device.count * gigabyte;
  const partitions = partitionsOf(site, kind, live);
  const limit = timeLimits(site, kind, partitions, live);
  return {
    node_kind: kind.name,
    tier: kind.tier,
    partitions,
    ...counts,
    cpus: cpuCount,
    memory_bytes: Math.floor(memory),
    devices: {
      kind: device.kind,
      model: device.model,
      count: device.count,
      memory_bytes: Math.floor(device.memory_gb * gigabyte),
      ...(device.cores === undefined ? {} : { cores: device.cores }),
      ...(device.figures === undefined ? {} : { figures: device.figures }),
      ...(device.emulated ? { emulated: device.emulated } : {}),
      ...(device.emulated && device.emulated_step_ms !== undefined
        ? { emulated_step_ms: device.emulated_step_ms }
        : {}),
    },
    ...(areGivenWhole(site, kind, live) ? { whole_nodes: true as const } : {}),
    interconnect: kind.interconnect,
    ...(site.network.private_fabric ? { private_fabric: true as const } : {}),
    engines: enginesOf(site, device, environment, kind.isa),
    isa: kind.isa,
    architecture: kind.architecture,
    ...limit,
  };
}

/** Node states (sinfo, lower case) in which a node takes no job however long one waits. */
const unusable = new Set([
  'down',
  'drain',
  'drained',
  'draining',
  'fail',
  'failing',
  'unknown',
  'future',
  'maint',
]);

function areGivenWhole(site: SiteConfig, kind: NodeKind, live: LiveFacts | undefined): boolean {
  const partitions = partitionsOf(site, kind, live);
  return givenWhole(site, kind, live?.partitions.filter(({ name }) => partitions.includes(name)) ?? []);
}

/** Nodes on which a job begins now: idle ones, and partly taken ones where jobs do not get all of a node. */
function takingNodes(
  site: SiteConfig,
  kind: NodeKind,
  live: LiveFacts,
  groups: readonly LiveNodes[],
): LiveNodes[] {
  const whole = areGivenWhole(site, kind, live);
  return groups.filter(({ states }) => states.includes('idle') || (!whole && states.includes('mixed')));
}

/** What is free on nodes that take jobs; a node that several partitions show counts once. */
function freeSpace(
  site: SiteConfig,
  kind: NodeKind,
  device: DeviceConfig,
  taking: readonly LiveNodes[],
): NodeSpace[] {
  const request = kind.gpu_request ?? slurmSettings(site).gpu_request;
  const seen = new Set<string>();
  const space: NodeSpace[] = [];
  for (const group of taking) {
    const nodes = group.nodes.filter((node) => !seen.has(node));
    for (const node of nodes) seen.add(node);
    if (nodes.length === 0) continue;
    const cpus = Math.floor(group.cpu_counts.idle / group.nodes.length);
    const ofKind = (gres: LiveNodes['gres']): number =>
      gres
        .filter(
          ({ name, type }) =>
            name === request.gres_name && (kind.gres_type === undefined || type === kind.gres_type),
        )
        .reduce((sum, { count }) => sum + count, 0);
    const all = ofKind(group.gres);
    // Nodes without GRES are shared by their CPUs, or given whole.
    const free = all > 0 ? all - ofKind(group.gres_used) : Math.floor((device.count * cpus) / group.cpus);
    space.push({ nodes: nodes.length, devices: Math.max(0, Math.min(device.count, free)), cpus });
  }
  return space;
}

/** Room on one node, by name; nothing runs on it but what the other devices do. */
export interface FreeNode {
  node: string;
  devices: number;
}

/** Nodes of a kind that take jobs now and have devices free. */
export function freeNodes(site: SiteConfig, kind: NodeKind, live: LiveFacts): FreeNode[] {
  const [device] = devicesOf(site, kind, live);
  if (!device) return [];
  const seen = new Set<string>();
  const open = openNodes(usableNodes(nodesOfKind(site, kind, live)), reservationOf(site, kind));
  return takingNodes(site, kind, live, open).flatMap((group) => {
    const nodes = group.nodes.filter((node) => !seen.has(node));
    for (const node of nodes) seen.add(node);
    // Nodes of a group are alike in what is free on them too.
    const [space] = freeSpace(site, kind, device, [group]);
    return space && space.devices > 0 ? nodes.map((node) => ({ node, devices: space.devices })) : [];
  });
}

function usableNodes(groups: readonly LiveNodes[]): LiveNodes[] {
  return groups.filter((group) => !group.states.some((state) => unusable.has(state)));
}

/** Nodes in a reservation are there for jobs that name one; others wait until it is over. */
function openNodes(groups: readonly LiveNodes[], reservation: string | undefined): readonly LiveNodes[] {
  return reservation === undefined ? groups.filter(({ states }) => !states.includes('reserved')) : groups;
}

function reservationOf(site: SiteConfig, kind: NodeKind): string | undefined {
  return (
    kind.slurm?.reservation ?? (site.kind === 'slurm' ? slurmSettings(site).defaults.reservation : undefined)
  );
}

function nodeNames(groups: readonly LiveNodes[]): Set<string> {
  return new Set(groups.flatMap((group) => group.nodes));
}

function partitionsOf(site: SiteConfig, kind: NodeKind, live: LiveFacts | undefined): string[] {
  const named =
    kind.slurm?.partition ??
    kind.partition ??
    (site.kind === 'slurm' ? slurmSettings(site).defaults.partition : undefined);
  if (named !== undefined) return typeof named === 'string' ? named.split(',') : named;
  const standard = live?.partitions.find((partition) => partition.is_default);
  return standard ? [standard.name] : [];
}

function nodesOfKind(site: SiteConfig, kind: NodeKind, live: LiveFacts): LiveNodes[] {
  const partitions = partitionsOf(site, kind, live);
  return live.nodes.filter(
    (group) =>
      (partitions.length === 0 || partitions.includes(group.partition)) &&
      kind.features.every((feature) => group.features.includes(feature)) &&
      (kind.gres_type === undefined || group.gres.some((gres) => gres.type === kind.gres_type)),
  );
}

/** Node kinds of the site config that each node belongs to, by node name; a node may be of several. */
export function kindsOfNodes(site: SiteConfig, live: LiveFacts): Map<string, string[]> {
  const kinds = new Map<string, string[]>(
    live.nodes.flatMap(({ nodes }) => nodes.map((node) => [node, [] as string[]] as const)),
  );
  for (const kind of site.node_kinds)
    for (const node of nodeNames(nodesOfKind(site, kind, live))) kinds.get(node)!.push(kind.name);
  return kinds;
}

function timeLimits(
  site: SiteConfig,
  kind: NodeKind,
  partitions: readonly string[],
  live: LiveFacts | undefined,
): { time_limit_max_s?: number; time_limit_default_s?: number } {
  const seconds = (value: string | number | undefined): number | undefined =>
    value === undefined ? undefined : parseSlurmDuration_s(String(value));
  if (site.kind === 'local') return {};
  const ofPartitions = (live?.partitions ?? [])
    .filter((partition) => partitions.includes(partition.name))
    .map((partition) => partition.max_time_s);
  const longest = seconds(kind.max_time) ?? (ofPartitions.length > 0 ? Math.max(...ofPartitions) : undefined);
  const standard = seconds(kind.slurm?.time_limit) ?? seconds(slurmSettings(site).defaults.time_limit);
  return {
    ...(longest !== undefined && Number.isFinite(longest) ? { time_limit_max_s: longest } : {}),
    ...(standard === undefined ? {} : { time_limit_default_s: standard }),
  };
}

/**
 * Engines that can be started on a device. On a cluster nobody on the login node can look into the job's
 * environment: the site config says which wrapped engines are there, and where it does not they count as
 * offered, unverified, and the node agent reports one that is missing. On the local site their programs are
 * looked for.
 * @param isa CPU extensions of the nodes; empty: nobody said
 */
export function enginesOf(
  site: SiteConfig,
  device: DeviceConfig,
  environment: Readonly<Record<string, string | undefined>>,
  isa: readonly string[] = [],
): Partial<Record<ResolvedEngine, EngineOffer>> {
  const gpu = device.kind !== 'cpu' && device.emulated === undefined;
  const yes: EngineOffer = { available: true };
  const program = (engine: SiteEngine, name: string): EngineOffer => {
    const { engines } = site.runtime;
    if (engines !== undefined)
      return engines[engine]
        ? yes
        : { available: false, because: `runtime.engines of the site config does not offer ${engine}` };
    if (site.kind !== 'local') return { available: true, unverified: true };
    if (engine === 'sglang')
      return pythonPackageOnPath('sglang', environment)
        ? yes
        : { available: false, because: 'the python3 on PATH has no package sglang' };
    return programOnPath(name, environment)
      ? yes
      : { available: false, because: `there is no program ${name} on PATH` };
  };
  const onGpu = (offer: EngineOffer): EngineOffer =>
    gpu
      ? offer
      : {
          available: false,
          because: `it is run on GPUs; these are ${device.emulated ? 'emulated' : 'CPUs'}`,
        };
  const real = (offer: EngineOffer): EngineOffer =>
    device.emulated === undefined
      ? offer
      : { available: false, because: 'it is run on real devices; these are emulated' };
  // https://docs.sglang.io/docs/hardware-platforms/cpu_server
  const lacksTiles = device.kind === 'cpu' && isa.length > 0 && !isa.some((name) => /^amx/i.test(name));
  return {
    native: gpu ? nativeOnGpu(site, environment) : yes,
    vllm: real(program('vllm', 'vllm')),
    sglang: lacksTiles
      ? { available: false, because: 'on CPUs it computes with AMX, which these have not' }
      : real(program('sglang', 'python3')),
    'llama.cpp': program('llama.cpp', 'llama-server'),
    lmdeploy: onGpu(program('lmdeploy', 'lmdeploy')),
    'tensorrt-llm': onGpu(program('tensorrt-llm', 'trtllm-serve')),
    tgi: onGpu(program('tgi', 'text-generation-launcher')),
    transformers: program('transformers', 'transformers'),
    ollama: program('ollama', 'ollama'),
    command: yes,
  };
}

function nativeOnGpu(
  site: SiteConfig,
  environment: Readonly<Record<string, string | undefined>>,
): EngineOffer {
  const folder = gpuLibraries(site, environment);
  if (folder === undefined)
    return {
      available: false,
      because:
        'its libraries have no backend for GPUs: `hpcserve native add cuda` or `vulkan` brings one; else a wrapped engine',
    };
  return readsHostWeights(folder) ? { available: true, reads_host_weights: true } : { available: true };
}

/** The CPU as the kernel names it, shortened: `Xeon Platinum 8480C`. */
function cpuModelName(): string {
  const name = cpus()[0]?.model ?? '';
  const short = name
    .replaceAll(/\((R|TM)\)/gi, '')
    .replace(/^(Intel|AMD)\s+/i, '')
    .replace(/\s+(CPU|Processor)\b/i, '')
    .replace(/\s*@.*$/, '')
    .replaceAll(/\s+/g, ' ')
    .trim();
  return short || 'CPU';
}
