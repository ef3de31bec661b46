/** What a cluster consists of: partitions, groups of like nodes, and the controller's settings. */
import { parseSlurmDuration_s } from '../spec/slurm-types.ts';
import { readHostlist } from './hostlist.ts';
import { longFormat, parseLongFormat, parseScontrolLine, parseUtcTime_ms, present } from './text-format.ts';

/** Nodes of one partition that are alike and in the same state. */
export interface NodeGroup {
  partition: string;
  node_list: string;
  nodes: string[];
  /** Base state and flags in lower case: `['mixed']`, `['idle', 'drain']`, `['mixed', 'not_responding']`. */
  states: string[];
  features: string[];
  gres: Gres[];
  gres_used: Gres[];
  cpus: number;
  sockets: number;
  cores_per_socket: number;
  threads_per_core: number;
  memory_mb: number;
  /** CPUs of the group: allocated, idle, in another state, all. */
  cpu_counts: { allocated: number; idle: number; other: number; total: number };
}

/** A generic resource of a node: `gpu:a100:4`. */
export interface Gres {
  name: string;
  type?: string;
  count: number;
}

export interface Partition {
  name: string;
  is_default: boolean;
  /** `UP`, `DOWN`, `DRAIN`, `INACTIVE`. */
  state: string;
  node_list: string;
  /** Infinity: no limit. */
  max_time_s: number;
  default_time_s?: number;
  preempt_mode: string;
  priority_tier: number;
  grace_time_s: number;
  max_nodes: number;
  allow_groups?: string[];
  allow_accounts?: string[];
  allow_qos?: string[];
  qos?: string;
  /** Jobs get whole nodes. */
  exclusive: boolean;
  def_mem_per_cpu_mb?: number;
  def_mem_per_node_mb?: number;
}

/** The settings of `scontrol show config` that we use; `all` has the rest. */
export interface ControllerConfig {
  cluster_name: string;
  preempt_type: string;
  preempt_mode: string;
  /** Seconds between SIGTERM and SIGKILL of a cancelled or timed-out job. */
  kill_wait_s: number;
  /** Seconds for which the controller remembers ended jobs. */
  min_job_age_s: number;
  /** How many tasks an array may have; 0 and 1: there are no arrays. */
  max_array_size: number;
  max_job_count: number;
  enforce_part_limits: string;
  /** sacct has records. */
  has_accounting: boolean;
  gres_types: string[];
  select_type: string;
  /** The controller's clock when it answered, Unix ms in whole seconds; undefined where the answer does not say. */
  told_at_ms?: number;
  all: Map<string, string>;
}

const sinfoFields = [
  'PartitionName',
  'NodeList',
  'StateComplete',
  'Features',
  'Gres',
  'GresUsed',
  'CPUs',
  'Sockets',
  'Cores',
  'Threads',
  'Memory',
  'CPUsState',
] as const;

/** sinfo's `--Format` argument that `parseSinfo` reads. */
export const sinfoFormat = longFormat(sinfoFields);

/**
 * @param onUnreadable told of each line whose nodes cannot be named: nothing is planned with them
 * @throws E_SLURM_ANSWER when the output has another form.
 */
export function parseSinfo(
  output: string,
  onUnreadable: (line: Pick<NodeGroup, 'partition' | 'node_list'>) => void = () => {},
): NodeGroup[] {
  return parseLongFormat('sinfo', sinfoFields, output)
    .filter((row) => row.NodeList !== '')
    .flatMap((row) => {
      const nodes = readHostlist(row.NodeList);
      if (nodes === undefined) {
        onUnreadable({ partition: row.PartitionName, node_list: row.NodeList });
        return [];
      }
      const [allocated = 0, idle = 0, other = 0, total = 0] = row.CPUsState.split('/').map(Number);
      return {
        partition: row.PartitionName,
        node_list: row.NodeList,
        nodes,
        states: parseNodeStates(row.StateComplete),
        features: (present(row.Features) ?? '').split(',').filter((word) => word !== ''),
        gres: parseGres(row.Gres),
        gres_used: parseGres(row.GresUsed),
        cpus: Number.parseInt(row.CPUs, 10),
        sockets: Number.parseInt(row.Sockets, 10),
        cores_per_socket: Number.parseInt(row.Cores, 10),
        threads_per_core: Number.parseInt(row.Threads, 10),
        memory_mb: Number.parseInt(row.Memory, 10),
        cpu_counts: { allocated, idle, other, total },
      };
    });
}

/** `mixed+drain`; in 20.11 the flags of a node that does not answer or sleeps are signs behind the state: `idle*`. */
function parseNodeStates(text: string): string[] {
  const states = text
    .toLowerCase()
    .split('+')
    .map((word) => word.replace(/[^a-z_]+$/, ''))
    .filter((word) => word !== '');
  const isSilent = text.includes('*') && !states.includes('not_responding');
  return isSilent ? [...states, 'not_responding'] : states;
}

/** A GRES list as sinfo prints it: `gpu:a100:4(S:0-1),nvme:1`, `gpu:gh200:0(IDX:N/A)`, `gpu:4`. */
export function parseGres(text: string): Gres[] {
  if (present(text) === undefined) return [];
  return text
    .replace(/\([^)]*\)/g, '')
    .split(',')
    .flatMap((entry) => {
      const parts = entry.trim().split(':');
      const [name = ''] = parts;
      const last = parts.at(-1) ?? '';
      const counted = /^(\d+)([KMGT])?$/i.exec(last);
      const count = counted === null ? 1 : scaled(Number(counted[1]), counted[2]);
      const type = parts.slice(1, counted === null ? undefined : -1).join(':');
      return name === '' ? [] : [{ name, type: type === '' || type === '(null)' ? undefined : type, count }];
    });
}

function scaled(count: number, unit: string | undefined): number {
  const power = unit === undefined ? 0 : 'KMGT'.indexOf(unit.toUpperCase()) + 1;
  return count * 1024 ** power;
}

/** Lines of `scontrol --oneliner show partition`. */
export function parsePartitions(output: string): Partition[] {
  return output
    .split('\n')
    .filter((line) => line.includes('PartitionName='))
    .map((line) => {
      const pairs = parseScontrolLine(line);
      const get = (key: string): string => pairs.get(key) ?? '';
      const list = (key: string): string[] | undefined => {
        const value = present(pairs.get(key));
        return value === undefined || value === 'ALL' ? undefined : value.split(',');
      };
      const limit = (key: string): number =>
        /^\d+$/.test(get(key)) ? Number(get(key)) : Number.POSITIVE_INFINITY;
      const optionalNumber = (key: string): number | undefined =>
        /^\d+$/.test(get(key)) ? Number(get(key)) : undefined;
      const default_time_s = parseSlurmDuration_s(get('DefaultTime'));
      const allow_groups = list('AllowGroups');
      const allow_accounts = list('AllowAccounts');
      const allow_qos = list('AllowQos');
      const qos = present(pairs.get('QoS'));
      const def_mem_per_cpu_mb = optionalNumber('DefMemPerCPU');
      const def_mem_per_node_mb = optionalNumber('DefMemPerNode');
      return {
        name: get('PartitionName'),
        is_default: get('Default') === 'YES',
        state: get('State'),
        node_list: present(pairs.get('Nodes')) ?? '',
        max_time_s: parseSlurmDuration_s(get('MaxTime')) ?? Number.POSITIVE_INFINITY,
        default_time_s,
        preempt_mode: get('PreemptMode'),
        priority_tier: limit('PriorityTier'),
        grace_time_s: Number.parseInt(get('GraceTime'), 10) || 0,
        max_nodes: limit('MaxNodes'),
        allow_groups,
        allow_accounts,
        allow_qos,
        qos,
        exclusive: get('OverSubscribe') === 'EXCLUSIVE',
        def_mem_per_cpu_mb,
        def_mem_per_node_mb,
      };
    });
}

/** `max_array_tasks` of SchedulerParameters; Infinity where it is not set. */
function arrayTasks(parameters: string): number {
  const most = /(?:^|,)max_array_tasks=(\d+)/.exec(parameters)?.[1];
  return most === undefined ? Number.POSITIVE_INFINITY : Number(most);
}

/** `scontrol show config`: lines of `Name = value`. */
export function parseControllerConfig(output: string): ControllerConfig {
  const all = new Map<string, string>();
  for (const line of output.split('\n')) {
    const match = /^([\w[\]]+)\s*=\s?(.*)$/.exec(line);
    if (match !== null && !all.has(match[1]!)) all.set(match[1]!, match[2]!.trim());
  }
  const get = (key: string): string => all.get(key) ?? '';
  // "30 sec", "300 sec"
  const number = (key: string, otherwise: number): number => {
    const value = Number.parseInt(get(key), 10);
    return Number.isNaN(value) ? otherwise : value;
  };
  const told_at_ms = parseUtcTime_ms(/^Configuration data as of (\S+)/m.exec(output)?.[1]);
  return {
    cluster_name: get('ClusterName'),
    preempt_type: get('PreemptType'),
    preempt_mode: get('PreemptMode'),
    kill_wait_s: number('KillWait', 30),
    min_job_age_s: number('MinJobAge', 300),
    max_array_size: Math.min(number('MaxArraySize', 1001), arrayTasks(get('SchedulerParameters'))),
    max_job_count: number('MaxJobCount', 10_000),
    enforce_part_limits: get('EnforcePartLimits'),
    has_accounting: !['', 'accounting_storage/none', '(null)'].includes(get('AccountingStorageType')),
    gres_types: (present(all.get('GresTypes')) ?? '').split(',').filter((word) => word !== ''),
    select_type: get('SelectType'),
    told_at_ms,
    all,
  };
}
