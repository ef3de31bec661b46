/** A first site config for an unknown cluster, from what its commands and filesystems say. */

import type { HostFacts } from '../host/host-facts.ts';
import { isSharedFilesystem, mountTypeOf } from '../host/mounts.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { SiteInput } from '../spec/site.ts';
import type { NodeKind } from '../spec/site-nodes.ts';
import { formatSlurmDuration } from '../spec/slurm-types.ts';
import type { SlurmClient } from './client.ts';
import { isSupported } from './client.ts';
import type { ControllerConfig, NodeGroup, Partition } from './cluster-facts.ts';
import { recognizeDevice } from './gpu-memory.ts';
import type { Permissions } from './permissions.ts';

type NodeKindInput = NonNullable<SiteInput['node_kinds']>[number];

/** A site config to be, with what was found out about its keys. */
export interface SiteDraft {
  site: SiteInput;
  /** Remarks for people by key path (`state_dir`, `node_kinds.0.devices`). */
  notes: Map<string, string[]>;
  /** What a person should look at before deploying. */
  warnings: string[];
}

/** Nodes that are alike, with every partition they are in. */
interface NodeClass {
  key: string;
  sample: NodeGroup;
  nodes: Set<string>;
  partitions: Set<string>;
}

/** Partitions with a shorter limit are for tests; they are taken only where there is nothing else. */
const short_partition_s = 1800;
const mib_per_gb = 1e9 / 2 ** 20;
/** What jobs ask for, where their partition gives so much. */
const time_limit_s = 4 * 3600;

/** @throws E_SLURM_… when Slurm cannot be asked; E_CONFIG_MISSING when no partition is open to this user. */
export async function discoverSite(client: SlurmClient, host: HostFacts): Promise<SiteDraft> {
  const [version, config, partitions, groups, permissions, clusters] = [
    await client.version(),
    await client.config(),
    await client.partitions(),
    await client.nodeGroups(),
    await client.permissions(),
    await client.clusters(),
  ];
  const notes = new Map<string, string[]>();
  const warnings: string[] = [];
  if (!isSupported(version))
    warnings.push(`Slurm ${version.text} is older than 20.11, the oldest this was written for`);
  // sinfo without --all lists what this user may use.
  const open = partitions.filter(
    (partition) => partition.state === 'UP' && groups.some((group) => group.partition === partition.name),
  );
  const classes = nodeClasses(groups.filter((group) => open.some(({ name }) => name === group.partition)));
  if (classes.length === 0)
    throw new HpcserveError('E_CONFIG_MISSING', {
      what: 'no partition of this cluster is up and open to you',
      because: partitions.map((partition) => `${partition.name} is ${partition.state}`),
      try: 'ask the site’s support which partition you may use',
    });
  const node_kinds: NodeKindInput[] = [];
  for (const tier of ['stable', 'scavenger'] as const)
    for (const nodeClass of classes) {
      const candidates = open.filter(
        (partition) => nodeClass.partitions.has(partition.name) && tierOf(partition, config, open) === tier,
      );
      const kind = nodeKind(nodeClass, classes, candidates, tier, node_kinds, notes, warnings);
      if (kind !== undefined) node_kinds.push(kind);
    }
  const site: SiteInput = {
    name: siteName(config.cluster_name),
    description: `Slurm ${version.text}, found by hpcserve init`,
    kind: 'slurm',
    ...sharedFolders(host, notes, warnings),
    slurm: {
      poll_interval_s: 30,
      defaults: defaults(host, permissions, notes),
      gpu_request: gpuRequest(classes, config, notes),
      signal_s: 120,
      requeue: 'scavenger',
    },
    node_kinds,
    gateway: { place: 'login' },
  };
  notes.set('slurm.signal_s', [
    `A cancelled job has ${config.kill_wait_s} s between SIGTERM and SIGKILL here (KillWait).`,
  ]);
  const others = (clusters ?? []).filter(({ name }) => name !== config.cluster_name);
  if (others.length > 0)
    notes.set('slurm', [
      `Other clusters can be reached from here by "cluster: NAME": ${others.map(({ name, federation }) => (federation === undefined ? name : `${name} (federation ${federation})`)).join(', ')}.`,
    ]);
  if (!config.has_accounting)
    notes.set('slurm.poll_interval_s', [
      `There is no accounting database: ended jobs are remembered for ${config.min_job_age_s} s (MinJobAge).`,
    ]);
  return { site, notes, warnings };
}

function nodeClasses(groups: readonly NodeGroup[]): NodeClass[] {
  const classes = new Map<string, NodeClass>();
  for (const group of groups) {
    const gpus = gpuGres(group).map(({ type, count }) => `${type ?? ''}:${count}`);
    const key = JSON.stringify([[...group.features].sort(), gpus, group.cpus, group.memory_mb]);
    const known = classes.get(key) ?? {
      key,
      sample: group,
      nodes: new Set<string>(),
      partitions: new Set<string>(),
    };
    for (const node of group.nodes) known.nodes.add(node);
    known.partitions.add(group.partition);
    classes.set(key, known);
  }
  // GPUs first, the most of them first: that is what people look for.
  return [...classes.values()].sort(
    (a, b) => gpuCount(b.sample) - gpuCount(a.sample) || (a.key < b.key ? -1 : 1),
  );
}

function gpuGres(group: NodeGroup): { type?: string; count: number }[] {
  return group.gres.filter((gres) => gres.name === 'gpu' && gres.count > 0);
}

function gpuCount(group: NodeGroup): number {
  return gpuGres(group).reduce((sum, gres) => sum + gres.count, 0);
}

/** A partition whose jobs are preempted by those of another that has a higher tier. */
function tierOf(
  partition: Partition,
  config: ControllerConfig,
  all: readonly Partition[],
): 'stable' | 'scavenger' {
  const preempts = config.preempt_type === 'preempt/partition_prio';
  const above = all.some((other) => other.priority_tier > partition.priority_tier);
  return preempts && above && !['OFF', ''].includes(partition.preempt_mode) ? 'scavenger' : 'stable';
}

function nodeKind(
  nodeClass: NodeClass,
  classes: readonly NodeClass[],
  candidates: readonly Partition[],
  tier: 'stable' | 'scavenger',
  others: readonly NodeKindInput[],
  notes: Map<string, string[]>,
  warnings: string[],
): NodeKindInput | undefined {
  const { sample } = nodeClass;
  const kindsIn = (partition: Partition): number =>
    classes.filter((other) => other.partitions.has(partition.name)).length;
  const [chosen, ...rest] = [...candidates].sort(
    (a, b) =>
      Number(a.max_time_s < short_partition_s) - Number(b.max_time_s < short_partition_s) ||
      kindsIn(a) - kindsIn(b) ||
      b.max_time_s - a.max_time_s ||
      (a.name < b.name ? -1 : 1),
  );
  if (chosen === undefined) return undefined;
  const [gpu] = gpuGres(sample);
  const named =
    gpu?.type ?? sample.features.find((feature) => recognizeDevice(feature).memory_gb !== undefined);
  const base = gpu === undefined ? 'cpu' : (named ?? 'gpu');
  const name = uniqueName(tier === 'scavenger' ? `${base}-scavenger` : base, others);
  const path = `node_kinds.${others.length}`;
  const neighbours = classes.filter((other) => other !== nodeClass && other.partitions.has(chosen.name));
  const features = distinguishingFeatures(sample, gpu?.type, neighbours);
  const devices =
    gpu === undefined ? [cpuDevice(sample)] : [gpuDevice(gpu, named, path, notes, warnings, name)];
  const partitionNotes = [
    `${nodeClass.nodes.size} nodes: ${sample.node_list}${sample.features.length > 0 ? ` (features: ${sample.features.join(', ')})` : ''}`,
    ...rest.map(
      (partition) =>
        `Also in partition ${partition.name}, at most ${formatSlurmDuration(partition.max_time_s)}.`,
    ),
    ...(tier === 'scavenger'
      ? [`Preemptible (${chosen.preempt_mode}), ${chosen.grace_time_s} s grace.`]
      : []),
  ];
  notes.set(path, partitionNotes);
  if (features === undefined)
    warnings.push(
      `node kind ${name}: partition ${chosen.name} also has other nodes, and no feature tells them apart`,
    );
  return {
    name,
    count: nodeClass.nodes.size,
    partition: chosen.name,
    features: features === undefined || features.length === 0 ? undefined : features,
    gres_type: gpu?.type,
    devices,
    cpus: sample.cpus,
    // Slurm gives a job at most RealMemory; rounded down so that it always fits.
    memory_gb: Math.max(1, Math.floor(sample.memory_mb / mib_per_gb)),
    architecture: isArm(sample) ? ('aarch64' as const) : undefined,
    isa: isaOf(sample).length > 0 ? isaOf(sample) : undefined,
    tier,
    max_time: Number.isFinite(chosen.max_time_s) ? formatSlurmDuration(chosen.max_time_s) : undefined,
    slurm: ownSettings(chosen),
  };
}

/** What jobs there ask for otherwise than elsewhere. */
function ownSettings({ exclusive, max_time_s }: Partition): NodeKindInput['slurm'] {
  const settings: NonNullable<NodeKindInput['slurm']> = {};
  if (exclusive) settings.exclusive = true;
  if (max_time_s < time_limit_s) settings.time_limit = formatSlurmDuration(max_time_s);
  return Object.keys(settings).length === 0 ? undefined : settings;
}

/** Features that none of the neighbours has; empty when the GPU type already decides; undefined when nothing does. */
function distinguishingFeatures(
  sample: NodeGroup,
  type: string | undefined,
  neighbours: readonly NodeClass[],
): string[] | undefined {
  const rivals = neighbours.filter(
    (other) => type === undefined || gpuGres(other.sample).some((gres) => gres.type === type),
  );
  if (rivals.length === 0) return [];
  const own = sample.features.find((feature) =>
    rivals.every((rival) => !rival.sample.features.includes(feature)),
  );
  return own === undefined ? undefined : [own];
}

function gpuDevice(
  gpu: { type?: string; count: number },
  named: string | undefined,
  path: string,
  notes: Map<string, string[]>,
  warnings: string[],
  kindName: string,
): NodeKind['devices'][number] {
  const device = recognizeDevice(named ?? 'gpu');
  const remark =
    device.memory_gb === undefined
      ? `Slurm does not say how much memory a ${device.model} has: correct memory_gb.`
      : device.ambiguous === undefined
        ? undefined
        : `This GPU exists with ${device.ambiguous}: check memory_gb.`;
  if (remark !== undefined) {
    notes.set(`${path}.devices`, [remark]);
    warnings.push(`node kind ${kindName}: ${remark}`);
  }
  return { kind: device.kind, model: device.model, count: gpu.count, memory_gb: device.memory_gb ?? 16 };
}

/** A node without GPUs computes on its sockets. */
function cpuDevice(sample: NodeGroup): NodeKind['devices'][number] {
  const count = Math.max(1, sample.sockets);
  return {
    kind: 'cpu',
    model: sample.features[0] ?? 'generic',
    count,
    memory_gb: Math.max(1, Math.floor(sample.memory_mb / mib_per_gb / count)),
    cores: Math.max(1, Math.floor(sample.cpus / sample.threads_per_core / count)),
  };
}

function isArm(sample: NodeGroup): boolean {
  const words = [...sample.features, ...gpuGres(sample).map((gres) => gres.type ?? '')];
  return words.some((word) => /^(aarch64|arm(64|v[89].*)?|grace|gh200|gb200|neoverse.*|a64fx)$/i.test(word));
}

function isaOf(sample: NodeGroup): string[] {
  return sample.features
    .filter((feature) => /^(avx|amx|sve)/i.test(feature))
    .map((feature) => feature.toLowerCase());
}

function uniqueName(wanted: string, others: readonly NodeKindInput[]): string {
  const clean =
    wanted
      .toLowerCase()
      .replace(/[^a-z0-9_-]+/g, '-')
      .replace(/^[^a-z0-9]+/, '')
      .slice(0, 36) || 'node';
  const taken = new Set(others.map((kind) => kind.name));
  for (let number = 1; ; number++) {
    const name = number === 1 ? clean : `${clean}-${number}`;
    if (!taken.has(name)) return name;
  }
}

function siteName(cluster: string): string {
  return (
    cluster
      .toLowerCase()
      .replace(/[^a-z0-9-]+/g, '-')
      .replace(/^-+/, '')
      .slice(0, 40) || 'cluster'
  );
}

function gpuRequest(
  classes: readonly NodeClass[],
  config: ControllerConfig,
  notes: Map<string, string[]>,
): NonNullable<NonNullable<SiteInput['slurm']>['gpu_request']> {
  const gpus = classes.flatMap(({ sample }) => gpuGres(sample));
  if (gpus.length === 0) return { form: 'none' };
  if (config.select_type === 'select/linear') {
    notes.set('slurm.gpu_request', [
      'select/linear gives whole nodes; srun of a job that asked for GPUs is refused there ("Invalid generic resource").',
    ]);
    return { form: 'none' };
  }
  return { form: 'gres', with_type: gpus.every((gres) => gres.type !== undefined) };
}

function defaults(
  host: HostFacts,
  { associations = [], reservations = [] }: Permissions,
  notes: Map<string, string[]>,
): { account?: string; qos?: string; time_limit: string } {
  const account = host.environment.SBATCH_ACCOUNT ?? host.environment.SLURM_ACCOUNT;
  const qos = host.environment.SBATCH_QOS;
  const accounts = associations.map(
    ({ account: name, qos: names, is_default }) =>
      `${name}${is_default ? ' (charged where none is named)' : ''}${names.length > 0 ? `, QoS ${names.join(' ')}` : ''}`,
  );
  notes.set('slurm.defaults', [
    account !== undefined
      ? 'account comes from the environment of this login.'
      : accounts.length > 0
        ? `Your accounts: ${[...new Set(accounts)].join('; ')}.`
        : 'Set account if your site wants one; "sacctmgr show associations user=$USER" lists yours.',
    ...(reservations.length > 0
      ? [
          `Reservations: ${reservations.map(({ name, nodes }) => `${name} (${nodes.length} nodes)`).join(', ')}.`,
        ]
      : []),
  ]);
  return {
    account,
    qos,
    time_limit: formatSlurmDuration(time_limit_s),
  };
}

/** Variables in which sites name large shared folders, and the usual folders by user name. */
function folderCandidates(host: HostFacts): { label: string; path: string }[] {
  const { environment } = host;
  const user = environment.USER ?? environment.LOGNAME ?? '';
  const variables = ['SCRATCH', 'PSCRATCH', 'WORK', 'WORKDIR', 'PROJECT', 'DATA', 'GROUP_HOME', 'STORE'];
  return [
    ...variables.flatMap((name) => {
      const path = environment[name];
      return path === undefined || path === '' ? [] : [{ label: `$${name}`, path }];
    }),
    ...['/scratch', '/work', '/data', '/project'].map((folder) => ({
      label: `${folder}/$USER`,
      path: `${folder}/${user}`,
    })),
  ];
}

function sharedFolders(
  host: HostFacts,
  notes: Map<string, string[]>,
  warnings: string[],
): Pick<SiteInput, 'state_dir' | 'scratch_dir'> {
  const typeOf = (path: string): string | undefined => {
    const real = host.writableFolder(path);
    return real === undefined ? undefined : mountTypeOf(real, host.mounts);
  };
  const home = host.environment.HOME ?? '';
  const homeType = typeOf(home);
  const shared = folderCandidates(host).filter(({ path }) => isSharedFilesystem(typeOf(path)));
  const [scratch] = shared;
  const scratch_dir = scratch === undefined ? {} : { scratch_dir: `${scratch.label}/hpcserve` };
  if (scratch !== undefined)
    notes.set('scratch_dir', [
      `${scratch.label} is on ${typeOf(scratch.path)}. Sites often purge such folders.`,
    ]);
  if (isSharedFilesystem(homeType) || scratch === undefined) {
    notes.set('state_dir', [`Your home is on ${homeType ?? 'an unknown filesystem'}.`]);
    if (!isSharedFilesystem(homeType))
      warnings.push(
        `home is on ${homeType ?? 'an unknown filesystem'}, which compute nodes may not see: set state_dir to a shared folder`,
      );
    return { state_dir: '~/.hpcserve', ...scratch_dir };
  }
  notes.set('state_dir', [
    `Your home is on ${homeType ?? 'an unknown filesystem'}, which compute nodes may not see; ${scratch.label} is shared.`,
  ]);
  return { state_dir: `${scratch.label}/.hpcserve`, ...scratch_dir };
}
