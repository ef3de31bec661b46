import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { JobArrays, JobRunner, SubmittedArray } from '../runner/job-runner.ts';
import { type PrepareFacts, prepareArray, prepareLaunch } from '../runner/prepare-launch.ts';
import type { DelegatedLaunch, Delegations } from '../state/delegations.ts';
import { type DeploymentState, replaceLaunches, withLaunches } from '../state/deployment-state.ts';
import type { DeploymentStore, LockedDeployment } from '../state/deployment-store.ts';
import {
  inPhase,
  type LaunchRecord,
  type PlannedLaunchRecord,
  type SubmittingLaunch,
} from '../state/launch-record.ts';
import { refused, submitted, submitting, takenApart } from '../state/launch-transitions.ts';
import { settleReplacements } from './replacements.ts';

/** Not handed over yet, or by a command that did not live to hear the answer, and no job of it turned up. */
export type Submittable = PlannedLaunchRecord | SubmittingLaunch;

export function isSubmittable(launch: LaunchRecord): launch is Submittable {
  return launch.phase === 'planned' || launch.phase === 'submitting';
}

export interface SubmissionsOptions {
  site: SiteConfig;
  store: DeploymentStore;
  runner: JobRunner;
  facts: PrepareFacts;
  delegations: Delegations;
  now_ms: () => number;
  emit: (event: ProgressEvent) => void;
}

/**
 * Hands launches to the runner, one by one or several as a job array: intent to disk, then the runner, then its answer
 * to disk. A submission whose answer gets lost leaves the intent; the next pass looks for its job before it submits
 * another.
 */
export class Submissions {
  readonly #options: SubmissionsOptions;
  /** Launches that were refused as an array: they go one by one. */
  readonly #apart = new Set<string>();
  #saidApart = false;
  readonly #passedOn = new Set<string>();

  constructor(options: SubmissionsOptions) {
    this.#options = options;
  }

  /** What is handed over together, in the order of the launches; most are alone. */
  async group(launches: readonly Submittable[]): Promise<Submittable[][]> {
    const { arrays } = this.#options.runner;
    const joinable = launches.filter(({ launch_id }) => !this.#apart.has(launch_id));
    const groups = (await arrays?.groups(joinable.map(({ planned }) => planned))) ?? [];
    const together = new Map(
      groups.flatMap((group) => {
        const members = group.map((index) => joinable[index]!);
        return members.map((launch): [Submittable, Submittable[]] => [launch, members]);
      }),
    );
    return [...new Set(launches.map((launch) => together.get(launch) ?? [launch]))];
  }

  /**
   * Submits one group. An array that Slurm does not take leaves its launches planned, to be submitted one by one.
   * @param of the launches of the group, as `group` had them
   * @throws HpcserveError of the runner when a submission is refused; its launches are then recorded as ended.
   */
  async submit(record: LockedDeployment, of: readonly Submittable[]): Promise<void> {
    const { runner, now_ms, emit } = this.#options;
    const group = asTheyAre(record.state, of);
    const drain_s = await runner.drainTime_s?.(group[0]!.planned);
    const { handOver, array_id } = this.#prepared(record.state, group, drain_s);
    const intents = group.map((launch, task) =>
      submitting(launch, now_ms(), array_id === undefined ? undefined : { array_id, task }),
    );
    record.save(replaceLaunches(record.state, intents));
    let answer: SubmittedArray;
    try {
      answer = await handOver();
    } catch (thrown) {
      const error = HpcserveError.from(thrown);
      // The answer got lost and the job may be queued: the intent stays, the next pass looks for the job.
      if (error.details.may_have_been_submitted === true) throw error;
      if (array_id !== undefined && singlyPerhaps.has(error.code))
        return this.#takeApart(record, intents, array_id, error);
      return this.refuse(record, of, error);
    }
    const { job_ids, where, said = [] } = answer;
    const launches = intents.map((launch, index) => submitted(launch, job_ids[index]!, where));
    record.save(settleReplacements(replaceLaunches(record.state, launches)));
    for (const { launch_id, job_id } of launches)
      emit({ at_ms: now_ms(), kind: 'submitted', launch_id, job_id, where });
    this.#passOn(said);
  }

  /** What a policy of the site says to jobs that it takes, each once. */
  #passOn(said: readonly string[]): void {
    const { now_ms, emit } = this.#options;
    for (const words of said.filter((line) => !this.#passedOn.has(line))) {
      this.#passedOn.add(words);
      emit({ at_ms: now_ms(), kind: 'warning', message: `Slurm says: ${words}` });
    }
  }

  /** Everything is on disk but the intent; `handOver` hands it to the runner. */
  #prepared(
    state: DeploymentState,
    group: readonly Submittable[],
    drain_s: number | undefined,
  ): { array_id?: string; handOver: () => Promise<SubmittedArray> } {
    const { site, store, runner, facts, delegations, now_ms } = this.#options;
    const delegate = (launch: DelegatedLaunch): void => delegations.write(launch, now_ms());
    const [first, ...others] = group as [LaunchRecord, ...LaunchRecord[]];
    if (others.length === 0) {
      const launch = prepareLaunch(state, first, site, store, runner, facts, delegate, drain_s);
      const handOver = async (): Promise<SubmittedArray> => {
        const { job_id, ...answer } = await runner.submit(launch.prepared, launch.script);
        return { job_ids: [job_id], ...answer };
      };
      return { handOver };
    }
    const arrays: JobArrays = runner.arrays!;
    const { array, script } = prepareArray(state, group, site, store, arrays, facts, delegate, drain_s);
    return { array_id: array.array_id, handOver: () => arrays.submit(array, script) };
  }

  #takeApart(
    record: LockedDeployment,
    group: readonly SubmittingLaunch[],
    array_id: string,
    error: HpcserveError,
  ): void {
    const { store, now_ms, emit } = this.#options;
    const { name } = record.state;
    for (const { launch_id } of group) {
      this.#apart.add(launch_id);
      // It leads to the script of the array.
      rmSync(join(store.launchFolder(name, launch_id), launchFiles.script), { force: true });
    }
    record.save(replaceLaunches(record.state, group.map(takenApart)));
    rmSync(store.launchFolder(name, array_id), { recursive: true, force: true });
    if (this.#saidApart) return;
    this.#saidApart = true;
    const reason = [error.message, ...error.because].join(': ');
    emit({
      at_ms: now_ms(),
      kind: 'warning',
      message: `${group.length} jobs are submitted one by one: ${reason}`,
    });
  }

  /** Writes down that these come to nothing. @throws the error, where the deployment wants them */
  refuse(record: LockedDeployment, of: readonly Submittable[], error: HpcserveError): void {
    const { now_ms, emit } = this.#options;
    const ids = new Set(of.map(({ launch_id }) => launch_id));
    const next = settleReplacements(
      withLaunches(record.state, (launch) =>
        ids.has(launch.launch_id) ? refused(launch, error.message, now_ms()) : launch,
      ),
    );
    // What is beyond the plan fails nobody; it is never submitted together with what is not.
    const { planned, instead_of } = of[0]!;
    const beyond =
      planned.scavenged !== undefined
        ? 'no replica on idle nodes'
        : instead_of !== undefined
          ? `${planned.node_kind} was refused, so the job that waits keeps its place`
          : undefined;
    if (beyond === undefined) {
      record.save({ ...next, failure: error.toJSON() });
      throw error;
    }
    record.save(next);
    emit({
      at_ms: now_ms(),
      kind: 'warning',
      message: `${beyond}: ${[error.message, ...error.because].join(': ')} [${error.code}]`,
    });
  }
}

/** Other launches of the deployment may have changed since they were grouped, and these with them. */
function asTheyAre({ launches }: DeploymentState, of: readonly Submittable[]): Submittable[] {
  const byId = new Map(launches.map((launch) => [launch.launch_id, launch]));
  return of.map(({ launch_id }) => inPhase(byId.get(launch_id), 'planned', 'submitting'));
}

/** Refusals of an array whose jobs Slurm may take, all or as many as a limit lets in. */
const singlyPerhaps: ReadonlySet<string> = new Set(['E_SLURM_ARRAY', 'E_SLURM_LIMIT']);
