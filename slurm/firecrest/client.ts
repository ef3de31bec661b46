import { readFileSync } from 'node:fs';
import { posix } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Directive, JobInfo } from '../../spec/slurm-types.ts';
import { tellsOf } from '../array-tasks.ts';
import type { CancelOptions, Script, SlurmClient, StartEstimate, SubmittedJob } from '../client.ts';
import type { ControllerConfig, NodeGroup, Partition } from '../cluster-facts.ts';
import type { ClusterName, Permissions } from '../permissions.ts';
import type { ExpectedStart, SlurmReservation } from '../promised-nodes.ts';
import { refusalError } from '../refusals.ts';
import { parseSlurmVersion, type SlurmVersion } from '../version.ts';
import {
  jobInfo,
  jobsSchema,
  nodeGroups,
  nodesSchema,
  partitionsOf,
  partitionsSchema,
  reservationsOf,
  reservationsSchema,
  submittedSchema,
  systemsSchema,
  userSchema,
} from './answers.ts';
import { ApiRefusal, type ApiRequest, type FirecrestApi } from './api.ts';

/** How far back ended jobs are looked up: the most that the API offers. */
const window = '7d';

/**
 * Slurm by FirecREST v2, for machines that share the cluster's filesystem and may not run its commands: jobs are
 * submitted, followed and ended over HTTPS. What its API does not tell is refused or said to be unknown, never guessed.
 */
export class FirecrestClient implements SlurmClient {
  readonly unknown_resources = 'FirecREST does not tell which GPUs nodes have, nor the limits of partitions';
  readonly #api: FirecrestApi;
  readonly #system: string;

  /** @param system name of the cluster in FirecREST's words */
  constructor(api: FirecrestApi, system: string) {
    this.#api = api;
    this.#system = system;
  }

  async version(): Promise<SlurmVersion> {
    const { systems } = await this.#ask({ method: 'GET', path: '/status/systems' }, systemsSchema);
    const system = systems.find(({ name }) => name === this.#system);
    if (!system)
      throw new HpcserveError('E_CONFIG_CONFLICT', {
        what: `FirecREST has no system ${this.#system}`,
        because: `it has ${systems.map(({ name }) => name).join(', ') || 'none'}`,
        try: 'set slurm.firecrest.system in the site config to one of them',
      });
    if (system.scheduler.type !== 'slurm')
      throw new HpcserveError('E_CONFIG_UNSUPPORTED', {
        what: `${this.#system} is not run by Slurm`,
        because: `FirecREST says its scheduler is ${system.scheduler.type}`,
      });
    return parseSlurmVersion(`slurm ${system.scheduler.version ?? ''}`);
  }

  /** Slurm's documented defaults (slurm.conf(5)): the API tells nothing of the controller's settings. */
  async config(): Promise<ControllerConfig> {
    return {
      cluster_name: this.#system,
      preempt_type: '',
      preempt_mode: '',
      kill_wait_s: 30,
      min_job_age_s: 300,
      // Ranges of tasks that wait are not told in a form that is written down anywhere: single jobs, then.
      max_array_size: 0,
      max_job_count: 10_000,
      enforce_part_limits: 'NO',
      has_accounting: true,
      gres_types: [],
      select_type: '',
      all: new Map(),
    };
  }

  async partitions(): Promise<Partition[]> {
    return partitionsOf(await this.#ask(this.#status('partitions'), partitionsSchema));
  }

  async nodeGroups(): Promise<NodeGroup[]> {
    return nodeGroups(await this.#ask(this.#status('nodes'), nodesSchema));
  }

  async reservations(): Promise<SlurmReservation[]> {
    return reservationsOf(await this.#ask(this.#status('reservations'), reservationsSchema));
  }

  async permissions(): Promise<Permissions> {
    const [{ accounts }, reservations] = await Promise.all([
      this.#ask(this.#status('userinfo'), userSchema),
      this.reservations(),
    ]);
    const associations = (accounts ?? []).map((account) => ({
      cluster: this.#system,
      account: account.name,
      qos: [],
      is_default: account.default,
    }));
    return { enforced: { associations: associations.length > 0, qos: false }, associations, reservations };
  }

  async clusters(): Promise<ClusterName[]> {
    const { systems } = await this.#ask({ method: 'GET', path: '/status/systems' }, systemsSchema);
    return systems.filter(({ scheduler }) => scheduler.type === 'slurm').map(({ name }) => ({ name }));
  }

  async submit(script: Script, directives: readonly Directive[]): Promise<SubmittedJob> {
    const named = (name: string): string | undefined =>
      directives.findLast((directive) => directive.name === name)?.value;
    const text = 'text' in script ? script.text : readFileSync(script.path, 'utf8');
    const request: ApiRequest = {
      method: 'POST',
      path: this.#jobs(),
      // Everything else stands in the script's own directives, which sbatch reads on the other side.
      json: {
        job: {
          workingDirectory: named('chdir') ?? '/',
          env: { HPCSERVE_SUBMITTED_BY: 'firecrest' },
          script: text,
        },
      },
    };
    let job_id: string;
    try {
      ({ jobId: job_id } = await this.#api.json(request, submittedSchema));
    } catch (error) {
      throw perhapsSubmitted(error instanceof ApiRefusal ? refusalOf(error, directives) : error);
    }
    return { job_id, warnings: [] };
  }

  async estimateStart(): Promise<StartEstimate> {
    throw this.#cannot('say when a job would start');
  }

  async expectedStarts(): Promise<ExpectedStart[]> {
    throw this.#cannot('say what is promised to waiting jobs');
  }

  async jobs(job_ids: readonly string[]): Promise<JobInfo[]> {
    const wanted = [...new Set(job_ids)];
    if (wanted.length === 0) return [];
    const known = (await this.myJobs()).filter((job) => wanted.some((id) => tellsOf(job, id)));
    const older: JobInfo[] = [];
    for (const id of wanted) if (!known.some((job) => tellsOf(job, id))) older.push(...(await this.#job(id)));
    return [...known, ...older];
  }

  /** Its API has the last run of a job alone, which `jobs` tells. */
  async accounted(): Promise<JobInfo[]> {
    return [];
  }

  async myJobs(): Promise<JobInfo[]> {
    const request: ApiRequest = { method: 'GET', path: this.#jobs(), query: { time_window: window } };
    return ((await this.#ask(request, jobsSchema)).jobs ?? []).map(jobInfo);
  }

  async cancel(job_ids: readonly string[], options: CancelOptions = {}): Promise<void> {
    if (options.signal !== undefined) throw this.#cannot(`send ${options.signal} to a job`);
    for (const id of job_ids) {
      try {
        await this.#api.send({ method: 'DELETE', path: this.#jobs(id) });
      } catch (error) {
        if (!(error instanceof ApiRefusal)) throw error;
        const gone = error.status === 404 || /invalid job id|already complet/i.test(error.message);
        if (!gone) throw failureOf(error, `the end of job ${id}`);
      }
    }
  }

  /**
   * Writes a small file there (the service takes up to 5 MB unless it is set up otherwise), over one of that name.
   * @throws E_FIRECREST_FILE
   */
  async upload(path: string, content: Uint8Array<ArrayBuffer>): Promise<void> {
    const form = new FormData();
    form.set('file', new Blob([content]), posix.basename(path));
    await this.#files('upload', { method: 'POST', query: { path: posix.dirname(path) }, form });
  }

  /** @throws E_FIRECREST_FILE */
  async download(path: string): Promise<Uint8Array> {
    return new Uint8Array(
      await (await this.#files('download', { method: 'GET', query: { path } })).arrayBuffer(),
    );
  }

  /** @throws E_FIRECREST_FILE */
  async remove(path: string): Promise<void> {
    await this.#files('rm', { method: 'DELETE', query: { path } });
  }

  async #files(operation: string, request: Omit<ApiRequest, 'path'>): Promise<Response> {
    try {
      return await this.#api.send({ ...request, path: `/filesystem/${this.#name()}/ops/${operation}` });
    } catch (error) {
      if (!(error instanceof ApiRefusal)) throw error;
      throw new HpcserveError('E_FIRECREST_FILE', {
        what: `the ${operation} of ${request.query?.path} failed on ${this.#system}`,
        because: `FirecREST answered ${error.status}: ${error.message}`,
      });
    }
  }

  /** A job of any age; none where nobody knows it. */
  async #job(id: string): Promise<JobInfo[]> {
    try {
      const { jobs } = await this.#api.json({ method: 'GET', path: this.#jobs(id) }, jobsSchema);
      return (jobs ?? []).map(jobInfo);
    } catch (error) {
      if (error instanceof ApiRefusal && error.status === 404) return [];
      throw error instanceof ApiRefusal ? failureOf(error, `job ${id}`) : error;
    }
  }

  async #ask<T>(
    request: ApiRequest,
    schema: Parameters<FirecrestApi['json']>[1] & { _output?: T },
  ): Promise<T> {
    try {
      return (await this.#api.json(request, schema)) as T;
    } catch (error) {
      throw error instanceof ApiRefusal ? failureOf(error, request.path) : error;
    }
  }

  #status(what: string): ApiRequest {
    return { method: 'GET', path: `/status/${this.#name()}/${what}` };
  }

  #jobs(id?: string): string {
    return `/compute/${this.#name()}/jobs${id === undefined ? '' : `/${encodeURIComponent(id)}`}`;
  }

  #name(): string {
    return encodeURIComponent(this.#system);
  }

  #cannot(what: string): HpcserveError {
    return new HpcserveError('E_CONFIG_UNSUPPORTED', {
      what: `FirecREST cannot ${what}`,
      because: `${this.#system} is reached by it, and its API has nothing of the kind`,
    });
  }
}

/** What sbatch said on the other side stands in FirecREST's message. */
function refusalOf({ status, message }: ApiRefusal, directives: readonly Directive[]): HpcserveError {
  const words = slurmSays(message);
  // Without a word of sbatch nobody knows how far it came: FirecREST says as much where it only missed the job's
  // number.
  if (status >= 500 && !words)
    return new HpcserveError('E_SLURM_ANSWER', {
      what: 'FirecREST does not say what became of the job',
      because: `it answered ${status}: ${message}`,
      try: lookFirst,
      details: { may_have_been_submitted: true, retryable: true },
    });
  const error = refusalError(words ?? message, directives);
  return error.code === 'E_SLURM_REFUSED' && status === 403 ? notAllowed(message) : error;
}

/** Of what is no submission: no job was refused, whatever there is to be said. */
function failureOf({ status, message }: ApiRefusal, about: string): HpcserveError {
  const error = refusalError(slurmSays(message) ?? message, []);
  if (error.code !== 'E_SLURM_REFUSED') return error;
  if (status === 403) return notAllowed(message);
  return new HpcserveError('E_SLURM_ANSWER', {
    what: `FirecREST has no answer about ${about}`,
    because: `it answered ${status}: ${message}`,
  });
}

/** What a command of Slurm wrote to its stderr, as FirecREST hands it on. */
function slurmSays(message: string): string | undefined {
  return /std_?err:\s*([\s\S]*)/i.exec(message)?.[1];
}

function notAllowed(because: string): HpcserveError {
  return new HpcserveError('E_FIRECREST_ACCESS', {
    what: 'FirecREST does not let this client do that',
    because,
  });
}

const lookFirst =
  'wait until FirecREST answers again and run the same command: it looks for the job before it submits another';

/** When the answer got lost the job may be in the queue all the same. */
function perhapsSubmitted(error: unknown): unknown {
  if (!(error instanceof HpcserveError) || error.code !== 'E_SLURM_UNREACHABLE') return error;
  return new HpcserveError(error.code, {
    what: error.message,
    because: error.because,
    try: lookFirst,
    details: { ...error.details, may_have_been_submitted: true, retryable: true },
    cause: error,
  });
}
