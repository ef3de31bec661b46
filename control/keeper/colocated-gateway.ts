import { type ChildProcess, spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { holderNodeOptions } from '../../spec/gateway-node-options.ts';
import { GatewayJob } from '../gateway/job.ts';
import { holderProgram } from '../gateway/process.ts';
import type { Operations } from '../runner/operations.ts';
import { lockWait_ms } from '../state/deployment-store.ts';

/** Starts of a gateway that dies at once, and the pause before the next; then the job ends, with its exit code. */
const starts_max = 5;
const pause_ms = 2_000;
/** One that lived so long did not die at once, ms. */
const settled_ms = 60_000;
/** Until a successor that was refused is tried again, ms: Slurm warns minutes before the time limit. */
const renewal_pause_ms_default = 15_000;

/**
 * The gateway as a child of the keeper, in a Slurm job of the two: where login nodes forbid processes that stay,
 * nothing of ours is left there. A gateway that dies is started again by the holder of its port; where both die, this
 * starts them again. Before the job's time limit its successor is submitted, so that it is in the queue already when
 * this one ends.
 */
export class ColocatedGateway {
  readonly #config: string;
  readonly #signal: AbortSignal;
  readonly #emit: (event: ProgressEvent) => void;
  readonly #renewal_pause_ms: number;
  #child: ChildProcess | undefined;
  #renewed = false;
  #renewal: Promise<void> | undefined;

  /** @param signal the job ends, and the gateway with it */
  constructor(
    config: string,
    signal: AbortSignal,
    emit: (event: ProgressEvent) => void,
    renewal_pause_ms = renewal_pause_ms_default,
  ) {
    this.#config = config;
    this.#signal = signal;
    this.#emit = emit;
    this.#renewal_pause_ms = renewal_pause_ms;
    // Slurm tells only the first processes of a step where it tracks them by cgroup.
    signal.addEventListener('abort', () => this.#child?.kill('SIGTERM'), { once: true });
  }

  /** Until the gateway ended and is not to be started again. @returns its exit code */
  async run(): Promise<number> {
    for (let starts = 1; ; starts++) {
      const started_ms = performance.now();
      const code = await this.#once();
      if (this.#isOver()) return code;
      if (performance.now() - started_ms > settled_ms) starts = 1;
      if (starts >= starts_max) return code === 0 ? 1 : code;
      this.#emit({
        at_ms: Date.now(),
        kind: 'warning',
        message: `the gateway ended (exit code ${code}); it is started again`,
      });
      await sleep(pause_ms, undefined, { signal: this.#signal }).catch(() => undefined); // the job ends
      if (this.#isOver()) return code;
    }
  }

  /**
   * The time limit comes near: the successor is submitted, and this gateway ends. Where that is refused it goes on as
   * long as the job does, and it is tried again. Told again meanwhile: there is one successor.
   */
  renew(operations: Operations, job_id: string): Promise<void> {
    this.#renewal ??= this.#renew(operations, job_id);
    return this.#renewal;
  }

  async #renew(operations: Operations, job_id: string): Promise<void> {
    for (let told = ''; !this.#isOver(); ) {
      try {
        const successor = await submitSuccessor(operations, job_id);
        this.#emit({
          at_ms: Date.now(),
          kind: 'submitted',
          launch_id: 'gateway',
          job_id: successor,
          where: 'the place of this job',
        });
        this.#renewed = true;
        this.#child?.kill('SIGTERM');
      } catch (thrown) {
        if (this.#signal.aborted) return;
        const { message, because } = HpcserveError.from(thrown);
        const reason = [message, ...because].join(': ');
        if (reason !== told)
          this.#emit({
            at_ms: Date.now(),
            kind: 'warning',
            message: `the gateway's job has no successor: ${reason}; it is tried again until the job ends`,
          });
        told = reason;
        await sleep(this.#renewal_pause_ms, undefined, { signal: this.#signal }).catch(() => undefined); // the job ends
      }
    }
  }

  #isOver(): boolean {
    return this.#signal.aborted || this.#renewed;
  }

  #once(): Promise<number> {
    return new Promise((resolve, reject) => {
      const argv = [...holderNodeOptions, holderProgram, '--config', this.#config];
      // The holder of its port ends with this process: the channel tells it.
      const child = spawn(process.execPath, argv, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
      this.#child = child;
      child.once('error', reject).once('exit', (code) => resolve(code ?? 1));
    });
  }
}

function submitSuccessor(operations: Operations, job_id: string): Promise<string> {
  const { slurm, store } = operations;
  return store.withGatewayLock({ ...operations, lock_wait_ms: lockWait_ms.service }, () =>
    new GatewayJob(operations, slurm!).renew(job_id),
  );
}
