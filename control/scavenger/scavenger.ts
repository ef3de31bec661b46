import { setTimeout as sleep } from 'node:timers/promises';
import {
  type IdleHole,
  type ScavengeDecision,
  type ScavengedJob,
  scavenge,
  withoutJobs,
} from '../../solver/scavenging/scavenge.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import { parseSlurmDuration_s } from '../../spec/slurm-types.ts';
import { liveFacts } from '../plan/live-facts.ts';
import type { Observation } from '../reconcile/observe.ts';
import { Reconciler } from '../reconcile/reconciler.ts';
import { type Operations, type OperationsInput, openOperations } from '../runner/operations.ts';
import { describeLaunch } from '../runner/prepare-launch.ts';
import type { SlurmRunner } from '../runner/slurm-runner.ts';
import {
  type DeploymentState,
  forgetOldest,
  isKept,
  replaceLaunches,
  scavengedLaunches,
  withLaunches,
} from '../state/deployment-state.ts';
import { lockWait_ms } from '../state/deployment-store.ts';
import { digestOf } from '../state/digest.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { newLaunch, superseded } from '../state/launch-transitions.ts';
import {
  devicesOf,
  loadTime_s,
  preemptionsByKind,
  readHistory,
  recordIdle,
  recordLaunch,
  type ScavengerHistory,
  writeHistory,
} from './history.ts';
import { idleDevices, idleHoles, scavengerKinds } from './idle-holes.ts';
import { load_s_default, type ModelShapes, replicaShape, type Shape, Shapes } from './shapes.ts';

export interface ScavengerOptions {
  input: Omit<OperationsInput, 'emit' | 'overrides' | 'overrideSource'>;
  emit: (event: ProgressEvent) => void;
}

/** A model that wants replicas on idle nodes, and those it has. */
interface Wish {
  state: DeploymentState;
  model: ModelSpec;
  shapes: readonly Shape[];
  jobs: ScavengedJob[];
}

export interface ScavengerRound {
  submitted: number;
  withdrawn: number;
  /** Replicas on idle nodes after this round, those that wait included. */
  replicas: number;
  held_back: string[];
}

/** A start that Slurm expects within this time is one in an idle hole. */
const soon_ms = 90_000;

/**
 * `hpcserve backfill`: puts replicas on idle preemptible nodes, beyond those that deployments have, and withdraws what
 * nobody wants any more. What to submit is decided by `solver/scavenging`; the reconciler submits, follows and ends it
 * as it does with any other launch.
 */
export class Scavenger {
  readonly #options: ScavengerOptions;
  readonly #operations: Operations;
  readonly #runner: SlurmRunner;
  readonly #shapes: Shapes;
  readonly #reconcilers = new Map<string, { reconciler: Reconciler; settings_json: string }>();
  readonly #said = new Map<string, string>();

  /** @throws E_BACKFILL_NOWHERE where the site has no preemptible nodes */
  constructor(options: ScavengerOptions) {
    this.#options = options;
    this.#operations = openOperations({ ...options.input, emit: options.emit });
    const { slurm_runner: runner, loaded } = this.#operations;
    if (!runner || scavengerKinds(loaded.site).length === 0)
      throw new HpcserveError('E_BACKFILL_NOWHERE', {
        what: `${loaded.site.name} has no nodes of tier scavenger`,
        because:
          loaded.site.kind === 'local'
            ? 'on a local site nothing is preempted'
            : `no node kind of ${loaded.path} says tier: scavenger`,
      });
    this.#runner = runner;
    this.#shapes = new Shapes(this.#operations);
  }

  /** Looks and acts until the signal aborts. What goes wrong is said once, and the next round tries again. */
  async run(): Promise<void> {
    const { signal, now_ms, loaded } = this.#operations;
    while (!signal.aborted) {
      try {
        await this.round();
        this.#said.delete('round');
      } catch (thrown) {
        if (signal.aborted) return;
        const error = HpcserveError.from(thrown);
        const message = `${[error.message, ...error.because].join(': ')} [${error.code}]`;
        if (this.#said.get('round') !== message)
          this.#options.emit({ at_ms: now_ms(), kind: 'warning', message });
        this.#said.set('round', message);
      }
      await sleep(loaded.site.scavenging.interval_s * 1000, undefined, { signal }).catch((error: unknown) => {
        if (!signal.aborted) throw error;
      });
    }
  }

  async round(): Promise<ScavengerRound> {
    const { store, now_ms, loaded, slurm } = this.#operations;
    const seen = new Map<string, { state: DeploymentState; observation: Observation }>();
    const history = readHistory(store.layout);
    for (const name of store.list()) {
      const state = store.load(name);
      if (!state || !concerns(state)) continue;
      const pass = await this.#reconcilerOf(state).pass(name);
      seen.set(name, pass);
      for (const launch of pass.state.launches)
        if (launch.planned.scavenged)
          recordLaunch(history, name, launch, pass.observation.launches.get(launch.launch_id), now_ms());
    }
    const live = (await liveFacts(this.#operations))!;
    const [starts, reservations, room] = await Promise.all([
      slurm!.expectedStarts(),
      slurm!.reservations(),
      this.#runner.room(),
    ]);
    const ours = new Set(
      [...seen.values()].flatMap(({ state }) => state.launches.map(({ job_id }) => job_id ?? '')),
    );
    const running = [...seen.values()].flatMap(({ state }) =>
      scavengedLaunches(state).filter(({ last }) => last?.phase === 'running'),
    );
    recordIdle(
      history,
      idleDevices(loaded.site, live) + running.reduce((sum, launch) => sum + devicesOf(launch), 0),
      now_ms(),
    );
    writeHistory(store.layout, history, now_ms());
    const holes = idleHoles(
      loaded.site,
      live,
      { starts: starts.filter(({ job_id }) => !ours.has(job_id)), reservations },
      now_ms(),
    );
    return this.#decide(await this.#wishes(seen), holes, history, room);
  }

  /** One model after the other: the one that has the least of what it wants chooses first. */
  async #decide(
    { wishes, because }: { wishes: Wish[]; because: string[] },
    all: readonly IdleHole[],
    history: ScavengerHistory,
    room: { jobs: number; submissions: number },
  ): Promise<ScavengerRound> {
    const { loaded, now_ms } = this.#operations;
    const { scavenging } = loaded.site;
    const round: ScavengerRound = { submitted: 0, withdrawn: 0, replicas: 0, held_back: [...because] };
    const shapesOf = ({ shapes, model }: Wish) =>
      shapes.map((shape) =>
        replicaShape(shape, loadTime_s(history, model.name, shape.node_kind) ?? load_s_default),
      );
    let left = scavenging.jobs_max - wishes.reduce((sum, { jobs }) => sum + jobs.length, 0);
    let { jobs: jobs_room, submissions: submissions_room } = room;
    let holes: readonly IdleHole[] = all;
    const replicas = (jobs: readonly ScavengedJob[]): number =>
      jobs.reduce((sum, job) => sum + (job.replicas ?? 1), 0);
    const share = ({ jobs, model }: Wish): number => replicas(jobs) / Math.max(1, model.scavenger.replicas);
    for (const wish of [...wishes].sort((a, b) => share(a) - share(b))) {
      const shapes = shapesOf(wish);
      const others = wishes.filter((each) => each !== wish);
      const taken = others.flatMap((other) =>
        other.jobs
          .filter(({ phase, held }) => phase === 'waiting' && !held)
          .map((job) => shapesOf(other).find(({ shape }) => shape === job.shape)),
      );
      const decision = scavenge({
        now_s: now_ms() / 1000,
        holes: withoutJobs(holes, taken),
        shapes,
        jobs: wish.jobs,
        history: preemptionsByKind(history, now_ms()),
        limits: {
          jobs_room: Math.min(jobs_room, Math.max(0, left)),
          submissions_room,
          replicas_max: wish.model.scavenger.replicas,
          waiting_max: scavenging.waiting_max,
          walltime_max_s: this.#walltime_s(),
          start_share_max: scavenging.start_share_max,
          restarts_max: scavenging.requeues_max,
        },
      });
      const submit = await this.#confirmed(wish, decision, round.held_back);
      await this.#carryOut(wish, submit, decision.withdraw);
      round.submitted += submit.length;
      round.withdrawn += decision.withdraw.length;
      const of = (name: string): number => shapes.find(({ shape }) => shape === name)?.replicas ?? 1;
      const stay = wish.jobs.filter(({ id }) => !decision.withdraw.some((each) => each.id === id));
      round.replicas += replicas(stay) + submit.reduce((sum, { shape }) => sum + of(shape), 0);
      round.held_back.push(...decision.held_back);
      left -= submit.length - decision.withdraw.length;
      jobs_room -= submit.length;
      submissions_room -= submit.length;
      holes = withoutJobs(
        holes,
        submit
          .filter((each) => each.for === 'hole')
          .map((each) => shapes.find((s) => s.shape === each.shape)),
      );
    }
    return round;
  }

  #walltime_s(): number {
    const { site } = this.#operations.loaded;
    const seconds = (value: string | number | undefined): number =>
      (value === undefined ? undefined : parseSlurmDuration_s(String(value))) ?? Number.POSITIVE_INFINITY;
    return Math.min(
      seconds(site.scavenging.walltime),
      ...scavengerKinds(site).map(({ max_time }) => seconds(max_time)),
    );
  }

  async #wishes(
    seen: ReadonlyMap<string, { state: DeploymentState; observation: Observation }>,
  ): Promise<{ wishes: Wish[]; because: string[] }> {
    const wishes: Wish[] = [];
    const because: string[] = [];
    for (const { state } of seen.values()) {
      // What `deploy` still follows may yet be taken back.
      if (!isKept(state)) continue;
      for (const model of state.spec.models) {
        const launches = scavengedLaunches(state).filter(
          (launch) => launch.phase !== 'ended' && launch.planned.units[0]?.model.name === model.name,
        );
        if (model.scavenger.replicas === 0 && launches.length === 0) continue;
        const made: ModelShapes = await this.#shapes.of(state, model);
        because.push(...made.because);
        wishes.push({
          state,
          model,
          shapes: made.shapes,
          jobs: launches.map((each) => jobOf(state, model, each)),
        });
      }
    }
    return { wishes, because };
  }

  /** Slurm itself is asked once a shape whether such a job would start soon: `sbatch --test-only`. */
  async #confirmed(
    { state, shapes }: Wish,
    { submit }: ScavengeDecision,
    held_back: string[],
  ): Promise<ScavengeDecision['submit']> {
    const { loaded, store, facts, now_ms } = this.#operations;
    const refused = new Set<string>();
    for (const name of new Set(submit.filter((each) => each.for === 'hole').map(({ shape }) => shape))) {
      const first = submit.find(({ shape }) => shape === name)!;
      const launch = this.#launchOf(shapes, first);
      const prepared = describeLaunch(state.name, '0'.repeat(16), launch, loaded.site, store, facts);
      try {
        const { start_time_ms } = await this.#operationsOf(state).slurm_runner!.estimateStart(prepared);
        if (start_time_ms - now_ms() <= soon_ms) continue;
        held_back.push(`${name}: Slurm would start it at ${new Date(start_time_ms).toISOString()} only`);
      } catch (error) {
        if (!(error instanceof HpcserveError) || error.code === 'E_SLURM_UNREACHABLE') throw error;
        held_back.push(`${name}: ${[error.message, ...error.because].join(': ')} [${error.code}]`);
        refused.add(name);
      }
    }
    // One that starts later still waits for the next hole; one that is refused never starts.
    return submit.filter(({ shape }) => !refused.has(shape));
  }

  #launchOf(
    shapes: readonly Shape[],
    submission: ScavengeDecision['submit'][number],
  ): LaunchRecord['planned'] {
    const shape = shapes.find(({ name }) => name === submission.shape)!;
    return {
      ...shape.launch,
      time_limit_s: submission.time_limit_s,
      scavenged: { time_min_s: submission.time_min_s },
    };
  }

  /** Written down before anything is submitted, so that a round that dies in between submits nothing twice. */
  async #carryOut(
    { state: { name }, shapes }: Wish,
    submit: ScavengeDecision['submit'],
    withdraw: ScavengeDecision['withdraw'],
  ): Promise<void> {
    const { store, now_ms } = this.#operations;
    const over = scavengedLaunches(store.require(name)).some(({ phase }) => phase === 'ended');
    if (submit.length === 0 && withdraw.length === 0 && !over) return;
    const writer = { ...this.#operations, lock_wait_ms: lockWait_ms.service };
    const told: Extract<ProgressEvent, { kind: 'scavenged' }>[] = [];
    const tell = (what: 'submit' | 'withdraw', launch_id: string, because: string): number =>
      told.push({ at_ms: now_ms(), kind: 'scavenged', deployment: name, do: what, launch_id, because });
    await store.locked(name, writer, async (record) => {
      let state = withoutEnded(record.state);
      if (isKept(state)) {
        const leaving = withdraw.filter(({ id }) => state.launches.some(({ launch_id }) => launch_id === id));
        const added = submit.map((submission, index) => {
          const planned = this.#launchOf(shapes, submission);
          const launch_id = digestOf({ name, planned, index, at_ms: now_ms() }).slice(0, 16);
          const { fingerprint } = shapes.find((shape) => shape.name === submission.shape)!;
          return newLaunch(launch_id, fingerprint, planned);
        });
        const ids = new Set(leaving.map(({ id }) => id));
        state = withLaunches(state, (launch) => (ids.has(launch.launch_id) ? superseded(launch) : launch));
        state = { ...state, launches: [...state.launches, ...added] };
        for (const { id, because } of leaving) tell('withdraw', id, because);
        for (const [index, { launch_id }] of added.entries())
          tell(
            'submit',
            launch_id,
            submit[index]!.for === 'hole' ? 'there are idle nodes' : 'it waits for the next idle nodes',
          );
      }
      record.save(forgetOldest(state));
    });
    for (const event of told) this.#options.emit(event);
    await this.#reconcilerOf(store.require(name)).pass(name);
  }

  #operationsOf(state: DeploymentState): Operations {
    return openOperations({
      ...this.#options.input,
      emit: this.#options.emit,
      overrides: state.spec.slurm,
    });
  }

  #reconcilerOf(state: DeploymentState): Reconciler {
    const settings_json = JSON.stringify(state.spec.slurm);
    const known = this.#reconcilers.get(state.name);
    if (known?.settings_json === settings_json) return known.reconciler;
    const { loaded, store, facts, now_ms, command, signal } = this.#operations;
    const reconciler = new Reconciler({
      site: loaded.site,
      store,
      runner: this.#operationsOf(state).runner,
      facts,
      now_ms,
      // What its jobs do is told by whoever follows the deployment.
      emit: (event) => {
        if (event.kind === 'warning' || event.kind === 'submitted') this.#options.emit(event);
      },
      command,
      signal,
    });
    this.#reconcilers.set(state.name, { reconciler, settings_json });
    return reconciler;
  }
}

/** What ended on idle nodes is out of the way of what comes. */
function withoutEnded(state: DeploymentState): DeploymentState {
  const over = scavengedLaunches(state).filter(({ phase }) => phase === 'ended');
  return replaceLaunches(state, over.map(superseded));
}

function concerns(state: DeploymentState): boolean {
  if (state.launches.some((launch) => launch.planned.scavenged)) return true;
  return state.desired === 'serving' && state.spec.models.some(({ scavenger }) => scavenger.replicas > 0);
}

function jobOf(state: DeploymentState, model: ModelSpec, launch: LaunchRecord): ScavengedJob {
  const { last, planned } = launch;
  const waits = last?.phase !== 'running' && last?.phase !== 'completing';
  return {
    id: launch.launch_id,
    shape: `${state.name}/${model.name} on ${planned.node_kind}`,
    phase: waits ? 'waiting' : 'running',
    replicas: planned.node_count === 1 ? planned.units.length : 1,
    submitted_s: (launch.submitting_since_ms ?? 0) / 1000,
    restarts: last?.restart_count ?? 0,
    // Slurm lets a job that was preempted wait for a while (BeginTime); one that is held waits for a person.
    held: (waits && /^(BeginTime|JobHeld)/.test(last?.pending?.reason ?? '')) || undefined,
  };
}
