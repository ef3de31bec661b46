import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { JobRunner } from '../runner/job-runner.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import { clockDoubt_ms, goingRun, type JobRun, jobRecords, runsBetween } from '../state/job-runs.ts';
import type { JobSnapshot } from '../state/job-snapshot.ts';
import type { LaunchRecord } from '../state/launch-record.ts';

interface RunRecorderOptions {
  store: DeploymentStore;
  runner: JobRunner;
  now_ms: () => number;
  emit: (event: ProgressEvent) => void;
}

/**
 * Keeps what is heard of runs of jobs (`ledger/jobs/job-records.ts`), before a scheduler without accounting has
 * forgotten them. Called with the lock of the deployment, before the news is written down there: who continues after a
 * crash does it again. Records that cannot be written stop nothing.
 */
export class RunRecorder {
  readonly #options: RunRecorderOptions;
  #said = false;

  constructor(options: RunRecorderOptions) {
    this.#options = options;
  }

  /** @param now of the launch's job, not yet written down */
  async note(state: DeploymentState, launch: LaunchRecord, now: JobSnapshot): Promise<void> {
    const { store, runner, now_ms, emit } = this.#options;
    // Processes of this machine are allocated by nobody.
    if (runner.kind !== 'slurm') return;
    const runs = runsBetween(goingRun(launch.last), now, now_ms());
    const records = jobRecords(state, launch, now, [...runs, ...(await this.#accounted(launch, now, runs))]);
    try {
      store.keepJobRecords(state.name, records);
    } catch (error) {
      if (this.#said) return;
      this.#said = true;
      const { message, because } = HpcserveError.from(error);
      const reason = [message, ...because].join(': ');
      emit({
        at_ms: now_ms(),
        kind: 'warning',
        message: `what job ${launch.job_id} used is not kept: ${reason}`,
      });
    }
  }

  /** In their place, where the scheduler knows them better than looks from time to time can tell. */
  async #accounted(
    { job_id, submitting_since_ms = 0 }: LaunchRecord,
    now: JobSnapshot,
    runs: readonly JobRun[],
  ): Promise<JobRun[]> {
    const { runner } = this.#options;
    const doubtful = (now.restart_count ?? 0) > 0 || runs.some(({ end_seen }) => end_seen);
    if (now.phase !== 'ended' || !doubtful || job_id === undefined) return [];
    try {
      const accounted = (await runner.accountedRuns?.([job_id]))?.get(job_id) ?? [];
      return accounted.filter(({ start_ms }) => start_ms >= submitting_since_ms - clockDoubt_ms);
    } catch (error) {
      // An accounting that is away keeps nobody from writing an end down.
      if (error instanceof HpcserveError) return [];
      throw error;
    }
  }
}
