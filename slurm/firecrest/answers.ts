/** What FirecREST says of jobs and nodes, in our words. Field names are those of its v2 API. */
import { z } from 'zod';
import { type JobInfo, jobPhase } from '../../spec/slurm-types.ts';
import type { NodeGroup, Partition } from '../cluster-facts.ts';
import { readHostlist } from '../hostlist.ts';
import { parseJobState } from '../job-queue.ts';
import type { SlurmReservation } from '../promised-nodes.ts';
import { present } from '../text-format.ts';

const seconds = z.number().nullish();
/** A number up to FirecREST 2.4, text since 2.5. */
const jobNumber = z.union([z.string(), z.int().transform(String)]);

const jobSchema = z.object({
  jobId: jobNumber,
  name: z.string(),
  status: z.object({
    state: z.string(),
    stateReason: z.string().nullish(),
    exitCode: z.number().nullish(),
    interruptSignal: z.number().nullish(),
  }),
  time: z.object({ start: seconds, end: seconds, limit: seconds }),
  account: z.string().nullish(),
  nodes: z.string(),
  partition: z.string(),
  user: z.string().nullish(),
});

export const jobsSchema = z.object({ jobs: z.array(jobSchema).nullish() });
export const submittedSchema = z.object({ jobId: jobNumber.pipe(z.string().regex(/^\d+$/)) });

export const nodesSchema = z.object({
  nodes: z.array(
    z.object({
      name: z.string(),
      cpus: z.number(),
      sockets: z.number().nullish(),
      cores: z.number().nullish(),
      threads: z.number().nullish(),
      features: z.union([z.string(), z.array(z.string())]).nullish(),
      state: z.array(z.string()),
      partitions: z.array(z.string()).nullish(),
      /** MB of the node that jobs may have, whatever its name says: sinfo's %m. */
      allocMemory: z.number().nullish(),
      allocCpus: z.number().nullish(),
      idleCpus: z.number().nullish(),
    }),
  ),
});

export const partitionsSchema = z.object({
  partitions: z
    .array(z.object({ name: z.string(), partition: z.union([z.string(), z.array(z.string())]) }))
    .nullish(),
});

export const reservationsSchema = z.object({
  reservations: z
    .array(z.object({ name: z.string(), nodeList: z.string(), startTime: z.number(), endTime: z.number() }))
    .nullish(),
});

export const systemsSchema = z.object({
  systems: z.array(
    z.object({ name: z.string(), scheduler: z.object({ type: z.string(), version: z.string().nullish() }) }),
  ),
});

export const userSchema = z.object({
  user: z.object({ name: z.string() }).nullish(),
  accounts: z.array(z.object({ name: z.string(), default: z.boolean() })).nullish(),
});

export function jobInfo(job: z.infer<typeof jobSchema>): JobInfo {
  const { jobId, status, time } = job;
  // `CANCELLED by 1000`, or a base state with flags behind it.
  const state = parseJobState(status.state.split(/[\s,+]/)[0]!);
  const phase = jobPhase(state);
  const [, base = jobId, array_task, het] = /^(\d+)(?:_(?:\[(.*)\]|\d+))?(?:\+(\d+))?$/.exec(jobId) ?? [];
  const node_list = /assigned/i.test(job.nodes) ? '' : (present(job.nodes) ?? '');
  const reason = present(status.stateReason ?? undefined);
  const ms = (at_s: number | null | undefined): number | undefined => (at_s ? at_s * 1000 : undefined);
  const start_time_ms = ms(time.start);
  const end_time_ms = phase === 'ended' ? ms(time.end) : undefined;
  const task = array_task ?? /_(\d+)/.exec(jobId)?.[1];
  return {
    job_id: jobId.replace(/[_+].*$/, ''),
    base_job_id: base,
    array_task: task,
    het_offset: het === undefined ? undefined : Number(het),
    state,
    phase,
    reason,
    name: job.name,
    user: job.user ?? '',
    account: job.account || undefined,
    partition: job.partition,
    node_list,
    nodes: readHostlist(node_list) ?? [],
    start_time_ms,
    start_is_estimate: phase === 'waiting',
    end_time_ms,
    time_limit_s: timeLimit_s(time.limit),
    exit_code: status.exitCode ?? undefined,
    exit_signal: status.interruptSignal || undefined,
    source: phase === 'ended' ? 'sacct' : 'squeue',
  };
}

/**
 * Seconds, whole minutes of them, as Slurm has limits. FirecREST before 2.5.1 tells minutes: what cannot be seconds is
 * not taken for any, and the rest cannot be told apart.
 */
function timeLimit_s(limit: number | null | undefined): number | undefined {
  return limit && limit % 60 === 0 ? limit : undefined;
}

/** One group a node and partition. GRES are not in the API: they are not known here. */
export function nodeGroups({ nodes }: z.infer<typeof nodesSchema>): NodeGroup[] {
  return nodes.flatMap((node) =>
    (node.partitions ?? []).map((partition) => {
      const allocated = node.allocCpus ?? 0;
      const idle = node.idleCpus ?? 0;
      const features = typeof node.features === 'string' ? node.features.split(',') : (node.features ?? []);
      return {
        partition,
        node_list: node.name,
        nodes: [node.name],
        states: node.state.map((state) => state.toLowerCase().replace(/[^a-z_]+$/, '')),
        features: features.filter((feature) => present(feature) !== undefined),
        gres: [],
        gres_used: [],
        cpus: node.cpus,
        sockets: node.sockets ?? 1,
        cores_per_socket: node.cores ?? node.cpus,
        threads_per_core: node.threads ?? 1,
        memory_mb: node.allocMemory ?? 0,
        cpu_counts: { allocated, idle, other: node.cpus - allocated - idle, total: node.cpus },
      };
    }),
  );
}

/** Limits of partitions are not in the API: none is known here. */
export function partitionsOf({ partitions }: z.infer<typeof partitionsSchema>): Partition[] {
  return (partitions ?? []).map(({ name, partition }) => ({
    name,
    is_default: false,
    state: [partition].flat().join('+'),
    node_list: '',
    max_time_s: Number.POSITIVE_INFINITY,
    preempt_mode: 'OFF',
    priority_tier: 1,
    grace_time_s: 0,
    max_nodes: Number.POSITIVE_INFINITY,
    exclusive: false,
  }));
}

export function reservationsOf({ reservations }: z.infer<typeof reservationsSchema>): SlurmReservation[] {
  return (reservations ?? []).map(({ name, nodeList, startTime, endTime }) => ({
    name,
    start_time_ms: startTime * 1000,
    end_time_ms: endTime * 1000,
    nodes: readHostlist(present(nodeList) ?? '') ?? [],
  }));
}
