import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { joinedNodeFiles } from '../../spec/joined-node.ts';
import type { PlannedLaunch } from '../../spec/plan.ts';
import { launchFiles, type StateLayout } from '../../spec/state-layout.ts';
import type { JobRun } from '../state/job-runs.ts';
import type { ArrayTask, JobSnapshot } from '../state/job-snapshot.ts';
import { joinedJob, joinedJobId } from '../state/joined-job-id.ts';
import {
  inspectJoinedNodes,
  isJoinedKind,
  type JoinedNodeStatus,
  readOrderStatus,
} from '../state/joined-nodes.ts';
import { describeAgentExit } from './agent-end.ts';
import type { JobArrays, JobRunner, PreparedLaunch, RenderedScript, Submitted } from './job-runner.ts';

/**
 * Launches that were planned onto a joined node go to that node; all others to the runner of the site. A joined node
 * runs one launch at a time: others wait for it as in a queue.
 */
export class JoinedNodeRunner implements JobRunner {
  readonly #site: JobRunner;
  readonly #layout: StateLayout;

  constructor(site: JobRunner, layout: StateLayout) {
    this.#site = site;
    this.#layout = layout;
  }

  get kind(): JobRunner['kind'] {
    return this.#site.kind;
  }

  get poll_interval_ms(): number {
    return this.#site.poll_interval_ms;
  }

  get settle_ms(): number {
    return this.#site.settle_ms;
  }

  render(prepared: PreparedLaunch): RenderedScript {
    if (!isJoinedKind(prepared.planned.node_kind)) return this.#site.render(prepared);
    const text = `#!/bin/sh\n# No script: the process of \`hpcserve run\` on ${prepared.planned.node_kind} is told to run ${launchFiles.launch} of this folder.\n`;
    return { text, directives: [] };
  }

  async admit(count: number, jobs?: number): Promise<number> {
    return this.#site.admit(count, jobs);
  }

  /** Of the site's jobs alone: a joined node takes its launches one after the other. */
  get arrays(): JobArrays | undefined {
    const { arrays } = this.#site;
    return (
      arrays && {
        groups: async (planned, offline) => {
          const jobs = [...planned.keys()].filter((index) => !isJoinedKind(planned[index]!.node_kind));
          const groups = await arrays.groups(
            jobs.map((index) => planned[index]!),
            offline,
          );
          return groups.map((group) => group.map((at) => jobs[at]!));
        },
        render: (array) => arrays.render(array),
        submit: (array, script) => arrays.submit(array, script),
      }
    );
  }

  async submit(prepared: PreparedLaunch, script: RenderedScript): Promise<Submitted> {
    const { node_kind } = prepared.planned;
    if (!isJoinedKind(node_kind)) return this.#site.submit(prepared, script);
    const found = this.#nodes().find(({ node, there }) => there && node.node_kind === node_kind);
    if (!found)
      throw new HpcserveError('E_JOINED_NODE_GONE', {
        what: `${node_kind} is gone`,
        because: 'no `hpcserve run` on that node answers any more: its allocation ended',
      });
    const { launch_id } = prepared.launch;
    writeFileAtomically(
      join(found.folder, joinedNodeFiles.orders, joinedNodeFiles.order(launch_id)),
      `${JSON.stringify({ format: 1, launch_file: prepared.launch_file })}\n`,
    );
    return { job_id: joinedJobId(found.node.id, launch_id), where: `joined node ${found.node.node}` };
  }

  async find(launchId: string, array?: ArrayTask): Promise<string[] | undefined> {
    const given = this.#nodes().filter(({ folder }) =>
      existsSync(join(folder, joinedNodeFiles.orders, joinedNodeFiles.order(launchId))),
    );
    if (given.length > 0) return given.map(({ node }) => joinedJobId(node.id, launchId));
    return this.#site.find(launchId, array);
  }

  freeCores(planned: PlannedLaunch): number[] | undefined {
    return isJoinedKind(planned.node_kind) ? undefined : this.#site.freeCores?.(planned);
  }

  async drainTime_s(planned: PlannedLaunch): Promise<number | undefined> {
    return isJoinedKind(planned.node_kind) ? undefined : this.#site.drainTime_s?.(planned);
  }

  async poll(jobs: readonly { job_id: string; launch_folder: string }[]): Promise<Map<string, JobSnapshot>> {
    const others = jobs.filter(({ job_id }) => joinedJob(job_id) === undefined);
    const answers = others.length > 0 ? await this.#site.poll(others) : new Map<string, JobSnapshot>();
    return new Map([...answers, ...this.pollFiles(jobs)]);
  }

  async accountedRuns(job_ids: readonly string[]): Promise<Map<string, JobRun[]>> {
    const others = job_ids.filter((job_id) => joinedJob(job_id) === undefined);
    return (await this.#site.accountedRuns?.(others)) ?? new Map();
  }

  pollFiles(jobs: readonly { job_id: string }[]): Map<string, JobSnapshot> {
    const joined = jobs.flatMap(({ job_id }) => {
      const parts = joinedJob(job_id);
      return parts ? [{ job_id, parts }] : [];
    });
    const nodes = joined.length > 0 ? this.#nodes() : [];
    return new Map(joined.map(({ job_id, parts }) => [job_id, snapshot(job_id, parts, nodes)]));
  }

  async cancel(
    job: { job_id: string; launch_folder: string },
    options: { force?: boolean } = {},
  ): Promise<void> {
    const joined = joinedJob(job.job_id);
    if (!joined) return this.#site.cancel(job, options);
    const found = this.#nodes().find(({ node }) => node.id === joined.node);
    if (!found) return;
    // Also to one that is not there: where it was only taken for gone, it reads this when it is back.
    writeFileAtomically(
      join(found.folder, joinedNodeFiles.orders, joinedNodeFiles.cancel(joined.launch_id)),
      options.force ? 'SIGKILL' : 'SIGTERM',
    );
  }

  #nodes(): JoinedNodeStatus[] {
    return inspectJoinedNodes(this.#layout);
  }
}

function snapshot(
  job_id: string,
  { node: id, launch_id }: { node: string; launch_id: string },
  nodes: readonly JoinedNodeStatus[],
): JobSnapshot {
  const found = nodes.find(({ node }) => node.id === id);
  if (!found) return { job_id, phase: 'unknown', state: 'UNKNOWN' };
  const { node, there, folder } = found;
  const status = readOrderStatus(folder, launch_id);
  const base = {
    job_id,
    nodes: node.node,
    start_time_ms: status?.started_at_ms,
    end_time_limit_ms: node.job_end_time_ms,
  };
  if (status?.phase === 'ended') {
    const code = status.exit_code;
    const reason = status.reason ?? (code ? describeAgentExit(code) : undefined);
    return {
      ...base,
      phase: 'ended',
      ended_at_ms: status.ended_at_ms,
      state: code === 0 ? 'COMPLETED' : 'FAILED',
      exit_code: code,
      reason,
    };
  }
  if (!there)
    return {
      ...base,
      phase: 'ended',
      presumed: true,
      state: 'LEFT',
      reason: `${node.node_kind} left without a word: its allocation ended or its process was killed`,
    };
  if (status) return { ...base, job_number: node.job_id, phase: 'running', state: 'RUNNING' };
  const explanation = `${node.node_kind} takes it up when what runs there has ended`;
  return { ...base, phase: 'pending', state: 'PENDING', pending: { reason: 'JoinedNode', explanation } };
}
