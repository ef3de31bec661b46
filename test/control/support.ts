/** A deployment, a site, and a runner whose jobs do what a test says. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { JobRunner, PreparedLaunch, RenderedScript } from '../../control/runner/job-runner.ts';
import type { DeploymentState } from '../../control/state/deployment-state.ts';
import { DeploymentStore } from '../../control/state/deployment-store.ts';
import type { JobSnapshot } from '../../control/state/job-snapshot.ts';
import type { EndedLaunch, LaunchRecord } from '../../control/state/launch-record.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { deploymentSchema } from '../../spec/model-yaml.ts';
import { type PlannedLaunch, unitsOfJob } from '../../spec/plan.ts';
import { type SiteConfig, siteSchema } from '../../spec/site.ts';
import { stateLayout } from '../../spec/state-layout.ts';

export const site: SiteConfig = siteSchema.parse({ name: 'local', kind: 'local' });

const spec = deploymentSchema.parse({
  name: 'demo',
  models: [{ name: 'm', source: '/m.gguf', replicas: 2 }],
});

export function plannedLaunch(unit: string): PlannedLaunch {
  return {
    node_kind: 'cpu',
    tier: 'stable',
    partitions: [],
    node_count: 1,
    devices_per_node: { kind: 'cpu', model: 'CPU', count: 0, memory_bytes: 1e9 },
    cpus_per_node: 1,
    memory_bytes_per_node: 1e9,
    units: [
      {
        unit,
        node_index: 0,
        engine: 'native',
        model_path: '/m.gguf',
        model: spec.models[0]!,
        device_kind: 'cpu',
        device_count: 1,
        tensor: 1,
        pipeline: 1,
        first_device: 0,
        threads: 1,
        context_tokens: 1024,
        kv_tokens: 1024,
        weight_bytes: 1,
      },
    ],
  };
}

/** The jobs of a replica whose stages are divided over so many. */
export function partsOf(unit: string, jobs: number, lenders?: 'scavenger'): PlannedLaunch[] {
  const { units, ...launch } = plannedLaunch(unit);
  const stages = Array.from({ length: jobs }, (_, stage) => ({ begin: 2 * stage, end: 2 * stage + 2 }));
  const cut = units.map((each) => {
    const parallel = { ...each.model.parallel, jobs, ...{ lenders } };
    return { ...each, model: { ...each.model, parallel }, pipeline: jobs, nodes: jobs, stages };
  });
  return Array.from({ length: jobs }, (_, node_index) => ({
    ...launch,
    units: node_index === 0 ? cut : [],
    part: { group: unit, node_index, jobs, lends_to: node_index === 0 ? [] : cut },
  }));
}

/** What a test says of a launch; what its phase has besides is filled in. */
export type LaunchFacts = Partial<Omit<EndedLaunch, 'phase'>> & { phase?: LaunchRecord['phase'] };

export function launchRecord(id: number, facts: LaunchFacts = {}): LaunchRecord {
  const { phase = 'planned' } = facts;
  const ofPhase = {
    planned: {},
    submitting: { submitting_since_ms: 0 },
    submitted: { submitting_since_ms: 0, job_id: String(id) },
    ended: { ended_at_ms: 0, last: { job_id: String(id), phase: 'ended', state: 'COMPLETED' } },
  } as const;
  const common = {
    launch_id: id.toString(16).padStart(16, '0'),
    fingerprint: `f${id}`,
    planned: plannedLaunch(`m-${id}`),
    superseded: false,
  };
  return { ...common, ...ofPhase[phase], ...facts, phase } as LaunchRecord;
}

export function deploymentState(
  launches: LaunchRecord[],
  facts: Partial<DeploymentState> = {},
): DeploymentState {
  return {
    format: 1,
    name: 'demo',
    site: 'local',
    owner: 'someone',
    generation: 1,
    spec_digest: 'd',
    spec_file: '/model.yaml',
    spec,
    desired: 'serving',
    created_at_ms: 0,
    updated_at_ms: 0,
    models: [],
    launches,
    ...facts,
  };
}

/** A store in a folder of its own, removed by `dispose`. */
export function temporaryStore(): { store: DeploymentStore; folder: string; dispose: () => void } {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-control-'));
  return {
    store: new DeploymentStore(stateLayout(folder, 'local')),
    folder,
    // A keeper may still write into it.
    dispose: () => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }),
  };
}

/** Jobs in memory; a test sets their states and makes submissions fail or their answers get lost. */
export class ScriptedRunner implements JobRunner {
  readonly kind = 'local';
  readonly poll_interval_ms = 0;
  readonly settle_ms = 15_000;
  readonly jobs = new Map<string, { launch_id: string; snapshot: JobSnapshot }>();
  readonly submitted: string[] = [];
  readonly cancelled: { job_id: string; force: boolean }[] = [];
  /** Called instead of answering a submission: before the job exists, or after. */
  failBefore: (() => Error) | undefined;
  failAfter: (() => Error) | undefined;
  /** Thrown instead of an answer to a poll, or to a cancellation. */
  away: Error | undefined;
  deaf: Error | undefined;
  #next = 1;

  /** Each text is another, so that one that was rendered again is seen. */
  renders = 0;
  render(): RenderedScript {
    return { text: `#!/bin/sh\n# ${++this.renders}\n`, directives: [] };
  }

  /** Submissions that are allowed at a time. */
  admitted = Number.POSITIVE_INFINITY;
  async admit(count: number): Promise<number> {
    return Math.min(count, this.admitted);
  }

  /** As they were handed over. */
  readonly scripts: RenderedScript[] = [];
  async submit(prepared: PreparedLaunch, script: RenderedScript): Promise<{ job_id: string; where: string }> {
    this.scripts.push(script);
    if (this.failBefore) throw this.failBefore();
    const job_id = String(this.#next++);
    this.submitted.push(prepared.launch.launch_id);
    const snapshot: JobSnapshot = { job_id, phase: 'running', state: 'RUNNING', nodes: 'n1' };
    this.jobs.set(job_id, { launch_id: prepared.launch.launch_id, snapshot });
    if (this.failAfter) throw this.failAfter();
    return { job_id, where: 'somewhere' };
  }

  async find(launchId: string): Promise<string[]> {
    return [...this.jobs].filter(([, job]) => job.launch_id === launchId).map(([id]) => id);
  }

  async poll(jobs: readonly { job_id: string }[]): Promise<Map<string, JobSnapshot>> {
    if (this.away) throw this.away;
    return new Map(
      jobs.map(({ job_id }) => [
        job_id,
        this.jobs.get(job_id)?.snapshot ?? { job_id, phase: 'unknown', state: 'UNKNOWN' },
      ]),
    );
  }

  async cancel(job: { job_id: string }, options: { force?: boolean } = {}): Promise<void> {
    if (this.deaf) throw this.deaf;
    this.cancelled.push({ job_id: job.job_id, force: options.force === true });
    this.end(job.job_id, { state: 'CANCELLED' });
  }

  end(job_id: string, how: Partial<JobSnapshot>): void {
    const job = this.jobs.get(job_id);
    if (job) job.snapshot = { job_id, phase: 'ended', state: 'COMPLETED', exit_code: 0, ...how };
  }
}

/** Writes the state file an agent of this launch would write. */
export function writeAgentState(
  store: DeploymentStore,
  launch: LaunchRecord,
  facts: Partial<AgentState> & { model?: 'loading' | 'serving' | 'failed' } = {},
): void {
  const { model = 'serving', ...rest } = facts;
  const [unit] = unitsOfJob(launch.planned);
  const state: AgentState = {
    format: 1,
    launch_id: launch.launch_id,
    deployment: 'demo',
    node: 'n1',
    hostname: 'n1',
    node_index: 0,
    pid: 1,
    phase: 'serving',
    started_at_ms: 1,
    updated_at_ms: Date.now(),
    devices: [{ kind: 'cpu', model: 'CPU', memory_bytes: 1e9, isa: [] }],
    sessions: [
      {
        session_id: 's',
        role: 'device-worker',
        unit: unit!.unit,
        engine: 'native',
        models: [
          {
            name: 'm',
            aliases: [],
            state: model,
            precision: 'Q8_0',
            context_tokens: 1024,
            bytes_loaded: 50,
            bytes_total: 100,
            ...(model === 'failed' ? { error: 'the weights are cut off' } : {}),
          },
        ],
      },
    ],
    ...rest,
  };
  writeFileSync(join(store.launchFolder('demo', launch.launch_id), 'n1.state.json'), JSON.stringify(state));
}
