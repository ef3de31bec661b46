import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type ErrorFacts, HpcserveError } from '../spec/errors/error.ts';
import { nearest } from '../spec/nearest.ts';
import { quoteName } from '../spec/printable-name.ts';
import { loadPhaseWords, type SessionModel } from '../spec/session-record.ts';
import { deploymentFiles } from '../spec/state-layout.ts';
import { jobComesIn_s } from './coming-jobs.ts';
import { type DeploymentFacts, deploymentFacts } from './deployment-facts.ts';
import type { GatewayLog } from './log.ts';
import { loadsIn_s } from './routing/load-time.ts';
import type { Refusal } from './routing/router.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';

/** Deployments are read again after this time: a refused client must not make the gateway read a shared filesystem. */
const cache_ms = 2000;
/** Bounds of `retry-after`: a client that never comes back is of no use, one that comes every second is a load. */
const retry_s_min = 5;
const retry_s_max = 3600;
const retryLoading_s = 15;
const retryUnknown_s = 30;
const listed_names_max = 50;

/** Says why nobody can answer for a model, from the sessions there are and the jobs that are pending. */
export class Availability {
  readonly #folder: string;
  readonly #table: RoutingTable<SessionLink>;
  readonly #log: GatewayLog;
  #read: Promise<DeploymentFacts[]> | undefined;
  #readAt_ms = Number.NEGATIVE_INFINITY;

  constructor(deploymentsFolder: string, table: RoutingTable<SessionLink>, log: GatewayLog) {
    this.#folder = deploymentsFolder;
    this.#table = table;
    this.#log = log;
  }

  /** @param names models that whoever asks may ask for; absent: all of them */
  async explain(model: string, names?: readonly string[]): Promise<Refusal> {
    const deployments = await this.#toServe();
    const asked = deployments.filter((deployment) => isOf(deployment, model));
    const reasons: string[] = [];
    let retry_s = this.#replicaReasons(model, reasons);
    let wakes_in_s = this.#wakesIn_s(model, asked, reasons);
    const { starts_in_s, running_jobs } = jobReasons(asked, wakes_in_s !== undefined, reasons);
    retry_s = Math.min(retry_s, starts_in_s);
    if (wakes_in_s !== undefined) {
      // Its job waits in the queue, longer than the last time.
      if (Number.isFinite(starts_in_s)) wakes_in_s = Math.max(wakes_in_s, starts_in_s);
      retry_s = Math.min(retry_s, wakes_in_s);
    }
    const route = this.#table.find(model);
    if (reasons.length === 0 && asked.length === 0 && !route)
      return { error: this.#unknown(model, deployments, names) };
    const error = new HpcserveError('E_MODEL_NO_REPLICA', {
      what: `no replica of ${model} can answer now`,
      because: reasons.length > 0 ? reasons : 'its replicas are starting or ending',
    });
    const bounded_s = Number.isFinite(retry_s) ? retry_s : retryUnknown_s;
    const retry_after_s = Math.min(retry_s_max, Math.max(retry_s_min, Math.ceil(bounded_s)));
    const refusal: Refusal = { error, retry_after_s };
    if (wakes_in_s !== undefined) refusal.wakes_in_s = wakes_in_s;
    // As many jobs as have told of a replica that cannot answer, and more.
    if (running_jobs > (route?.others.length ?? 0)) refusal.comes_soon = true;
    return refusal;
  }

  /** See `jobComesIn_s`. */
  async jobComesIn_s(model: string, lost_for_s: number): Promise<number | undefined> {
    const asked = (await this.#toServe()).filter((deployment) => isOf(deployment, model));
    return jobComesIn_s(asked, { now_ms: Date.now(), lost_for_s });
  }

  /** Models that have no replica because nobody asks, and answer when somebody does; by the names they have. */
  async sleeping(): Promise<{ name: string; model: string; asleep_since_ms: number }[]> {
    return (await this.#toServe()).flatMap(({ spec, scaled }) =>
      spec.models.flatMap((entry) => {
        const asleep_since_ms = scaled?.[entry.name]?.asleep_since_ms;
        if (asleep_since_ms === undefined) return [];
        return namesOf(entry).map((name) => ({ name, model: entry.name, asleep_since_ms }));
      }),
    );
  }

  /** Deployments that are to serve, of which one model at least passes. */
  async deployments(passes: (model: string) => boolean): Promise<DeploymentFacts[]> {
    return (await this.#toServe()).filter(({ spec }) =>
      spec.models.some((entry) => namesOf(entry).some(passes)),
    );
  }

  /** Why replicas that there are cannot answer. @returns seconds until one may; Infinity where that is not known */
  #replicaReasons(model: string, reasons: string[]): number {
    let retry_s = Number.POSITIVE_INFINITY;
    for (const { served, session } of this.#table.find(model)?.others ?? []) {
      const where = `on ${session.facts.node}`;
      if (served.state === 'loading' || served.state === 'pending') {
        reasons.push(`a replica ${where} is ${describeLoading(served)}`);
        retry_s = Math.min(retry_s, loadsIn_s(served, Date.now()) ?? retryLoading_s);
      } else if (served.state === 'failed') {
        reasons.push(`a replica ${where} failed${served.error === undefined ? '' : `: ${served.error}`}`);
      } else if (served.state === 'serving') reasons.push(`a replica ${where} cannot be reached now`);
      else reasons.push(`a replica ${where} is ${served.state}`);
    }
    return retry_s;
  }

  /** Of a model that sleeps: when it is expected to answer, as long as its last start took. */
  #wakesIn_s(model: string, asked: readonly DeploymentFacts[], reasons: string[]): number | undefined {
    let soonest_s: number | undefined;
    for (const { spec, scaled } of asked)
      for (const entry of spec.models) {
        const { asleep_since_ms, waking_since_ms, wake_s = 0 } = scaled?.[entry.name] ?? {};
        if (asleep_since_ms === undefined || !namesOf(entry).includes(model)) continue;
        const gone_s = waking_since_ms === undefined ? 0 : (Date.now() - waking_since_ms) / 1000;
        // What takes longer than the last time may be over at any moment.
        const left_s = Math.max(1, wake_s - gone_s);
        soonest_s = Math.min(soonest_s ?? left_s, left_s);
        reasons.push(
          `${entry.name} sleeps since ${inUtc(asleep_since_ms)} because nobody asked for it; it is being started and is expected to answer in about ${Math.ceil(left_s)} s`,
        );
      }
    return soonest_s;
  }

  #unknown(
    model: string,
    deployments: readonly DeploymentFacts[],
    allowed: readonly string[] | undefined,
  ): HpcserveError {
    const names = new Set<string>();
    for (const route of this.#table.routes()) names.add(route.name);
    for (const { spec } of deployments) for (const entry of spec.models) names.add(entry.name);
    const sorted = [...names].filter((name) => allowed?.includes(name) ?? true).sort();
    const close = nearest(model.slice(0, 256), sorted);
    const listed = sorted.slice(0, listed_names_max).join(', ');
    const facts: ErrorFacts = {
      what: `no model is called ${quoteName(model)}`,
      because:
        sorted.length === 0
          ? `nothing${allowed ? ' that this key may ask for' : ''} is deployed behind this gateway`
          : `there ${sorted.length === 1 ? 'is' : 'are'} ${listed}${sorted.length > listed_names_max ? ', …' : ''}`,
      details: { param: 'model' },
    };
    if (close !== undefined) facts.try = `did you mean ${JSON.stringify(close)}?`;
    return new HpcserveError('E_MODEL_UNKNOWN', facts);
  }

  async #toServe(): Promise<DeploymentFacts[]> {
    return (await this.#deployments()).filter(({ desired }) => desired === 'serving');
  }

  #deployments(): Promise<DeploymentFacts[]> {
    const now_ms = performance.now();
    if (!this.#read || now_ms - this.#readAt_ms > cache_ms) {
      this.#readAt_ms = now_ms;
      this.#read = this.#readAll();
    }
    return this.#read;
  }

  async #readAll(): Promise<DeploymentFacts[]> {
    let names: string[];
    try {
      names = await readdir(this.#folder);
    } catch (error) {
      // The folder appears with the first deployment, and its filesystem may be away: reasons are then fewer.
      this.#log.debug({ folder: this.#folder, reason: (error as Error).message }, 'deployments not readable');
      return [];
    }
    const states = await Promise.all(names.map((name) => this.#readOne(name)));
    return states.filter((state) => state !== undefined);
  }

  async #readOne(name: string): Promise<DeploymentFacts | undefined> {
    const file = join(this.#folder, name, deploymentFiles.state);
    try {
      return deploymentFacts.parse(JSON.parse(await readFile(file, 'utf8')));
    } catch (error) {
      this.#log.debug({ file, reason: (error as Error).message }, 'deployment state not readable');
      return undefined;
    }
  }
}

/**
 * What the jobs of deployments do that bring no replica yet.
 * @param wakes whether a model of them sleeps: that all jobs have ended is no reason then
 */
function jobReasons(
  deployments: readonly DeploymentFacts[],
  wakes: boolean,
  reasons: string[],
): { starts_in_s: number; running_jobs: number } {
  let starts_in_s = Number.POSITIVE_INFINITY;
  let running_jobs = 0;
  for (const { name, launches } of deployments) {
    for (const launch of launches) {
      if (launch.superseded || launch.phase === 'ended') continue;
      const { estimated_start_ms, state, pending } = launch.last ?? {};
      const reason = jobReason(name, launch);
      if (reason !== undefined) reasons.push(reason);
      if (!pending && launch.phase === 'submitted' && state === 'RUNNING') running_jobs += 1;
      if (estimated_start_ms !== undefined) {
        const start_s = Math.ceil((estimated_start_ms - Date.now()) / 1000);
        starts_in_s = Math.min(starts_in_s, Math.max(retry_s_min, start_s));
      }
    }
    if (!wakes && launches.every(({ phase }) => phase === 'ended'))
      reasons.push(`every job of deployment ${name} has ended`);
  }
  return { starts_in_s, running_jobs };
}

/** What comes before it answers, in words that follow `it is`. */
function describeLoading({ phase, bytes_loaded, bytes_total, usual_load_s }: SessionModel): string {
  const share =
    bytes_loaded !== undefined && bytes_total ? ` (${Math.floor((100 * bytes_loaded) / bytes_total)} %)` : '';
  const usual = usual_load_s === undefined ? '' : `, which usually takes ${Math.ceil(usual_load_s)} s in all`;
  return `${loadPhaseWords[phase ?? 'weights']}${share}${usual}`;
}

function jobReason(name: string, launch: DeploymentFacts['launches'][number]): string | undefined {
  const { pending, estimated_start_ms, state } = launch.last ?? {};
  const job = launch.job_id === undefined ? 'a job' : `job ${launch.job_id}`;
  if (pending) {
    const since =
      launch.submitting_since_ms === undefined ? '' : ` since ${inUtc(launch.submitting_since_ms)}`;
    const start = estimated_start_ms === undefined ? '' : `, expected at ${inUtc(estimated_start_ms)}`;
    return `${job} of deployment ${name} is pending${since}${start}: ${pending.explanation} (${pending.reason})`;
  }
  if (launch.phase !== 'submitted') return `${job} of deployment ${name} is being submitted`;
  return state === undefined ? undefined : `${job} of deployment ${name} is ${state}`;
}

/** To the minute; Slurm's estimates are no better. */
function inUtc(time_ms: number): string {
  return `${new Date(time_ms).toISOString().slice(0, 16)}Z`;
}

function isOf({ spec }: DeploymentFacts, model: string): boolean {
  return spec.models.some((entry) => namesOf(entry).includes(model));
}

function namesOf(entry: { name: string; aliases: string[] }): string[] {
  return [entry.name, ...entry.aliases];
}
