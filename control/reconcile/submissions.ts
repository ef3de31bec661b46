/**
 * Hands launches to the runner, one by one or several as a job array: intent to disk, then the runner, then its answer to
 * disk. A submission whose answer gets lost leaves the intent; the next pass looks for its job before it submits another.
 */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import type { FolderLock } from '../../host/folder-lock.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { JobArrays, JobRunner } from '../runner/job-runner.ts';
import { type PrepareFacts, prepareArray, prepareLaunch } from '../runner/prepare-launch.ts';
import type { DelegatedLaunch, Delegations } from '../state/delegations.ts';
import type { DeploymentState, LaunchRecord } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import { settleStandIns } from './replacements.ts';

export interface SubmissionsOptions {
  site: SiteConfig;
  store: DeploymentStore;
  runner: JobRunner;
  facts: PrepareFacts;
  delegations: Delegations;
  now_ms: () => number;
  emit: (event: ProgressEvent) => void;
}

export class Submissions {
  readonly #options: SubmissionsOptions;
  /** Launches that were refused as an array: they go one by one. */
  readonly #apart = new Set<string>();
  #saidApart = false;

  constructor(options: SubmissionsOptions) {
    this.#options = options;
  }

  /** What is handed over together, in the order of the launches; most are alone. */
  async group(launches: readonly LaunchRecord[]): Promise<LaunchRecord[][]> {
    const { arrays } = this.#options.runner;
    const joinable = launches.filter(({ launch_id }) => !this.#apart.has(launch_id));
    const groups = (await arrays?.groups(joinable.map(({ planned }) => planned))) ?? [];
    const together = new Map(
      groups.flatMap((group) => {
        const members = group.map((index) => joinable[index]!);
        return members.map((launch): [LaunchRecord, LaunchRecord[]] => [launch, members]);
      }),
    );
    return [...new Set(launches.map((launch) => together.get(launch) ?? [launch]))];
  }

  /**
   * Submits one group. An array that Slurm does not take leaves its launches planned, to be submitted one by one.
   * @throws HpcserveError of the runner when a submission is refused; its launches are then recorded as ended.
   */
  async submit(state: DeploymentState, group: readonly LaunchRecord[], lock: FolderLock): Promise<void> {
    const { runner, now_ms, emit } = this.#options;
    const drain_s = await runner.drainTime_s?.(group[0]!.planned);
    const hand = this.#prepared(state, group, drain_s);
    lock.assertHeld();
    for (const launch of group) {
      launch.phase = 'submitting';
      launch.submitting_since_ms = now_ms();
    }
    this.#save(state);
    try {
      const { job_ids, where } = await hand();
      for (const [index, launch] of group.entries()) {
        launch.phase = 'submitted';
        launch.job_id = job_ids[index]!;
        launch.where = where;
      }
      settleStandIns(state);
      this.#save(state);
      for (const { launch_id, job_id } of group)
        emit({ at_ms: now_ms(), kind: 'submitted', launch_id, job_id: job_id!, where });
    } catch (thrown) {
      const error = HpcserveError.from(thrown);
      // The answer got lost and the job may be queued: the intent stays, the next pass looks for the job.
      if (error.details.may_have_been_submitted === true) throw error;
      if (group.length > 1 && singlyPerhaps.has(error.code)) return this.#takeApart(state, group, error);
      this.refuse(state, group, error);
    }
  }

  /** Everything is on disk but the intent; what is returned hands it to the runner. */
  #prepared(
    state: DeploymentState,
    group: readonly LaunchRecord[],
    drain_s: number | undefined,
  ): () => Promise<{ job_ids: string[]; where: string }> {
    const { site, store, runner, facts, delegations, now_ms } = this.#options;
    const delegate = (launch: DelegatedLaunch): void => delegations.write(launch, now_ms());
    const [first, ...others] = group as [LaunchRecord, ...LaunchRecord[]];
    if (others.length === 0) {
      const prepared = prepareLaunch(state, first, site, store, runner, facts, delegate, drain_s);
      delete first.array;
      return async () => {
        const { job_id, where } = await runner.submit(prepared);
        return { job_ids: [job_id], where };
      };
    }
    const arrays: JobArrays = runner.arrays!;
    const array = prepareArray(state, group, site, store, arrays, facts, delegate, drain_s);
    for (const [task, launch] of group.entries()) launch.array = { array_id: array.array_id, task };
    return () => arrays.submit(array);
  }

  #takeApart(state: DeploymentState, group: readonly LaunchRecord[], error: HpcserveError): void {
    const { store, now_ms, emit } = this.#options;
    const folders = new Set(group.flatMap(({ array }) => array?.array_id ?? []));
    for (const launch of group) {
      this.#apart.add(launch.launch_id);
      // It leads to the script of the array.
      rmSync(join(store.launchFolder(state.name, launch.launch_id), launchFiles.script), { force: true });
      launch.phase = 'planned';
      delete launch.array;
      delete launch.submitting_since_ms;
    }
    this.#save(state);
    for (const id of folders) rmSync(store.launchFolder(state.name, id), { recursive: true, force: true });
    if (this.#saidApart) return;
    this.#saidApart = true;
    const words = [error.message, ...error.because].join(': ');
    emit({
      at_ms: now_ms(),
      kind: 'warning',
      message: `${group.length} jobs are submitted one by one: ${words}`,
    });
  }

  /** Writes down that these come to nothing. @throws the error, where the deployment wants them */
  refuse(state: DeploymentState, group: readonly LaunchRecord[], error: HpcserveError): void {
    const { now_ms, emit } = this.#options;
    for (const launch of group) {
      launch.phase = 'ended';
      launch.ended_at_ms = now_ms();
      launch.last = { job_id: '', phase: 'ended', state: 'REFUSED', reason: error.message };
    }
    settleStandIns(state);
    // What is beyond the plan fails nobody; it is never submitted together with what is not.
    const { planned, instead_of } = group[0]!;
    const beyond =
      planned.scavenged !== undefined
        ? 'no replica on idle nodes'
        : instead_of !== undefined
          ? `${planned.node_kind} was refused, so the job that waits keeps its place`
          : undefined;
    if (beyond === undefined) state.failure = error.toJSON();
    this.#save(state);
    if (beyond === undefined) throw error;
    emit({
      at_ms: now_ms(),
      kind: 'warning',
      message: `${beyond}: ${[error.message, ...error.because].join(': ')} [${error.code}]`,
    });
  }

  #save(state: DeploymentState): void {
    this.#options.store.save(state, this.#options.now_ms());
  }
}

/** Refusals of an array whose jobs Slurm may take, all or as many as a limit lets in. */
const singlyPerhaps: ReadonlySet<string> = new Set(['E_SLURM_ARRAY', 'E_SLURM_LIMIT']);
