/** The gateway of a site as deployments see it: there is one when something is served, with a key to use it. */
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { waitUntil } from '../../host/wait-until.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { GatewayEndpoint, StateLayout } from '../../spec/state-layout.ts';
import type { Operations } from '../runner/operations.ts';
import type { CredentialFile } from '../state/credentials.ts';
import { isActive } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import { GatewayAdmin, listModels } from './admin.ts';
import type { GatewayAddress } from './client.ts';
import { GatewayJob, isJobWanted } from './job.ts';
import {
  type GatewayStatus,
  inspectGateway,
  inspectGateways,
  isHeld,
  type ListenAddress,
  layoutOf,
  readAdminToken,
  shouldRun,
  startGatewayProcess,
  stopGatewayProcess,
} from './process.ts';
import { retireSessions } from './retire-sessions.ts';
import { baseUrl } from './url.ts';

/** Until a gateway that its holder starts again answers, ms. Higher: slow filesystems; lower: trouble shows sooner. */
const restart_ms = 30_000;

/**
 * The running gateway, started if there is none.
 * @param number which of the site, from 1
 * @param address where a new one is to listen, if not as the site config, or its own of before, says
 * @returns it, and whether this call started it.
 * @throws E_GATEWAY_START, E_GATEWAY_UNREACHABLE.
 */
export async function ensureGateway(
  operations: Operations,
  number = 1,
  address?: ListenAddress,
): Promise<{ endpoint: GatewayEndpoint; started: boolean }> {
  const there = await bringGateway(operations, number, async (layout) => {
    const { loaded, signal, slurm } = operations;
    return loaded.site.gateway.place === 'job' && slurm
      ? new GatewayJob(operations, slurm, layout).start(address)
      : startGatewayProcess(loaded.site, layout, signal, address);
  });
  return 'endpoint' in there ? { ...there, started: false } : { endpoint: there.started, started: true };
}

/** Whether a gateway was started, as a process or a job, and nobody ended it in order. */
export function isGatewayDesired(layout: StateLayout): boolean {
  return shouldRun(layout) || isJobWanted(layout);
}

/**
 * Starts a gateway that is not there although it is to be: where it is a job, that may wait in the queue for long.
 * @returns what was started by this call
 * @throws as `ensureGateway`
 */
export async function restartGateway(
  operations: Operations,
  number: number,
): Promise<{ url: string } | { job_id: string } | undefined> {
  // Whoever holds its port starts it again.
  if (isHeld(layoutOf(operations.store.layout, number))) return undefined;
  const there = await bringGateway(operations, number, async (layout) => {
    const { loaded, signal, slurm } = operations;
    // A command that was ending it held the lock until now.
    if (!isGatewayDesired(layout)) return undefined;
    if (loaded.site.gateway.place !== 'job' || !slurm)
      return { url: (await startGatewayProcess(loaded.site, layout, signal)).url };
    const { job_id, submitted } = await new GatewayJob(operations, slurm, layout).submit();
    return submitted ? { job_id } : undefined;
  });
  return 'endpoint' in there ? undefined : there.started;
}

/** Looks whether it runs, and has it started where not, which nobody else does meanwhile. */
async function bringGateway<T>(
  operations: Operations,
  number: number,
  start: (layout: StateLayout) => Promise<T>,
): Promise<{ endpoint: GatewayEndpoint } | { started: T }> {
  const { store } = operations;
  const layout = layoutOf(store.layout, number);
  const first = await inspectWithJob(operations, layout);
  if (first.state === 'running' || first.state === 'elsewhere') return { endpoint: first.endpoint };
  store.prepareSite();
  return store.withGatewayLock(operations, async () => {
    const status = await inspectUntilRestarted(operations, layout);
    if (status.state === 'running' || status.state === 'elsewhere') return { endpoint: status.endpoint };
    if (status.state === 'silent')
      throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
        what: `the gateway runs (process ${status.endpoint.pid}) but does not answer`,
        because: status.because,
        try: 'look at its log with `hpcserve logs --gateway`; `hpcserve stop --gateway` ends it',
      });
    if (status.predecessor !== undefined)
      await retireSessions(
        layout.mesh_folder,
        ({ session_id }) => session_id === status.predecessor,
        'the gateway ended, another one takes its place',
      );
    return { started: await start(layout) };
  });
}

/** One that ended a moment ago is back soon. */
async function inspectUntilRestarted(operations: Operations, layout: StateLayout): Promise<GatewayStatus> {
  const { signal } = operations;
  const back = await waitUntil(
    async () => {
      const status = await inspectWithJob(operations, layout);
      return status.state === 'silent' && status.is_restarting ? undefined : status;
    },
    { timeout_ms: restart_ms, interval_ms: 100, signal },
  );
  return back ?? (await inspectWithJob(operations, layout));
}

/**
 * A gateway that does not answer from here may still answer elsewhere, but not where its job is over or waits again.
 */
async function inspectWithJob({ slurm }: Operations, layout: StateLayout): Promise<GatewayStatus> {
  const status = await inspectGateway(layout);
  if (status.state !== 'elsewhere' || status.endpoint.job_id === undefined || !slurm) return status;
  const { job_id, session_id } = status.endpoint;
  const jobs = await slurm.jobs([job_id]);
  if (jobs.some(({ phase }) => phase === 'running' || phase === 'ending')) return status;
  return { state: 'not_running', because: `its job ${job_id} does not run`, predecessor: session_id };
}

/**
 * Ends the gateways of the site, or one of them. One that runs on another host as no job can only be ended there: of
 * all, that is a warning.
 * @throws E_DEPLOYMENT_STOP where it is the one that was named.
 */
export async function stopGateway(operations: Operations, number?: number): Promise<void> {
  const { store } = operations;
  const left: HpcserveError[] = [];
  await store.withGatewayLock(operations, async () => {
    for (const gateway of await inspectGateways(store.layout)) {
      if (number !== undefined && gateway.number !== number) continue;
      const { layout, status } = gateway;
      if (operations.slurm) await new GatewayJob(operations, operations.slurm, layout).stop();
      const { endpoint } = status.state === 'not_running' ? {} : status;
      if (endpoint && endpoint.hostname !== hostname() && endpoint.job_id === undefined && shouldRun(layout))
        left.push(
          new HpcserveError('E_DEPLOYMENT_STOP', {
            what: `gateway ${gateway.number} cannot be ended from here`,
            because: `it runs on ${endpoint.hostname}`,
            try: `log in to ${endpoint.hostname} and run \`hpcserve gateway stop ${gateway.number}\``,
          }),
        );
      else await stopGatewayProcess(layout);
    }
  });
  for (const error of left) {
    if (number !== undefined) throw error;
    const message = [error.message, ...error.because, ...error.try].join('; ');
    operations.emit({ at_ms: operations.now_ms(), kind: 'warning', message });
  }
}

/** Whether any deployment of the site still wants, or has, jobs; one whose file cannot be read may. */
export function isGatewayNeeded(store: DeploymentStore): boolean {
  const { states, unreadable } = store.loadAll();
  return unreadable.length > 0 || states.some(isActive);
}

/** The person's key for this gateway: the kept one if it still works, else a new one, which is kept. */
async function ensureKey(
  operations: Operations,
  endpoint: GatewayEndpoint,
  credentials: CredentialFile,
): Promise<string> {
  const { store, loaded, facts, now_ms, emit } = operations;
  const url = baseUrl(endpoint);
  const kept = credentials.find({ gateway_folder: store.layout.gateway_folder });
  if (kept && (await isAccepted({ ...endpoint, url }, kept.key))) {
    if (kept.url !== url) credentials.save({ ...kept, url });
    return kept.key;
  }
  const admin = new GatewayAdmin(endpoint, readAdminToken(store.layout));
  const credential = {
    url,
    site: loaded.site.name,
    gateway_folder: store.layout.gateway_folder,
    created_at_ms: now_ms(),
  };
  credentials.requireRoomFor(credential);
  const { key, id: key_id } = await admin.createKey(facts.user);
  try {
    credentials.save({ ...credential, key, key_id });
  } catch (thrown) {
    // Nobody has it, and whoever deploys again makes another one.
    await admin.revokeKey(key_id).catch((error: unknown) => {
      const reason = HpcserveError.from(error).message;
      const message = `the key ${key_id} was kept nowhere, and is still valid (hpcserve keys revoke ${key_id}): ${reason}`;
      emit({ at_ms: now_ms(), kind: 'warning', message });
    });
    throw thrown;
  }
  return key;
}

/**
 * Both: a gateway that is lost between the two is started again, by whoever holds its port or by this command.
 * @throws as `ensureGateway`; E_GATEWAY_UNREACHABLE where it does not answer for `restart_ms`
 */
export async function ensureGatewayAndKey(
  operations: Operations,
  credentials: CredentialFile,
): Promise<{ endpoint: GatewayEndpoint; started: boolean; key: string }> {
  const { signal } = operations;
  const deadline_ms = performance.now() + restart_ms;
  for (let started = false; ; ) {
    const gateway = await ensureGateway(operations);
    started ||= gateway.started;
    try {
      return { ...gateway, started, key: await ensureKey(operations, gateway.endpoint, credentials) };
    } catch (error) {
      if (!isAway(error) || performance.now() >= deadline_ms) throw error;
      await sleep(away_pause_ms, undefined, { signal });
    }
  }
}

/** Between two tries to reach a gateway that was lost a moment ago, ms. */
const away_pause_ms = 250;

function isAway(error: unknown): boolean {
  return error instanceof HpcserveError && error.code === 'E_GATEWAY_UNREACHABLE';
}

async function isAccepted(gateway: GatewayAddress, key: string): Promise<boolean> {
  try {
    await listModels(gateway, key);
    return true;
  } catch (error) {
    if (error instanceof HpcserveError && (error.details.status === 401 || error.details.status === 403))
      return false;
    throw error;
  }
}

/** How long the gateway may take to see replicas whose agents already say they serve, ms. */
const discovery_ms = 20_000;

/**
 * Waits until the gateway itself lists all models: only then a client's request goes through.
 * @returns the names that are still missing; empty when all are there.
 */
export async function waitForModels(
  endpoint: GatewayEndpoint,
  key: string,
  names: readonly string[],
  signal: AbortSignal,
): Promise<string[]> {
  let missing = [...names];
  await waitUntil(
    async () => {
      const gateway = { ...endpoint, url: baseUrl(endpoint) };
      const entries = await listModels(gateway, key, signal).catch((error: unknown) => {
        // It is being started again; nothing of the deployment depends on that.
        if (isAway(error) && !signal.aborted) return [];
        throw error;
      });
      const listed = new Set(entries.map((model) => model.id));
      missing = names.filter((name) => !listed.has(name));
      return missing.length === 0 ? true : undefined;
    },
    { timeout_ms: discovery_ms, interval_ms: 200, signal },
  );
  return missing;
}
