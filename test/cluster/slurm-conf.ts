/** The configuration files of the private cluster, as text. */
import { join } from 'node:path';
import { accountingConf } from './accounting.ts';
import type { ClusterHosts } from './hosts.ts';
import {
  type ClusterFolders,
  type ClusterNodeKind,
  type ClusterShape,
  clusterNodeKinds,
  clusterNodeNames,
  kill_wait_s,
  long_grace_s,
  scavenge_grace_s,
} from './layout.ts';
import { atLeastRelease } from './slurm-folder.ts';

export interface ClusterPorts {
  slurmctld: number;
  /** By node name. */
  slurmd: Record<string, number>;
  /** Only where the cluster has accounting. */
  slurmdbd?: number;
}

export interface ClusterConfInput {
  cluster_name: string;
  folders: ClusterFolders;
  ports: ClusterPorts;
  /** The user that runs the daemons: root where we are root, else ourselves (who then can run only our own jobs). */
  daemon_user: string;
  /** Of Slurm: `22.05.8`. */
  version: string;
  /** Folder of its plugins; undefined: where it was compiled to find them. */
  plugins: string | undefined;
  shape: ClusterShape | undefined;
  /** Where each node is a host of its own. */
  hosts: ClusterHosts | undefined;
}

/**
 * So long Slurm lets a job wait that it has put back into the queue, which is how long credentials of steps are good
 * (slurm.conf(5), `cred_expire`); its default, 120 s, would be most of what the tests of requeued jobs take.
 */
const requeued_wait_s = 30;

/**
 * slurm.conf. `config_overrides` lets nodes claim sizes this machine does not have;
 * `EnforcePartLimits=ALL` makes sbatch refuse a job over a partition's limits instead of leaving it pending;
 * `MinJobAge` is long because without slurmdbd `scontrol show job` is the only memory of ended jobs.
 */
export function slurmConf(input: ClusterConfInput): string {
  const { run } = input.folders;
  const { shape, version } = input;
  const all = clusterNodeNames.join(',');
  const whole = shape === 'exclusive' ? ' OverSubscribe=EXCLUSIVE' : '';
  const memory = shape === 'linear' ? 'DefMemPerNode=4096' : 'DefMemPerCPU=1024';
  return [
    `ClusterName=${input.cluster_name}`,
    `SlurmctldHost=localhost(${input.hosts?.login_address ?? '127.0.0.1'})`,
    `SlurmctldPort=${input.ports.slurmctld}`,
    'AuthType=auth/munge',
    ...(input.plugins === undefined ? [] : [`PluginDir=${input.plugins}`]),
    `AuthInfo=socket=${join(run, 'munge', 'socket')},cred_expire=${requeued_wait_s}`,
    `SlurmUser=${input.daemon_user}`,
    `SlurmdUser=${input.daemon_user}`,
    `StateSaveLocation=${join(run, 'state')}`,
    `SlurmdSpoolDir=${join(run, 'spool', '%n')}`,
    `SlurmctldPidFile=${join(run, 'slurmctld.pid')}`,
    `SlurmdPidFile=${join(run, 'slurmd-%n.pid')}`,
    `SlurmctldLogFile=${join(run, 'log', 'slurmctld.log')}`,
    `SlurmdLogFile=${join(run, 'log', 'slurmd-%n.log')}`,
    'SlurmdParameters=config_overrides',
    `ProctrackType=proctrack/${shape === 'cgroup' ? 'cgroup' : 'linuxproc'}`,
    ...taskPlugin(input),
    'MpiDefault=none',
    'MailProg=/bin/true',
    'ReturnToService=2',
    'GresTypes=gpu',
    ...(shape === 'linear'
      ? ['SelectType=select/linear', 'SelectTypeParameters=CR_Memory']
      : ['SelectType=select/cons_tres', 'SelectTypeParameters=CR_Core_Memory']),
    ...(shape === 'job-submit' ? ['JobSubmitPlugins=lua'] : []),
    ...(shape === 'private-tmp' ? ['JobContainerType=job_container/tmpfs', 'PrologFlags=Contain'] : []),
    'PreemptType=preempt/partition_prio',
    'PreemptMode=REQUEUE',
    'EnforcePartLimits=ALL',
    'SchedulerParameters=bf_interval=1,sched_interval=2,sched_min_interval=0',
    `KillWait=${shape === 'long-graces' ? long_grace_s : kill_wait_s}`,
    // Sites leave it at 300 s: so long a node may be silent before Slurm ends what ran on it. A third of that lies
    // between two looks at a node, and so long the keeper waits.
    ...(shape === 'separate-hosts' ? ['SlurmdTimeout=90'] : []),
    'MinJobAge=3600',
    ...(input.ports.slurmdbd === undefined
      ? []
      : accountingConf(input.ports.slurmdbd, join(run, 'munge', 'socket'), version)),
    ...clusterNodeKinds.flatMap((kind) => kind.nodes.map((node) => nodeLine(kind, node, input))),
    ...clusterNodeKinds.map(
      (kind, index) =>
        `PartitionName=${kind.name} Nodes=${kind.nodes.join(',')} Default=${index === 0 ? 'YES' : 'NO'} ` +
        `DefaultTime=01:00:00 MaxTime=1-00:00:00 ${memory} PriorityTier=10 PreemptMode=OFF${whole}`,
    ),
    `PartitionName=debug Nodes=${all} DefaultTime=00:01:00 MaxTime=00:05:00 ${memory} PriorityTier=20 PreemptMode=OFF`,
    `PartitionName=scavenge Nodes=${all} DefaultTime=01:00:00 MaxTime=04:00:00 ${memory} PriorityTier=1 PreemptMode=REQUEUE GraceTime=${shape === 'long-graces' ? long_grace_s : scavenge_grace_s}${whole}`,
    // The last two exist to be refused by.
    `PartitionName=staff Nodes=${all} MaxTime=01:00:00 ${memory} PriorityTier=10 PreemptMode=OFF AllowGroups=adm`,
    `PartitionName=closed Nodes=${all} MaxTime=01:00:00 ${memory} PriorityTier=10 PreemptMode=OFF State=DOWN`,
    '',
  ].join('\n');
}

function nodeLine(kind: ClusterNodeKind, node: string, { ports, hosts }: ClusterConfInput): string {
  const gres = kind.gpus === undefined ? '' : ` Gres=gpu:${kind.gpus.type}:${kind.gpus.count}`;
  return (
    `NodeName=${node} NodeHostname=localhost NodeAddr=${hosts?.address(node) ?? '127.0.0.1'} Port=${ports.slurmd[node]} ` +
    `Sockets=${kind.sockets} CoresPerSocket=${kind.cores_per_socket} ThreadsPerCore=1 ` +
    `RealMemory=${kind.memory_mb} Feature=${kind.features.join(',')}${gres}`
  );
}

/** gres.conf: device files are links to /dev/null, because slurmd accepts only character or block devices. */
export function gresConf(folders: ClusterFolders): string {
  return clusterNodeKinds
    .filter((kind) => kind.gpus !== undefined)
    .map(
      (kind) =>
        `NodeName=${kind.nodes.join(',')} Name=gpu Type=${kind.gpus!.type} ` +
        `File=${join(folders.run, 'dev', `nvidia[0-${kind.gpus!.count - 1}]`)}\n`,
    )
    .join('');
}

/** cgroup.conf: none of its controls; containers and virtual machines often do not allow them. */
export function cgroupConf({ shape, version }: ClusterConfInput): string {
  const shaped = shape === 'cgroup';
  const words = (yes: boolean): string => (yes ? 'yes' : 'no');
  return [
    // Cores and devices are made up: a job could have none of those that it was given.
    'ConstrainCores=no',
    'ConstrainDevices=no',
    `ConstrainRAMSpace=${words(shaped)}`,
    ...(atLeastRelease(version, '23.11') ? [] : ['CgroupAutomount=no']),
    ...(atLeastRelease(version, '24.05') && !shaped ? ['CgroupPlugin=disabled'] : []),
    ...(atLeastRelease(version, '22.05') && shaped ? ['IgnoreSystemd=yes'] : []),
    '',
  ].join('\n');
}

/** Since 23.11 nothing is said where there is none. */
function taskPlugin({ shape, version }: ClusterConfInput): string[] {
  if (shape === 'cgroup') return ['TaskPlugin=task/cgroup'];
  return atLeastRelease(version, '23.11') ? [] : ['TaskPlugin=task/none'];
}

/** What the policy of the shape `job-submit` says to a job that it refuses, and to one that it lets in. */
export const policyWords = {
  refused: 'Jobs on gh200 are for at most 20 minutes: lower --time, or write to help@example.org',
  accepted: 'Partition a100 is closed from Friday on',
} as const;

/** Further files that a shape needs beside slurm.conf, by name. */
export function shapeFiles({ shape, folders }: ClusterConfInput): Record<string, string> {
  switch (shape) {
    case 'job-submit':
      return { 'job_submit.lua': jobSubmitPolicy };
    case 'private-tmp':
      // The nodes share one host: each has its own.
      return {
        'job_container.conf': clusterNodeNames
          .map(
            (node) => `NodeName=${node} AutoBasePath=true BasePath=${join(folders.run, 'private', node)}\n`,
          )
          .join(''),
      };
    default:
      return {};
  }
}

/** https://slurm.schedmd.com/job_submit_plugins.html: time limits are minutes. */
const jobSubmitPolicy = `
function slurm_job_submit(job, partitions, uid)
  if job.partition == "gh200" and (job.time_limit == nil or job.time_limit > 20) then
    slurm.log_user("${policyWords.refused}")
    return slurm.ERROR
  end
  if job.partition == "a100" then slurm.log_user("${policyWords.accepted}") end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
`;
