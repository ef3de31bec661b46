/** What is there now: jobs as the runner sees them, agents as their state files say, units from both. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { AgentState, EngineLimits, GivenDevice, SessionState } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { PoolName } from '../../spec/model-pools.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import type { PrefixCacheCounts } from '../../spec/prefix-cache.ts';
import type { DeviceDescription, LoadPhase, ModelState } from '../../spec/session-record.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import type { TurnsReport } from '../../spec/turns-report.ts';
import type { WeightSources } from '../../spec/weight-sources.ts';
import type { JobRunner } from '../runner/job-runner.ts';
import { readAgentState } from '../state/agent-state-file.ts';
import { type DeploymentState, liveLaunches } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import { findingOf, sentenceOf } from '../state/findings.ts';
import type { JobSnapshot } from '../state/job-snapshot.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { isOfGroup } from '../state/pipeline-groups.ts';
import type { LaunchStatus } from './decide.ts';

/** One stage of a replica that is cut. */
export interface StageStatus {
  stage: number;
  /** Operators [begin, end). */
  begin: number;
  end: number;
  node: string;
  device?: string;
  /** Its process is there. */
  runs: boolean;
  /** How its weights were loaded last; absent: not yet, or its agent does not say. */
  loaded?: WeightSources | undefined;
}

/** One replica as it stands. */
export interface UnitStatus {
  unit: string;
  model: string;
  /** It computes prompts, or goes on with answers whose KV it is sent; absent: both. */
  pool?: PoolName | undefined;
  engine: string;
  /** `pending` until its agent speaks of it; `lost` when its job ended unasked, `unloaded` when asked. */
  state: ModelState | 'lost';
  node?: string;
  device?: string;
  /** What was started for it, on which devices, as the agent says; absent where it does not say. */
  given?: { engine: string; devices: GivenDevice[] };
  /** Where its stages are; absent: it is not cut, or its agents have not said. */
  stages?: StageStatus[] | undefined;
  bytes_loaded?: number;
  bytes_total?: number;
  load_bytes_per_s?: number;
  /** What a wrapped engine chose itself; in reports also what the native one was told. */
  limits?: EngineLimits;
  /** Bytes of a native model's weights by their layout, which says whose kernels multiply. */
  layouts?: Readonly<Record<string, number>>;
  /** How the weights of a native model that is not cut were loaded last. */
  loaded?: WeightSources | undefined;
  /** Of a native model whose weights lie in host memory. */
  streamed?: StreamedWeights;
  /** A wrapped engine that waits in host memory while another has their device. */
  asleep?: true | undefined;
  /** Of one that takes such turns. */
  turns?: TurnsReport | undefined;
  /** Of its device worker: answers that moved with their KV, and came so. */
  moves?: MovesReport;
  /** As its engine counts; absent where it does not say. */
  prefix_cache?: PrefixCacheCounts;
  /** While a wrapped engine loads. */
  phase?: LoadPhase;
  /** Unix ms, by the clock of its node. */
  loading_since_ms?: number;
  usual_load_s?: number;
  /** What went wrong and why, on one line; `try`: what to do. */
  error?: string;
  try?: string[];
  /** Where it failed beside others: when it is tried again, Unix ms by the clock of its node. */
  next_try_ms?: number | undefined;
  log_file?: string;
}

export interface LaunchObservation extends LaunchStatus {
  launch_id: string;
  superseded: boolean;
  agents: readonly AgentState[];
  units: UnitStatus[];
}

export interface Observation {
  at_ms: number;
  launches: Map<string, LaunchObservation>;
  /** What is wrong with the place itself: the rendezvous folder is gone, a state file is damaged. */
  problems: string[];
}

/** Jobs as of one poll; asked for less often than state files are read. */
export interface JobPoll {
  at_ms: number;
  /** The scheduler did not answer, or not of each of them: `jobs` are what was known before, or the others. */
  problem?: string;
  jobs: ReadonlyMap<string, JobSnapshot>;
  found: ReadonlyMap<string, string[]>;
}

/**
 * As `pollJobs`; a scheduler that is away for a while is a problem to be shown, not the end of looking:
 * what agents write of themselves can be read all the same.
 * @param before used in its place, as far as there was one.
 */
export async function pollJobsIfReachable(
  states: readonly DeploymentState[],
  store: DeploymentStore,
  runner: JobRunner,
  now_ms: number,
  before?: JobPoll,
): Promise<JobPoll> {
  try {
    return await pollJobs(states, store, runner, now_ms);
  } catch (error) {
    if (!(error instanceof HpcserveError) || error.code !== 'E_SLURM_UNREACHABLE') throw error;
    const reason = [error.message, ...error.because].join(': ');
    return {
      // Of then: state files written since count as news.
      at_ms: before?.at_ms ?? 0,
      jobs: new Map([...(before?.jobs ?? []), ...(runner.pollFiles?.(jobsOf(states, store)) ?? [])]),
      found: new Map(),
      problem: `jobs are shown as last known, for Slurm does not answer: ${reason}`,
    };
  }
}

/** One batched question to the runner about everything of these deployments that is not over. */
export async function pollJobs(
  states: readonly DeploymentState[],
  store: DeploymentStore,
  runner: JobRunner,
  now_ms: number,
): Promise<JobPoll> {
  const live = states.flatMap(liveLaunches);
  const asked = jobsOf(states, store);
  const jobs = asked.length > 0 ? await runner.poll(asked) : new Map<string, JobSnapshot>();
  const found = new Map<string, string[]>();
  for (const launch of live) {
    if (launch.phase !== 'submitting') continue;
    const ids = await runner.find(launch.launch_id, launch.array);
    if (ids) found.set(launch.launch_id, ids);
  }
  const unknown = asked.flatMap(({ job_id }) => (jobs.has(job_id) ? [] : job_id));
  const poll: JobPoll = { at_ms: now_ms, jobs, found };
  if (unknown.length > 0)
    poll.problem = `shown as last known, for Slurm has a word for its state that this version does not know: job ${unknown.join(', ')}`;
  return poll;
}

/** Jobs of everything that is not over. */
function jobsOf(
  states: readonly DeploymentState[],
  store: DeploymentStore,
): { job_id: string; launch_folder: string }[] {
  return states.flatMap((state) =>
    liveLaunches(state).flatMap(({ job_id, launch_id }) =>
      job_id === undefined ? [] : [{ job_id, launch_folder: store.launchFolder(state.name, launch_id) }],
    ),
  );
}

/** Joins the jobs with what the agents wrote; reads only state files. */
export function observe(
  state: DeploymentState,
  store: DeploymentStore,
  poll: JobPoll,
  now_ms: number,
): Observation {
  const problems: string[] = [];
  if (state.desired === 'serving' && !existsSync(store.layout.mesh_folder))
    problems.push(
      `the rendezvous folder ${store.layout.mesh_folder} is gone: agents and gateway cannot find each other`,
    );
  if (poll.problem !== undefined && liveLaunches(state).length > 0) problems.push(poll.problem);
  const seen = state.launches.map((launch): SeenLaunch => {
    const folder = store.launchFolder(state.name, launch.launch_id);
    const job = launch.job_id === undefined ? undefined : (poll.jobs.get(launch.job_id) ?? launch.last);
    const live = isLive(launch, job);
    if (live && launch.phase === 'submitted' && !existsSync(folder))
      problems.push(`the folder of launch ${launch.launch_id} is gone: ${folder}`);
    const agents = readAgentStates(folder, problems).filter((agent) => !isOfEarlierRun(agent, job));
    return { launch, agents, job, live };
  });
  const launches = new Map<string, LaunchObservation>();
  for (const each of seen) {
    const { launch, agents, job } = each;
    const { launch_id, superseded } = launch;
    const units = launch.planned.units.map((unit) =>
      unitStatus(unit, each, poll.at_ms, stageAgents(each, seen)),
    );
    launches.set(launch_id, {
      launch_id,
      superseded,
      agents,
      units,
      serving_units: units.filter((unit) => unit.state === 'serving').map((unit) => unit.unit),
      job,
      found_jobs: poll.found.get(launch_id),
    });
  }
  for (const { launch } of seen) {
    if ((launch.planned.part?.node_index ?? 0) === 0) continue;
    launches.get(launch.launch_id)!.serving_units = servingInGroup(launch, seen, launches);
  }
  return { at_ms: now_ms, launches, problems };
}

/** Neither a launch nor its job is over. */
export function isLive({ phase }: LaunchRecord, job: JobSnapshot | undefined): boolean {
  return phase !== 'ended' && job?.phase !== 'ended' && job?.phase !== 'unknown';
}

interface SeenLaunch {
  launch: LaunchRecord;
  agents: readonly AgentState[];
  job: JobSnapshot | undefined;
  /** Neither it nor its job is over. */
  live: boolean;
}

/** Where the stages of its units may be: on its own nodes, and on those of the other jobs of its pipeline. */
function stageAgents({ launch, agents }: SeenLaunch, seen: readonly SeenLaunch[]): readonly AgentState[] {
  const { part } = launch.planned;
  if (part === undefined) return agents;
  const others = seen.filter((each) => each.launch !== launch && each.live);
  return [...agents, ...others.flatMap((each) => (isOfGroup(each.launch, part.group) ? each.agents : []))];
}

/** Units that the first job of its pipeline serves. */
function servingInGroup(
  { planned: { part } }: LaunchRecord,
  seen: readonly SeenLaunch[],
  launches: ReadonlyMap<string, LaunchObservation>,
): string[] {
  const first = seen.filter(
    ({ launch }) => launch.planned.part?.node_index === 0 && isOfGroup(launch, part?.group),
  );
  return [...new Set(first.flatMap(({ launch }) => launches.get(launch.launch_id)!.serving_units))];
}

/**
 * What an agent said before its job was put back into the queue: the next one has yet to speak. Slurm counts the runs,
 * and tells both; where it does not, times must do, of which the agent's are by the clock of its node.
 */
function isOfEarlierRun(
  { phase, updated_at_ms, restart_count }: AgentState,
  job: JobSnapshot | undefined,
): boolean {
  if (restart_count !== undefined && job?.restart_count !== undefined)
    return restart_count < job.restart_count;
  const over = phase === 'stopped' || phase === 'failed';
  return over && job?.phase === 'running' && updated_at_ms < (job.start_time_ms ?? 0);
}

/** The newest state of each node of a launch: a job that was requeued leaves those of earlier nodes behind. */
function readAgentStates(folder: string, problems: string[]): AgentState[] {
  let names: string[];
  try {
    names = readdirSync(folder).filter((name) => name.endsWith('.state.json') && !name.startsWith('.'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
  const newest = new Map<number, AgentState>();
  for (const name of names) {
    const state = readOrReport(join(folder, name), problems);
    if (!state) continue;
    const other = newest.get(state.node_index);
    if (!other || isLater(state, other)) newest.set(state.node_index, state);
  }
  return [...newest.values()].sort((a, b) => a.node_index - b.node_index);
}

/** Times of two nodes are by two clocks. */
function isLater(state: AgentState, other: AgentState): boolean {
  const { restart_count = 0, started_at_ms } = state;
  const { restart_count: other_count = 0 } = other;
  return restart_count === other_count ? started_at_ms > other.started_at_ms : restart_count > other_count;
}

function readOrReport(path: string, problems: string[]): AgentState | undefined {
  try {
    return readAgentState(path);
  } catch (error) {
    if (!(error instanceof HpcserveError)) throw error;
    problems.push([error.message, ...error.because].join(': '));
    return undefined;
  }
}

/** Agents keep their files while they run and mark them when they stop; a poll may be older than a file. */
const clockDoubt_ms = 10_000;

/** @param around agents of all nodes that may have a stage of it */
function unitStatus(
  unit: UnitSpec,
  { launch, agents, job, live }: SeenLaunch,
  polled_at_ms: number,
  around: readonly AgentState[],
): UnitStatus {
  const base = { unit: unit.unit, model: unit.model.name, pool: unit.pool, engine: unit.engine };
  const agent = agents.find((each) => each.node_index === unit.node_index);
  const session = agent?.sessions.find((each) => servesUnit(each, unit));
  const model = session?.models.find((each) => each.name === unit.model.name);
  const stages = around.flatMap(({ node, sessions }) => heldStages(sessions, unit, node));
  const failed = errorOf(session, unit) ?? around.map((each) => stageError(each, unit)).find(Boolean);
  const finding = findingOf(failed) ?? findingOf(model?.error) ?? findingOf(agent?.error);
  const facts = {
    ...base,
    node: agent?.node,
    device: agent && describeGivenDevice(agent.devices, unit, session?.devices),
    given: session?.devices && { engine: session.engine, devices: devicesOf(agent!, session, unit) },
    stages: stages.length > 0 ? stages : undefined,
    bytes_loaded: model?.bytes_loaded,
    bytes_total: model?.bytes_total,
    load_bytes_per_s: model?.load_bytes_per_s,
    limits: session?.limits,
    layouts: session?.layouts?.[unit.model.name],
    loaded: stages.length > 0 ? undefined : session?.loaded?.[unit.model.name],
    streamed: session?.streamed?.[unit.model.name],
    asleep: session?.asleep === true ? (true as const) : undefined,
    turns: session?.turns,
    moves: session?.moves,
    prefix_cache: session?.prefix_caches?.[unit.model.name],
    phase: model?.phase,
    loading_since_ms: model?.loading_since_ms,
    usual_load_s: model?.usual_load_s,
    error: finding && sentenceOf(finding),
    try: finding?.try,
    next_try_ms: nextTry_ms(around, unit),
    log_file: session?.log_file,
  };
  if (!live) {
    if (launch.phase === 'planned') return { ...facts, state: 'pending' };
    return { ...facts, state: launch.cancel_requested_ms === undefined ? 'lost' : 'unloaded' };
  }
  if (!agent) return { ...base, state: 'pending' };
  const isOfThisRun = agent.restart_count !== undefined && agent.restart_count === job?.restart_count;
  const current =
    job?.phase === 'running' || isOfThisRun || agent.updated_at_ms >= polled_at_ms - clockDoubt_ms;
  if (!current) return { ...base, state: 'pending' };
  if (agent.phase === 'failed') return { ...facts, state: 'failed' };
  if (agent.phase === 'stopped')
    return { ...facts, state: launch.cancel_requested_ms === undefined ? 'lost' : 'unloaded' };
  // Slurm ends the job; an agent that was killed says nothing of it any more.
  if (agent.phase === 'draining' || job?.phase === 'completing') return { ...facts, state: 'draining' };
  return { ...facts, state: model?.state ?? (session?.error ? 'failed' : 'pending') };
}

/** What went wrong with it: of its own model, or of the process that serves it; not of a model beside it. */
function errorOf(session: SessionState | undefined, { model }: UnitSpec): SessionState['error'] {
  if (session?.error === undefined) return undefined;
  const { error, model_errors = {} } = session;
  const ofModel = Object.values(model_errors).some((each) => isDeepStrictEqual(each, error));
  return model_errors[model.name] ?? (ofModel ? undefined : error);
}

/** Of it or of a stage of it. */
function nextTry_ms(around: readonly AgentState[], { unit }: UnitSpec): number | undefined {
  const tries = around.flatMap(({ sessions }) => sessions.map((each) => each.next_tries_ms?.[unit]));
  return tries.find((at_ms) => at_ms !== undefined);
}

/** Why a stage of it failed, on whichever device of a node. */
function stageError({ sessions }: AgentState, { unit, model }: UnitSpec): SessionState['error'] {
  const held = sessions.filter(({ stages = [] }) => stages.some((stage) => stage.unit === unit));
  return held.map(({ model_errors }) => model_errors?.[model.name]).find(Boolean);
}

/** Of a unit that is cut, the devices of all its stages on that node; else those of the process that serves it. */
function devicesOf({ sessions }: AgentState, { devices }: SessionState, { unit }: UnitSpec): GivenDevice[] {
  const staged = sessions.flatMap((each) => {
    const stage = each.stages?.find((held) => held.unit === unit)?.stage;
    return stage === undefined ? [] : [{ stage, devices: each.devices ?? [] }];
  });
  if (staged.length === 0) return devices ?? [];
  return staged.sort((a, b) => a.stage - b.stage).flatMap((each) => each.devices);
}

/** Stages of a unit that processes of a node have, which may be started again. */
function heldStages(sessions: readonly SessionState[], { unit }: UnitSpec, node: string): StageStatus[] {
  return sessions.flatMap(({ stages = [], pid, devices = [], loaded }) =>
    stages
      .filter((held) => held.unit === unit)
      .map(({ model, stage, begin, end }): StageStatus => {
        const [device] = devices;
        const status: StageStatus = { stage, begin, end, node, runs: pid !== undefined };
        status.loaded = loaded?.[model];
        if (device) status.device = `${device.kind} ${device.index}`;
        return status;
      }),
  );
}

/** Native units of one device share a device worker, whose session is named after the first of them. */
function servesUnit({ unit, units }: SessionState, { unit: wanted }: UnitSpec): boolean {
  return units?.includes(wanted) ?? unit === wanted;
}

function describeGivenDevice(
  devices: readonly DeviceDescription[],
  unit: UnitSpec,
  given: readonly DeviceDescription[] | undefined,
): string {
  if (given) return describeDevices(given).join(', ');
  const ofKind = devices.filter((device) => device.kind === unit.device_kind);
  const used = ofKind.slice(unit.first_device, unit.first_device + Math.max(1, unit.device_count));
  return describeDevices(used.length > 0 ? used : devices.slice(0, 1)).join(', ') || unit.device_kind;
}

/** `2× A100-40GB (emulated on CPU)`. */
export function describeDevices(devices: readonly DeviceDescription[]): string[] {
  const counts = new Map<string, number>();
  for (const device of devices) {
    const description = `${device.model}${device.emulated ? ` (emulated on ${device.emulated.toUpperCase()})` : ''}`;
    counts.set(description, (counts.get(description) ?? 0) + 1);
  }
  return [...counts].map(([description, count]) => (count > 1 ? `${count}× ${description}` : description));
}
