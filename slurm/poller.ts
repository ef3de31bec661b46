/** News of jobs: one batched question to Slurm per interval, however many ask. */
import { HpcserveError } from '../spec/errors/error.ts';
import type { JobInfo } from '../spec/slurm-types.ts';
import { tellsOf } from './array-tasks.ts';
import type { SlurmClient } from './client.ts';
import { type Clock, systemClock } from './clock.ts';

export type JobNews =
  /** The job's entries (several for arrays and heterogeneous jobs), whenever one of them changed. */
  | { kind: 'changed'; jobs: JobInfo[] }
  /** Nobody knows the job any more: not the queue, not the controller, not accounting. */
  | { kind: 'vanished' }
  /** Slurm did not answer; the poller goes on, and says so once per outage. */
  | { kind: 'unreachable'; error: HpcserveError }
  /** Slurm answers again after an outage. */
  | { kind: 'reachable' };

export type JobListener = (news: JobNews) => void;

export interface JobPollerOptions {
  /** Milliseconds from the end of one poll to the start of the next. Lower: news sooner, more load on Slurm. */
  interval_ms: number;
  clock?: Clock;
}

/** During an outage the interval doubles up to this many times its length. */
const most_backoff = 10;

interface Watch {
  job_id: string;
  listener: JobListener;
  /** What the listener knows, as text, to send changes only. */
  known: string | undefined;
}

/**
 * Polls while somebody is subscribed. A job that ended (or vanished) is told once and then no longer
 * asked for. Listeners are called one after the other; what they throw is not caught here.
 */
export class JobPoller {
  readonly #client: Pick<SlurmClient, 'jobs'>;
  readonly #interval_ms: number;
  readonly #clock: Clock;
  readonly #watches = new Set<Watch>();
  #cancelTimer: (() => void) | undefined;
  #polling: Promise<void> | undefined;
  #failures = 0;

  constructor(client: Pick<SlurmClient, 'jobs'>, options: JobPollerOptions) {
    this.#client = client;
    this.#interval_ms = options.interval_ms;
    this.#clock = options.clock ?? systemClock;
  }

  /** Follows a job from now on; the first poll comes at once. The returned function ends it. */
  subscribe(job_id: string, listener: JobListener): () => void {
    const watch: Watch = { job_id, listener, known: undefined };
    this.#watches.add(watch);
    this.#schedule(0);
    return () => {
      this.#watches.delete(watch);
      if (this.#watches.size === 0) this.#stopTimer();
    };
  }

  /** Polls now (or joins the poll that runs) and ends when listeners have been told. */
  pollNow(): Promise<void> {
    this.#polling ??= this.#poll().finally(() => {
      this.#polling = undefined;
      this.#schedule(this.#interval_ms * Math.min(2 ** this.#failures, most_backoff));
    });
    return this.#polling;
  }

  /** Ends every subscription. */
  close(): void {
    this.#watches.clear();
    this.#stopTimer();
  }

  #schedule(delay_ms: number): void {
    if (this.#watches.size === 0 || this.#polling !== undefined) return;
    this.#stopTimer();
    this.#cancelTimer = this.#clock.after(delay_ms, () => {
      this.#cancelTimer = undefined;
      // A failing listener is a defect and must surface as an unhandled rejection, not vanish here.
      void this.pollNow();
    });
  }

  #stopTimer(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
  }

  async #poll(): Promise<void> {
    const watches = [...this.#watches];
    const ids = [...new Set(watches.map((watch) => watch.job_id))];
    if (ids.length === 0) return;
    let jobs: JobInfo[];
    try {
      jobs = await this.#client.jobs(ids);
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      this.#failures++;
      if (this.#failures === 1) for (const watch of watches) watch.listener({ kind: 'unreachable', error });
      return;
    }
    const recovered = this.#failures > 0;
    this.#failures = 0;
    for (const watch of watches) {
      if (!this.#watches.has(watch)) continue;
      if (recovered) watch.listener({ kind: 'reachable' });
      this.#tell(
        watch,
        jobs.filter((job) => tellsOf(job, watch.job_id)),
      );
    }
  }

  #tell(watch: Watch, jobs: JobInfo[]): void {
    if (jobs.length === 0) {
      this.#watches.delete(watch);
      watch.listener({ kind: 'vanished' });
      return;
    }
    if (jobs.every((job) => job.phase === 'ended')) this.#watches.delete(watch);
    const known = JSON.stringify(jobs);
    if (known === watch.known) return;
    watch.known = known;
    watch.listener({ kind: 'changed', jobs });
  }
}
