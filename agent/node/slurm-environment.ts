import { hostname } from 'node:os';

/** What the agent knows of its job from the environment; on the local site only names. */
export interface NodeIdentity {
  node: string;
  hostname: string;
  node_index: number;
  job_id?: string;
  /** How often Slurm had put the job back into the queue. */
  restart_count?: number;
  /** When the job's time limit ends, Unix ms by Slurm's clock. */
  job_end_time_ms?: number;
}

/**
 * @param given what the command line says; it wins over the environment
 * @param node_count nodes of the launch: several agents on one host need names of their own
 */
export function nodeIdentity(
  environment: NodeJS.ProcessEnv,
  given: { node?: string; node_index?: number },
  node_count: number,
  host = hostname(),
): NodeIdentity {
  const number = (name: string): number | undefined => {
    const value = environment[name];
    return value !== undefined && /^\d+$/.test(value) ? Number(value) : undefined;
  };
  const node_index = given.node_index ?? number('SLURM_NODEID') ?? number('SLURM_PROCID') ?? 0;
  const own_name = node_count > 1 && environment.SLURM_JOB_ID === undefined ? `${host}-${node_index}` : host;
  const end_s = number('SLURM_JOB_END_TIME');
  const node = safeFileName(given.node ?? environment.SLURMD_NODENAME ?? own_name);
  const identity: NodeIdentity = { node, hostname: host, node_index };
  if (environment.SLURM_JOB_ID !== undefined) {
    identity.job_id = jobIdOf(environment, environment.SLURM_JOB_ID);
    // Slurm sets it from the second run on.
    identity.restart_count = number('SLURM_RESTART_COUNT') ?? 0;
  }
  if (end_s !== undefined) identity.job_end_time_ms = end_s * 1000;
  return identity;
}

/** A task of a job array by the name that people and Slurm's commands know it by: its own number is shown nowhere. */
function jobIdOf(environment: NodeJS.ProcessEnv, number: string): string {
  const { SLURM_ARRAY_JOB_ID: array, SLURM_ARRAY_TASK_ID: task } = environment;
  return array === undefined || task === undefined ? number : `${array}_${task}`;
}

/** Node names become file names. */
function safeFileName(name: string): string {
  return name.replace(/[^A-Za-z0-9._-]/g, '_');
}
