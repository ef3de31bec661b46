/** The configuration files of the private cluster, as text. */
import { join } from 'node:path';
import { accountingConf } from './accounting.ts';
import {
  type ClusterFolders,
  type ClusterNodeKind,
  clusterNodeKinds,
  kill_wait_s,
  scavenge_grace_s,
} from './layout.ts';

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
}

/**
 * slurm.conf. `config_overrides` lets nodes claim sizes this machine does not have;
 * `EnforcePartLimits=ALL` makes sbatch refuse a job over a partition's limits instead of leaving it pending;
 * `MinJobAge` is long because without slurmdbd `scontrol show job` is the only memory of ended jobs.
 */
export function slurmConf(input: ClusterConfInput): string {
  const { run } = input.folders;
  const all = clusterNodeKinds.flatMap((kind) => kind.nodes).join(',');
  return [
    `ClusterName=${input.cluster_name}`,
    'SlurmctldHost=localhost(127.0.0.1)',
    `SlurmctldPort=${input.ports.slurmctld}`,
    `AuthInfo=socket=${join(run, 'munge', 'socket')}`,
    `SlurmUser=${input.daemon_user}`,
    `SlurmdUser=${input.daemon_user}`,
    `StateSaveLocation=${join(run, 'state')}`,
    `SlurmdSpoolDir=${join(run, 'spool', '%n')}`,
    `SlurmctldPidFile=${join(run, 'slurmctld.pid')}`,
    `SlurmdPidFile=${join(run, 'slurmd-%n.pid')}`,
    `SlurmctldLogFile=${join(run, 'log', 'slurmctld.log')}`,
    `SlurmdLogFile=${join(run, 'log', 'slurmd-%n.log')}`,
    'SlurmdParameters=config_overrides',
    'ProctrackType=proctrack/linuxproc',
    'TaskPlugin=task/none',
    'MpiDefault=none',
    'MailProg=/bin/true',
    'ReturnToService=2',
    'GresTypes=gpu',
    'SelectType=select/cons_tres',
    'SelectTypeParameters=CR_Core_Memory',
    'PreemptType=preempt/partition_prio',
    'PreemptMode=REQUEUE',
    'EnforcePartLimits=ALL',
    'SchedulerParameters=bf_interval=1,sched_interval=2,sched_min_interval=0',
    `KillWait=${kill_wait_s}`,
    'MinJobAge=3600',
    ...(input.ports.slurmdbd === undefined
      ? []
      : accountingConf(input.ports.slurmdbd, join(run, 'munge', 'socket'))),
    ...clusterNodeKinds.flatMap((kind) => kind.nodes.map((node) => nodeLine(kind, node, input.ports))),
    ...clusterNodeKinds.map(
      (kind, index) =>
        `PartitionName=${kind.name} Nodes=${kind.nodes.join(',')} Default=${index === 0 ? 'YES' : 'NO'} ` +
        'DefaultTime=01:00:00 MaxTime=1-00:00:00 DefMemPerCPU=1024 PriorityTier=10 PreemptMode=OFF',
    ),
    `PartitionName=debug Nodes=${all} DefaultTime=00:01:00 MaxTime=00:05:00 DefMemPerCPU=1024 PriorityTier=20 PreemptMode=OFF`,
    `PartitionName=scavenge Nodes=${all} DefaultTime=01:00:00 MaxTime=04:00:00 DefMemPerCPU=1024 PriorityTier=1 PreemptMode=REQUEUE GraceTime=${scavenge_grace_s}`,
    // The last two exist to be refused by.
    `PartitionName=staff Nodes=${all} MaxTime=01:00:00 DefMemPerCPU=1024 PriorityTier=10 PreemptMode=OFF AllowGroups=adm`,
    `PartitionName=closed Nodes=${all} MaxTime=01:00:00 DefMemPerCPU=1024 PriorityTier=10 PreemptMode=OFF State=DOWN`,
    '',
  ].join('\n');
}

function nodeLine(kind: ClusterNodeKind, node: string, ports: ClusterPorts): string {
  const gres = kind.gpus === undefined ? '' : ` Gres=gpu:${kind.gpus.type}:${kind.gpus.count}`;
  return (
    `NodeName=${node} NodeHostname=localhost NodeAddr=127.0.0.1 Port=${ports.slurmd[node]} ` +
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
export const cgroupConf =
  'CgroupAutomount=no\nConstrainCores=no\nConstrainDevices=no\nConstrainRAMSpace=no\n';
