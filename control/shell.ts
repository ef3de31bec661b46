/** Where a person's shell goes: into the job of a deployment, beside what runs there. */
import { readHostlist } from '../slurm/hostlist.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { nearest } from '../spec/nearest.ts';
import { pollJobs } from './reconcile/observe.ts';
import type { Operations } from './runner/operations.ts';
import { liveLaunches } from './state/deployment-state.ts';
import { isJoinedKind } from './state/joined-nodes.ts';

/** A node of a job that runs now. */
export interface ShellPlace {
  deployment: string;
  launch_id: string;
  job_id: string;
  /** As `JobSnapshot.job_number`. */
  job_number?: string;
  node: string;
  /** Units of the launch on that node. */
  units: string[];
}

/** Every node that jobs of this site's deployments have now. */
export async function shellPlaces(operations: Operations): Promise<ShellPlace[]> {
  const { loaded, store, runner, now_ms } = operations;
  const places: ShellPlace[] = [];
  const { states } = store.loadAll();
  const { jobs } = await pollJobs(states, store, runner, now_ms());
  for (const state of states) {
    const deployment = state.name;
    for (const { job_id, launch_id, planned } of liveLaunches(state)) {
      const job = job_id === undefined ? undefined : jobs.get(job_id);
      if (job_id === undefined || job?.phase !== 'running') continue;
      // Who brought a node along without a job of Slurm has the only way to it.
      const joined = isJoinedKind(planned.node_kind);
      if (joined && (job.job_number === undefined || loaded.site.kind !== 'slurm')) continue;
      for (const [index, node] of (readHostlist(job.nodes ?? '') ?? []).entries()) {
        const units = planned.units.filter(({ node_index }) => node_index === index);
        places.push({
          deployment,
          launch_id,
          job_id,
          job_number: job.job_number,
          node,
          units: units.map(({ unit }) => unit),
        });
      }
    }
  }
  return places;
}

/**
 * The place that a person means.
 * @param target a deployment or a node. A node with several jobs is entered through the one named by `unit`, else
 *   through the first.
 * @throws E_DEPLOYMENT_UNKNOWN, E_SHELL_PLACE
 */
export function choosePlace(
  places: readonly ShellPlace[],
  deployments: readonly string[],
  target: string,
  { node, unit }: { node?: string; unit?: string },
): ShellPlace {
  const named = places.filter((place) => place.deployment === target || place.node === target);
  const names = [...new Set([...deployments, ...places.map((place) => place.node)])];
  if (named.length === 0 && deployments.includes(target))
    throw new HpcserveError('E_SHELL_PLACE', {
      what: `no job of ${target} runs now`,
      because: 'a shell on a node needs a job there',
      try: `hpcserve status ${target}`,
    });
  if (named.length === 0) {
    const close = nearest(target, names);
    throw new HpcserveError('E_SHELL_PLACE', {
      what: `there is neither a deployment nor a node of one with the name ${target}`,
      because: names.length === 0 ? 'there is no deployment' : `there are ${names.join(', ')}`,
      try: close && `hpcserve shell ${close}`,
    });
  }
  const chosen = named.find(
    (place) =>
      (node === undefined || place.node === node) && (unit === undefined || place.units.includes(unit)),
  );
  if (chosen) return chosen;
  throw new HpcserveError('E_SHELL_PLACE', {
    what: `${target} has nothing there: ${[node && `node ${node}`, unit && `unit ${unit}`].filter(Boolean).join(', ')}`,
    because: `it runs on ${named.map((place) => `${place.node} (${place.units.join(', ') || 'no unit'})`).join(', ')}`,
  });
}

/**
 * The command that runs another one in a job, on one of its nodes, beside what runs there: `--overlap` shares the
 * job's cores, memory and GPUs with it (Slurm 20.11 and later).
 */
export function stepCommand(
  { job_id, job_number, node }: ShellPlace,
  command: readonly string[],
  pty: boolean,
): string[] {
  return [
    'srun',
    `--jobid=${job_number ?? job_id}`,
    '--overlap',
    '--nodes=1',
    '--ntasks=1',
    `--nodelist=${node}`,
    ...(pty ? ['--pty'] : ['--unbuffered']),
    '--',
    ...command,
  ];
}
