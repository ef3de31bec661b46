/**
 * Compares what was asked for with what is there, and acts: submits, adopts, cancels, writes down. One
 * `pass` looks once; who wants to follow calls it again. Everything that must not happen twice is written
 * to disk before it is done, under the lock of the deployment.
 */

import type { FolderLock } from '../../host/folder-lock.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { retireSessions } from '../gateway/retire-sessions.ts';
import type { JobRunner } from '../runner/job-runner.ts';
import type { PrepareFacts } from '../runner/prepare-launch.ts';
import { type DelegatedLaunch, Delegations } from '../state/delegations.ts';
import type { DeploymentState, LaunchRecord } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import { type Action, type DecideTiming, decide, forceAfter_ms } from './decide.ts';
import { diagnose, jobLog } from './diagnose.ts';
import { type JobPoll, type Observation, observe, pollJobsIfReachable } from './observe.ts';
import { eventsBetween } from './progress.ts';
import { settleStandIns } from './replacements.ts';
import { Submissions } from './submissions.ts';

export interface ReconcilerOptions {
  site: SiteConfig;
  store: DeploymentStore;
  runner: JobRunner;
  facts: PrepareFacts;
  now_ms: () => number;
  emit: (event: ProgressEvent) => void;
  /** Shown to those who wait for the lock: `hpcserve deploy`. */
  command: string;
  signal?: AbortSignal;
  /** Instead of the runner's own interval: for the short time a person waits for an end. */
  poll_interval_ms?: number;
}

/** How long to wait for another command that works on the same deployment, ms: a slow sbatch holds it. */
const lockWait_ms = 120_000;
/** Between two tries to renew what jobs prove their provider with, where that fails, ms. */
const renewAgain_ms = 60_000;

export class Reconciler {
  readonly #options: ReconcilerOptions;
  readonly #timing: DecideTiming;
  readonly #submissions: Submissions;
  readonly #delegations: Delegations;
  /** Not before, since it failed. */
  #renewals_from_ms = 0;
  #poll: JobPoll | undefined;
  #polled_at_ms = 0;
  #previous: Observation | undefined;
  #pollNext = true;
  #saidToWait = false;
  #saidWhatIsLookedFor = false;

  constructor(options: ReconcilerOptions) {
    this.#options = options;
    this.#delegations = new Delegations(options.store.layout, options.site, options.facts.user);
    this.#submissions = new Submissions({ ...options, delegations: this.#delegations });
    this.#timing = { settle_ms: options.runner.settle_ms, force_after_ms: forceAfter_ms };
  }

  /**
   * One look and what follows from it. Looking needs no lock; only when there is something to do the lock
   * is taken, the state read again (another command may have acted meanwhile) and decided anew. Jobs are
   * polled when the site's interval has passed, or when something was done or an agent spoke of its end.
   * @param only restricts what is done, such as to writing down what happened meanwhile.
   * @throws HpcserveError of the runner when a submission is refused; the launch is then recorded as ended.
   */
  async pass(
    name: string,
    only: ReadonlySet<Action['do']> = everything,
  ): Promise<{ state: DeploymentState; observation: Observation }> {
    const { store, command, signal } = this.#options;
    const state = store.require(name);
    await this.#renewDelegations(state);
    const observation = await this.#look(state);
    const acts = (action: Action): boolean => action.do !== 'wait' && only.has(action.do);
    const decided = this.#decide(state, observation);
    if (decided.some((action) => action.do === 'wait')) this.#sayWhatIsLookedFor();
    if (!decided.some(acts)) return { state, observation };
    const lock = await store.lock(name, {
      command,
      timeout_ms: lockWait_ms,
      ...(signal ? { signal } : {}),
    });
    try {
      const current = store.require(name);
      const before = await this.#look(current);
      const actions = this.#decide(current, before).filter(acts);
      const due = new Set(actions.flatMap(({ do: what, launch_id }) => (what === 'submit' ? launch_id : [])));
      const launches = current.launches.filter(({ launch_id }) => due.has(launch_id));
      const groups = await this.#submissions.group(
        launches.filter(({ instead_of }) => instead_of === undefined),
      );
      let admitted = groups.length > 0 ? await this.#admit(groups.map((group) => group.length)) : 0;
      const standIns = await this.#submissions.group(
        launches.filter(({ instead_of }) => instead_of !== undefined),
      );
      let admittedStandIns = standIns.length > 0 ? await this.#admitStandIns(current, standIns) : 0;
      for (const action of actions) {
        if (action.do !== 'submit') {
          await this.#act(action, current, lock, before);
          continue;
        }
        // The first of a group stands for all of it.
        const first = ([launch]: LaunchRecord[]): boolean => launch?.launch_id === action.launch_id;
        const group = groups.find(first);
        const standIn = standIns.find(first);
        if (group && admitted-- > 0) await this.#submissions.submit(current, group, lock);
        if (standIn && admittedStandIns-- > 0) await this.#submissions.submit(current, standIn, lock);
      }
      if (actions.some((action) => !quiet.has(action.do))) this.#pollNext = true;
      return { state: current, observation: await this.#look(current) };
    } finally {
      lock.release();
    }
  }

  /** A filesystem that is full or a key that is gone stops nothing: what is there proves enough for weeks. */
  async #renewDelegations(state: DeploymentState): Promise<void> {
    const { store, now_ms, emit } = this.#options;
    if (now_ms() < this.#renewals_from_ms) return;
    const launches = state.launches.filter(({ phase }) => phase === 'submitted');
    const delegated = launches.map((launch) => delegatedLaunch(state, launch, store));
    const failure = await this.#delegations.renew(delegated, now_ms()).then(
      () => undefined,
      (thrown: unknown) => HpcserveError.from(thrown),
    );
    if (!failure) return;
    const again = this.#renewals_from_ms > 0;
    this.#renewals_from_ms = now_ms() + renewAgain_ms;
    if (again) return;
    const reason = [failure.message, ...failure.because].join(': ');
    const message = `what jobs prove their provider with was not renewed: ${reason}`;
    emit({ at_ms: now_ms(), kind: 'warning', message });
  }

  #sayWhatIsLookedFor(): void {
    if (this.#saidWhatIsLookedFor) return;
    this.#saidWhatIsLookedFor = true;
    const { emit, now_ms, runner } = this.#options;
    emit({
      at_ms: now_ms(),
      kind: 'warning',
      message: `a command was interrupted while it submitted; its job is looked for before another is submitted, for at most ${Math.round(runner.settle_ms / 1000)} s`,
    });
  }

  /**
   * Those that are not admitted now are decided again at the next pass; nobody holds the lock meanwhile.
   * @param jobs of each submission, in order
   * @param leaving jobs in the queue that go as soon as these are in it
   */
  async #admit(jobs: readonly number[], leaving = 0): Promise<number> {
    const { runner, site, emit, now_ms } = this.#options;
    const sum = (counts: readonly number[]): number => counts.reduce((total, count) => total + count, 0);
    const admitted = await runner.admit(jobs.length, sum(jobs) - leaving);
    if (admitted < jobs.length && !this.#saidToWait) {
      this.#saidToWait = true;
      emit({
        at_ms: now_ms(),
        kind: 'warning',
        message: `${sum(jobs.slice(admitted))} job(s) wait to be submitted: ${site.name} allows ${site.limits.submissions_per_minute} submissions a minute (limits.submissions_per_minute)`,
      });
    }
    return admitted;
  }

  /** Where they would be too many jobs even without the one that waits, it goes on waiting. */
  async #admitStandIns(state: DeploymentState, groups: readonly LaunchRecord[][]): Promise<number> {
    const leaving = new Set(groups.flat().map(({ instead_of }) => instead_of)).size;
    try {
      return await this.#admit(
        groups.map((group) => group.length),
        leaving,
      );
    } catch (error) {
      if (!(error instanceof HpcserveError) || error.code !== 'E_JOBS_LIMIT') throw error;
      this.#submissions.refuse(state, groups.flat(), error);
      return 0;
    }
  }

  #decide(state: DeploymentState, observation: Observation): Action[] {
    const now_ms = this.#options.now_ms();
    return decide({ state, sights: observation.launches, now_ms, timing: this.#timing });
  }

  /** What is there, with the events since the last look; changes nothing. */
  async #look(state: DeploymentState): Promise<Observation> {
    const { store, runner, now_ms, emit } = this.#options;
    const now = now_ms();
    const interval = this.#options.poll_interval_ms ?? runner.poll_interval_ms;
    if (!this.#poll || this.#pollNext || now - this.#polled_at_ms >= interval) {
      this.#poll = await pollJobsIfReachable([state], store, runner, now, this.#poll);
      this.#polled_at_ms = now;
      this.#pollNext = false;
    }
    const observation = observe(state, store, this.#poll, now);
    for (const event of eventsBetween(this.#previous, observation, (id) => jobLog(state, store, id)))
      emit(event);
    // An agent that says it stopped or failed: its job will end soon, and people want to know why at once.
    if (endedAgents(observation) > endedAgents(this.#previous)) this.#pollNext = true;
    this.#previous = observation;
    return observation;
  }

  async #act(
    action: Exclude<Action, { do: 'submit' }>,
    state: DeploymentState,
    lock: FolderLock,
    observation: Observation,
  ): Promise<void> {
    const { store, runner, now_ms } = this.#options;
    const launch = state.launches.find((each) => each.launch_id === action.launch_id)!;
    const launch_folder = store.launchFolder(state.name, launch.launch_id);
    switch (action.do) {
      case 'wait':
        return;
      case 'adopt':
        launch.phase = 'submitted';
        launch.job_id = action.job_id;
        settleStandIns(state);
        return store.save(state, now_ms());
      case 'cancel':
        lock.assertHeld();
        launch.cancel_requested_ms ??= now_ms();
        store.save(state, now_ms());
        try {
          return await runner.cancel({ job_id: action.job_id, launch_folder }, { force: action.force });
        } catch (error) {
          // Nobody was asked: the next command asks at once instead of waiting for this one to take effect.
          delete launch.cancel_requested_ms;
          store.save(state, now_ms());
          throw error;
        }
      case 'cancel_extra':
        lock.assertHeld();
        return runner.cancel({ job_id: action.job_id, launch_folder });
      case 'record_news':
        launch.last = action.last;
        return store.save(state, now_ms());
      case 'record_end':
        // Before it is written down: afterwards nobody looks after this launch any more.
        if (action.last.presumed) await runner.cancel({ job_id: action.last.job_id, launch_folder });
        launch.phase = 'ended';
        launch.ended_at_ms = now_ms();
        launch.last = action.last;
        settleStandIns(state);
        if (state.desired === 'serving' && !launch.superseded && !launch.planned.scavenged)
          state.failure ??= diagnose(
            state,
            store,
            launch,
            observation.launches.get(launch.launch_id),
          ).toJSON();
        await this.#retire(launch, observation);
        this.#delegations.remove(delegatedLaunch(state, launch, store));
        return store.save(state, now_ms());
    }
  }

  /**
   * A job that was killed left its sessions in the mesh as it last described them. Told before the end is
   * written down, so that whoever continues after a crash tells it again; a mesh that is away stops nothing.
   */
  async #retire(launch: LaunchRecord, observation: Observation): Promise<void> {
    if (launch.job_id === undefined) return;
    const { store, runner, now_ms, emit } = this.#options;
    const agents = observation.launches.get(launch.launch_id)?.agents ?? [];
    const leftInOrder = agents.filter((agent) => agent.phase === 'stopped' && !agent.notices);
    if (leftInOrder.length === launch.planned.node_count) return;
    const job = `${runner.kind === 'slurm' ? 'Slurm job' : 'process'} ${launch.job_id}`;
    const problem = await retireSessions(
      store.layout.mesh_folder,
      ({ metadata }) => metadata.launch_id === launch.launch_id,
      `${job} ended: ${launch.last?.state ?? 'it is gone'}`,
    );
    if (problem)
      emit({
        at_ms: now_ms(),
        kind: 'warning',
        message: `the mesh was not told that ${job} ended: ${[problem.message, ...problem.because].join(': ')}`,
      });
  }
}

const everything: ReadonlySet<Action['do']> = new Set([
  'submit',
  'adopt',
  'wait',
  'cancel',
  'cancel_extra',
  'record_news',
  'record_end',
]);
/** Actions that write down what happened and change nothing about it. */
export const bookkeepingActions: ReadonlySet<Action['do']> = new Set(['adopt', 'record_news', 'record_end']);

/** Actions after which a job does not change by our doing. */
const quiet: ReadonlySet<Action['do']> = new Set(['record_end', 'record_news', 'wait']);

function delegatedLaunch(
  { name }: DeploymentState,
  { launch_id, planned: { time_limit_s } }: LaunchRecord,
  store: DeploymentStore,
): DelegatedLaunch {
  return { launch_id, launch_folder: store.launchFolder(name, launch_id), time_limit_s };
}

function endedAgents(observation: Observation | undefined): number {
  const launches = [...(observation?.launches.values() ?? [])];
  return launches
    .flatMap((launch) => launch.agents)
    .filter((agent) => agent.phase === 'stopped' || agent.phase === 'failed').length;
}
