import { randomBytes } from 'node:crypto';
import { existsSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { makeFolders } from '../../host/make-folders.ts';
import { waitUntil } from '../../host/wait-until.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import type { SlurmClient } from '../../slurm/client.ts';
import { buildJobScript, directivesOf, renderJobScript } from '../../slurm/job-script.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type GatewayEndpoint, gatewayFiles, type StateLayout } from '../../spec/state-layout.ts';
import type { Operations } from '../runner/operations.ts';
import { commonScriptInput, programOf } from '../runner/slurm-runner.ts';
import { explainFromLog } from '../state/log-files.ts';
import { readStateFile } from '../state/state-file.ts';
import { inspectGateway, type ListenAddress, writeGatewayConfig } from './process.ts';

/** Written before submission, so that a command that dies in between does not leave a job nobody knows. */
const jobFile = 'gateway-job.json';
const scriptFile = 'gateway.sh';

const jobFileSchema = z.object({
  launch_id: z.string(),
  job_id: z.string().optional(),
  /** Being submitted to take its place: as long as its job is not known, the one that runs stays written down. */
  successor: z.object({ launch_id: z.string() }).optional(),
  /** The job whose place it takes, which may still be about to end. */
  predecessor_job_id: z.string().optional(),
});
type GatewayJobFile = z.infer<typeof jobFileSchema>;

/** How long a pending gateway job is waited for, ms: without it nothing answers. */
const start_ms = 30 * 60_000;

/** Whether a gateway is to run as a job: one was submitted, and nobody ended it in order. */
export function isJobWanted(layout: StateLayout): boolean {
  return existsSync(join(layout.gateway_folder, jobFile));
}

/** The gateway as a small Slurm job: for sites that allow no long-lived process on login nodes. */
export class GatewayJob {
  readonly #operations: Operations;
  readonly #client: SlurmClient;
  readonly #layout: StateLayout;

  /** @param layout of the gateway, where it is not the first */
  constructor(operations: Operations, client: SlurmClient, layout = operations.store.layout) {
    this.#operations = operations;
    this.#client = client;
    this.#layout = layout;
  }

  /** Submits the job unless one is queued already. */
  async submit(address?: ListenAddress): Promise<{ job_id: string; submitted: boolean }> {
    const known = await this.#known();
    const [alive] = known?.job_id === undefined ? [] : await this.#live([known.job_id]);
    if (alive !== undefined) return { job_id: alive, submitted: false };
    return { job_id: (await this.#submit(address)).job_id!, submitted: true };
  }

  /** The same, and waits until the gateway answers. */
  async start(address?: ListenAddress): Promise<GatewayEndpoint> {
    const { runner, signal } = this.#operations;
    const { job_id } = await this.submit(address);
    const endpoint = await waitUntil(
      async () => {
        const status = await inspectGateway(this.#layout);
        if (status.state === 'running') return { endpoint: status.endpoint };
        const jobs = await this.#client.jobs([job_id]);
        return jobs.length > 0 && jobs.every((job) => job.phase === 'ended')
          ? { ended: jobs[0]! }
          : undefined;
      },
      { timeout_ms: start_ms, interval_ms: Math.min(runner.poll_interval_ms, 5_000), signal },
    );
    if (endpoint?.endpoint) return endpoint.endpoint;
    const log = join(this.#layout.gateway_folder, gatewayFiles.log);
    const found = explainFromLog(log);
    throw new HpcserveError('E_GATEWAY_START', {
      what: `the gateway's job ${job_id} does not answer`,
      because: [
        endpoint
          ? `the job ended: ${endpoint.ended.state}`
          : `it did not start within ${start_ms / 60_000} min`,
        ...found.because,
        `log file: ${log}`,
      ],
      try: found.try,
    });
  }

  /**
   * Submits the job that takes its place: it starts when the one that runs here has ended, and is the gateway's job
   * from now on. One that was submitted already, by an attempt that did not hear of it, is that job.
   * @param job_id of the one that runs
   * @throws as `SlurmClient.submit`; the one that runs is the gateway's job then as before
   */
  async renew(job_id: string): Promise<string> {
    const known = await this.#known();
    if (known?.job_id !== undefined && known.job_id !== job_id) {
      const [successor] = await this.#live([known.job_id]);
      if (successor !== undefined) return successor;
    }
    return (await this.#submit(undefined, job_id)).job_id!;
  }

  /** Cancels the job, if there is one, with the one whose place it takes, and waits until they have ended. */
  async stop(): Promise<void> {
    const known = await this.#known();
    if (!known) return;
    const { job_id, predecessor_job_id } = known;
    const ids = [job_id, predecessor_job_id].filter((id) => id !== undefined);
    const jobs = await this.#live(ids);
    if (jobs.length > 0) {
      await this.#client.cancel(jobs);
      const gone = await waitUntil(async () => ((await this.#live(ids)).length === 0 ? true : undefined), {
        timeout_ms: 120_000,
        interval_ms: 2_000,
        signal: this.#operations.signal,
      });
      if (!gone)
        throw new HpcserveError('E_DEPLOYMENT_STOP', {
          what: `the gateway's job ${jobs.join(', ')} does not end`,
          because: 'Slurm still lists it after 120 s',
        });
    }
    rmSync(this.#path, { force: true });
  }

  async #submit(address: ListenAddress | undefined, after_job?: string): Promise<GatewayJobFile> {
    const { loaded, facts } = this.#operations;
    const layout = this.#layout;
    makeFolders(layout.gateway_folder);
    const config = writeGatewayConfig(loaded.site, layout, address);
    const launch_id = randomBytes(8).toString('hex');
    // Beside the first gateway; others come and go without it.
    const { gateway_folder } = this.#operations.store.layout;
    const withKeeper = loaded.site.keeper.place === 'job' && layout.gateway_folder === gateway_folder;
    const script = buildJobScript({
      ...commonScriptInput(loaded, facts.environment),
      role: 'gateway',
      deployment: 'gateway',
      request: {
        job_name: `hpcserve-gateway-${launch_id.slice(0, 8)}`,
        nodes: 1,
        gpus_per_node: 0,
        cpus_per_node: loaded.site.gateway.cpus,
        memory_mb_per_node: Math.ceil((loaded.site.gateway.memory_gb * 1e9) / 1024 ** 2),
        log_file: join(layout.gateway_folder, gatewayFiles.log),
        working_folder: layout.gateway_folder,
        launch_id,
        tier: 'stable',
        requeue: withKeeper || undefined,
      },
      command: withKeeper
        ? [
            ...programOf(loaded, facts.environment, 'control/keeper'),
            ...['--site', loaded.path, '--state-dir', dirname(this.#operations.store.layout.root)],
            ...['--gateway-config', config],
          ]
        : [...programOf(loaded, facts.environment, 'gateway/holder'), '--config', config],
      overrides:
        after_job === undefined ? undefined : { extra: [`--dependency=afterany:${after_job}`], remove: [] },
      visible_folders: [layout.root],
    });
    const path = join(layout.gateway_folder, scriptFile);
    writeFileAtomically(path, renderJobScript(script), { mode: 0o700 });
    const before = after_job === undefined ? undefined : this.#read();
    this.#write(before ? { ...before, successor: { launch_id } } : { launch_id });
    let job_id: string;
    try {
      ({ job_id } = await this.#client.submit({ path }, directivesOf(script)));
    } catch (thrown) {
      // One whose answer got lost may be queued: it is looked for by what is written down.
      if (before && HpcserveError.from(thrown).details.may_have_been_submitted !== true) this.#write(before);
      throw thrown;
    }
    const submitted: GatewayJobFile = { launch_id, job_id, predecessor_job_id: after_job };
    this.#write(submitted);
    return submitted;
  }

  /** What is written down, with the id of a job whose submission nobody lived to hear of. */
  async #known(): Promise<GatewayJobFile | undefined> {
    const file = this.#read();
    const unheard = file?.successor?.launch_id ?? (file?.job_id === undefined ? file?.launch_id : undefined);
    if (!file || unheard === undefined) return file;
    const found = (await this.#client.myJobs()).find(
      ({ name, phase }) => phase !== 'ended' && name.endsWith(`-${unheard.slice(0, 8)}`),
    );
    if (!found) return file;
    const known: GatewayJobFile = {
      launch_id: unheard,
      job_id: found.base_job_id,
      predecessor_job_id: file.successor ? file.job_id : undefined,
    };
    this.#write(known);
    return known;
  }

  /** Those of these jobs that are not over. */
  async #live(job_ids: readonly string[]): Promise<string[]> {
    if (job_ids.length === 0) return [];
    const jobs = await this.#client.jobs(job_ids);
    return jobs.filter((job) => job.phase !== 'ended').map((job) => job.base_job_id);
  }

  get #path(): string {
    return join(this.#layout.gateway_folder, jobFile);
  }

  #read(): GatewayJobFile | undefined {
    return readStateFile(this.#path, jobFileSchema);
  }

  #write(file: GatewayJobFile): void {
    writeFileAtomically(this.#path, `${JSON.stringify(file)}\n`);
  }
}
