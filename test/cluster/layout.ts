/**
 * What the private cluster is made of: its folders, its nodes, its partitions. Sizes are made up; the code paths are
 * real.
 */
import { userInfo } from 'node:os';
import { join } from 'node:path';

/** One kind of node of the test cluster. */
export interface ClusterNodeKind {
  name: string;
  /** Slurm node names of this kind. */
  nodes: string[];
  sockets: number;
  cores_per_socket: number;
  memory_mb: number;
  features: string[];
  /** GPUs a node claims to have; their device files are links to /dev/null. */
  gpus: { type: string; count: number } | undefined;
}

/** Few CPUs on purpose: all six nodes share the cores of one machine. */
export const clusterNodeKinds: readonly ClusterNodeKind[] = [
  {
    name: 'gh200',
    nodes: ['gh1', 'gh2'],
    sockets: 4,
    cores_per_socket: 2,
    memory_mb: 65_536,
    features: ['gh200', 'nvlink'],
    gpus: { type: 'gh200', count: 4 },
  },
  {
    name: 'a100',
    nodes: ['a1', 'a2'],
    sockets: 2,
    cores_per_socket: 2,
    memory_mb: 32_768,
    features: ['a100', 'nvlink'],
    gpus: { type: 'a100', count: 2 },
  },
  {
    name: 'cpu',
    nodes: ['c1', 'c2'],
    sockets: 2,
    cores_per_socket: 2,
    memory_mb: 16_384,
    features: ['sapphirerapids', 'amx'],
    gpus: undefined,
  },
];

export const clusterNodeNames: readonly string[] = clusterNodeKinds.flatMap((kind) => kind.nodes);

/** Seconds between a preemption's SIGTERM and the kill, in partition `scavenge`. */
export const scavenge_grace_s = 5;
/** Seconds between a cancelled or timed-out job's SIGTERM and SIGKILL. */
export const kill_wait_s = 3;
/** Both of them, where the shape is `long-graces`. */
export const long_grace_s = 20;

/** Kinds of sites that the cluster can be, beside the usual one, which gives jobs a part of a node. */
export const clusterShapes = [
  'linear',
  'exclusive',
  'job-submit',
  'private-tmp',
  'cgroup',
  'separate-hosts',
  'long-graces',
] as const;
/**
 * `linear`: select/linear, whole nodes · `exclusive`: partitions with OverSubscribe=EXCLUSIVE · `job-submit`: a Lua
 * policy that refuses with words · `private-tmp`: job_container/tmpfs, each job with a /tmp and a /dev/shm of its own ·
 * `cgroup`: proctrack/cgroup and task/cgroup, which limit memory · `separate-hosts`: each node with an address, a /tmp
 * and a /dev/shm of its own (`hosts.ts`) · `long-graces`: between SIGTERM and SIGKILL nearly what sites give, for what
 * takes longer where two cores do the work of several nodes.
 */
export type ClusterShape = (typeof clusterShapes)[number];

/** Where one cluster keeps its files. `base` outlives the cluster (lock, leases), `run` does not. */
export interface ClusterFolders {
  base: string;
  lock: string;
  leases: string;
  state: string;
  run: string;
  slurm_conf: string;
}

/**
 * A folder with a sticky bit, for munge refuses other world-writable parents; one that jobs see, who may have a /tmp of
 * their own.
 */
export function sharedTemporaryFolder(shape?: ClusterShape): string {
  return shape === 'private-tmp' || shape === 'separate-hosts' ? '/var/tmp' : '/tmp';
}

/** Folders of the cluster `name` of this user. */
export function clusterFolders(name: string, shape?: ClusterShape): ClusterFolders {
  if (!/^[a-z0-9-]{1,32}$/.test(name))
    throw new Error(`cluster name ${JSON.stringify(name)}: lower-case letters, digits and "-" only`);
  const base = join(sharedTemporaryFolder(shape), `hpcserve-cluster-${userInfo().uid}-${name}`);
  return {
    base,
    lock: join(base, 'lock'),
    leases: join(base, 'leases'),
    state: join(base, 'state.json'),
    run: join(base, 'run'),
    slurm_conf: join(base, 'run', 'slurm.conf'),
  };
}
