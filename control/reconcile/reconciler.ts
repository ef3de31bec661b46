import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { retireSessions } from '../gateway/retire-sessions.ts';
import type { JobRunner } from '../runner/job-runner.ts';
import type { PrepareFacts } from '../runner/prepare-launch.ts';
import { type DelegatedLaunch, Delegations } from '../state/delegations.ts';
import { type DeploymentState, replaceLaunches, wantedLaunches } from '../state/deployment-state.ts';
import type { DeploymentStore, LockedDeployment, Writer } from '../state/deployment-store.ts';
import type { JobSnapshot } from '../state/job-snapshot.ts';
import {
  type EndedLaunch,
  inPhase,
  type LaunchRecord,
  type SubmittedLaunch,
} from '../state/launch-record.ts';
import { adopted, cancelRequested, cancelUnheard, ended, withNews } from '../state/launch-transitions.ts';
import { type Action, type DecideTiming, decide, forceAfter_ms } from './decide.ts';
import { diagnose, jobLog } from './diagnose.ts';
import { type JobPoll, type Observation, observe, pollJobsIfReachable } from './observe.ts';
import { eventsBetween } from './progress.ts';
import { RunRecorder } from './record-runs.ts';
import { settleReplacements } from './replacements.ts';
import { isSubmittable, Submissions, type Submittable } from './submissions.ts';

export interface ReconcilerOptions extends Writer {
  site: SiteConfig;
  store: DeploymentStore;
  runner: JobRunner;
  facts: PrepareFacts;
  emit: (event: ProgressEvent) => void;
  /** Instead of the runner's own interval: for the short time a person waits for an end. */
  poll_interval_ms?: number;
}

/** Between two tries to renew what jobs prove their provider with, where that fails, ms. */
const renewAgain_ms = 60_000;

/**
 * Compares what was asked for with what is there, and acts: submits, adopts, cancels, writes down. One
 * `pass` inspects once; who wants to follow calls it again. Everything that must not happen twice is written
 * to disk before it is done, under the lock of the deployment.
 */
export class Reconciler {
  readonly #options: ReconcilerOptions;
  readonly #timing: DecideTiming;
  readonly #submissions: Submissions;
  readonly #delegations: Delegations;
  readonly #runs: RunRecorder;
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
    this.#runs = new RunRecorder(options);
    this.#timing = { settle_ms: options.runner.settle_ms, force_after_ms: forceAfter_ms };
  }

  /**
   * One inspection and what follows from it. Inspecting needs no lock; only when there is something to do the lock
   * is taken, the state read again (another command may have acted meanwhile) and decided anew. Jobs are
   * polled when the site's interval has passed, or when something was done or an agent spoke of its end.
   * @param only restricts what is done, such as to writing down what happened meanwhile.
   * @param lost launches whose node is lost, with what says so
   * @throws HpcserveError of the runner when a submission is refused; the launch is then recorded as ended.
   */
  async pass(
    name: string,
    only: ReadonlySet<Action['do']> = everyAction,
    lost: ReadonlyMap<string, string> = new Map(),
  ): Promise<{ state: DeploymentState; observation: Observation }> {
    const { store } = this.#options;
    const state = store.require(name);
    await this.#renewDelegations(state);
    const observation = await this.#inspect(state);
    const acts = (action: Action): boolean => action.do !== 'wait' && only.has(action.do);
    const decided = this.#decide(state, observation, lost);
    if (decided.some((action) => action.do === 'wait')) this.#sayWhatIsLookedFor();
    if (!decided.some(acts)) return { state, observation };
    return store.locked(name, this.#options, async (record) => {
      // Decided again: another command may have acted since.
      const before = await this.#inspect(record.state);
      const actions = this.#decide(record.state, before, lost).filter(acts);
      const due = await this.#dueSubmissions(record, actions);
      for (const action of actions) {
        if (action.do !== 'submit') {
          await this.#act(action, record, before);
          continue;
        }
        // The first of a group stands for all of it.
        const group = due.get(action.launch_id);
        if (group) await this.#submissions.submit(record, group);
      }
      if (actions.some((action) => !quiet.has(action.do))) this.#pollNext = true;
      return { state: record.state, observation: await this.#inspect(record.state) };
    });
  }

  /**
   * What is to be submitted now, each group by its first launch: those for which the site's limits have room,
   * replacements of jobs that wait after all others.
   */
  async #dueSubmissions(
    record: LockedDeployment,
    actions: readonly Action[],
  ): Promise<ReadonlyMap<string, Submittable[]>> {
    const due = new Set(actions.flatMap(({ do: what, launch_id }) => (what === 'submit' ? launch_id : [])));
    const launches = record.state.launches
      .filter(isSubmittable)
      .filter(({ launch_id }) => due.has(launch_id));
    const groups = await this.#submissions.group(
      launches.filter(({ instead_of }) => instead_of === undefined),
    );
    const admitted = groups.length > 0 ? await this.#admit(groups.map((group) => group.length)) : 0;
    const replacements = await this.#submissions.group(
      launches.filter(({ instead_of }) => instead_of !== undefined),
    );
    const admittedReplacements =
      replacements.length > 0 ? await this.#admitReplacements(record, replacements) : 0;
    const now = [...groups.slice(0, admitted), ...replacements.slice(0, admittedReplacements)];
    return new Map(now.map((group) => [group[0]!.launch_id, group]));
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
  async #admitReplacements(record: LockedDeployment, groups: readonly Submittable[][]): Promise<number> {
    const leaving = new Set(groups.flat().map(({ instead_of }) => instead_of)).size;
    try {
      return await this.#admit(
        groups.map((group) => group.length),
        leaving,
      );
    } catch (error) {
      if (!(error instanceof HpcserveError) || error.code !== 'E_JOBS_LIMIT') throw error;
      this.#submissions.refuse(record, groups.flat(), error);
      return 0;
    }
  }

  #decide(state: DeploymentState, observation: Observation, lost: ReadonlyMap<string, string>): Action[] {
    const now_ms = this.#options.now_ms();
    return decide({ state, statuses: observation.launches, now_ms, timing: this.#timing, lost });
  }

  /** What is there, with the events since it was asked last; changes nothing. */
  async #inspect(state: DeploymentState): Promise<Observation> {
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
    record: LockedDeployment,
    observation: Observation,
  ): Promise<void> {
    const { store, runner } = this.#options;
    const launch = record.state.launches.find((each) => each.launch_id === action.launch_id)!;
    const launch_folder = store.launchFolder(record.state.name, launch.launch_id);
    switch (action.do) {
      case 'wait':
        return;
      case 'adopt': {
        const found = adopted(inPhase(launch, 'submitting'), action.job_id);
        return record.save(settleReplacements(replaceLaunches(record.state, [found])));
      }
      case 'cancel': {
        const { job_id, force } = action;
        return this.#cancel(record, inPhase(launch, 'submitted'), { job_id, launch_folder }, force);
      }
      case 'cancel_extra':
        record.assertHeld();
        return runner.cancel({ job_id: action.job_id, launch_folder });
      case 'record_news':
        await this.#runs.note(record.state, launch, action.last);
        return record.save(
          replaceLaunches(record.state, [withNews(inPhase(launch, 'submitted'), action.last)]),
        );
      case 'record_end':
        // Before it is written down: afterwards nobody looks after this launch any more.
        if (action.last.presumed) await runner.cancel({ job_id: action.last.job_id, launch_folder });
        return this.#recordEnd(record, launch, action.last, observation);
    }
  }

  async #cancel(
    record: LockedDeployment,
    launch: SubmittedLaunch,
    job: { job_id: string; launch_folder: string },
    force: boolean,
  ): Promise<void> {
    const { runner, now_ms } = this.#options;
    const requested = cancelRequested(launch, now_ms());
    record.save(replaceLaunches(record.state, [requested]));
    try {
      await runner.cancel(job, { force });
    } catch (error) {
      record.save(replaceLaunches(record.state, [cancelUnheard(requested)]));
      throw error;
    }
  }

  async #recordEnd(
    record: LockedDeployment,
    launch: LaunchRecord,
    last: JobSnapshot,
    observation: Observation,
  ): Promise<void> {
    const { store, now_ms } = this.#options;
    const { launch_id } = launch;
    const over = ended(launch, last, now_ms());
    const state = settleReplacements(replaceLaunches(record.state, [over]));
    const isWanted = wantedLaunches(state).some((each) => each.launch_id === launch_id);
    const failure =
      state.desired === 'serving' && isWanted
        ? (state.failure ?? diagnose(state, store, over, observation.launches.get(launch_id)).toJSON())
        : state.failure;
    await this.#retire(over, observation);
    await this.#runs.note(state, launch, last);
    this.#delegations.remove(delegatedLaunch(state, over, store));
    record.save({ ...state, failure });
  }

  /**
   * A job that was killed left its sessions in the mesh as it last described them. Told before the end is
   * written down, so that whoever continues after a crash tells it again; a mesh that is away stops nothing.
   */
  async #retire(launch: EndedLaunch, observation: Observation): Promise<void> {
    if (launch.job_id === undefined) return;
    const { store, runner, now_ms, emit } = this.#options;
    const agents = observation.launches.get(launch.launch_id)?.agents ?? [];
    const leftInOrder = agents.filter((agent) => agent.phase === 'stopped' && !agent.notices);
    if (leftInOrder.length === launch.planned.node_count) return;
    const job = `${runner.kind === 'slurm' ? 'Slurm job' : 'process'} ${launch.job_id}`;
    const problem = await retireSessions(
      store.layout.mesh_folder,
      ({ metadata }) => metadata.launch_id === launch.launch_id,
      `${job} ended: ${launch.last.state}`,
    );
    if (problem)
      emit({
        at_ms: now_ms(),
        kind: 'warning',
        message: `the mesh was not told that ${job} ended: ${[problem.message, ...problem.because].join(': ')}`,
      });
  }
}

export const everyAction: ReadonlySet<Action['do']> = new Set([
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
