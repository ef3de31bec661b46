/** The gateway of a site as deployments see it: there is one when something is served, with a key to use it. */
import { HpcserveError } from '../spec/errors/error.ts';
import type { GatewayEndpoint } from '../spec/state-layout.ts';
import type { CredentialFile } from './credentials.ts';
import { liveLaunches } from './deployment-state.ts';
import type { DeploymentStore } from './deployment-store.ts';
import { GatewayAdmin, listModels } from './gateway-admin.ts';
import { GatewayJob } from './gateway-job.ts';
import { lookAtGateway, readAdminToken, startGatewayProcess, stopGatewayProcess } from './gateway-process.ts';
import type { Operations } from './operations.ts';
import { retireSessions } from './retire-sessions.ts';
import { waitUntil } from './wait-until.ts';

/** Longest time for another command to start or stop the same gateway, ms. */
const lockWait_ms = 90_000;

/** Base URL for OpenAI clients. */
export function baseUrl(endpoint: Pick<GatewayEndpoint, 'url'>): string {
  return new URL('/v1', endpoint.url).href;
}

/**
 * The running gateway, started if there is none.
 * @returns it, and whether this call started it.
 * @throws E_GATEWAY_START, E_GATEWAY_UNREACHABLE.
 */
export async function ensureGateway(
  operations: Operations,
): Promise<{ endpoint: GatewayEndpoint; started: boolean }> {
  const { store, loaded, signal } = operations;
  const first = await lookAtGateway(store.layout);
  if (first.state === 'running' || first.state === 'elsewhere')
    return { endpoint: first.endpoint, started: false };
  const lock = await store.lockGateway({ command: operations.command, timeout_ms: lockWait_ms, signal });
  try {
    const sight = await lookAtGateway(store.layout);
    if (sight.state === 'running' || sight.state === 'elsewhere')
      return { endpoint: sight.endpoint, started: false };
    if (sight.state === 'silent')
      throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
        what: `the gateway runs (process ${sight.endpoint.pid}) but does not answer`,
        because: sight.because,
        try: 'look at its log with `hpcserve logs --gateway`; `hpcserve stop --gateway` ends it',
      });
    if (sight.predecessor !== undefined)
      await retireSessions(
        store.layout.mesh_folder,
        ({ session_id }) => session_id === sight.predecessor,
        'the gateway ended, another one takes its place',
      );
    if (loaded.site.gateway.place === 'job' && operations.slurm)
      return { endpoint: await new GatewayJob(operations, operations.slurm).start(), started: true };
    return { endpoint: await startGatewayProcess(loaded.site, store.layout, signal), started: true };
  } finally {
    lock.release();
  }
}

/** Ends the gateway, wherever it runs. */
export async function stopGateway(operations: Operations): Promise<void> {
  const { store } = operations;
  const lock = await store.lockGateway({
    command: operations.command,
    timeout_ms: lockWait_ms,
    signal: operations.signal,
  });
  try {
    if (operations.slurm) await new GatewayJob(operations, operations.slurm).stop();
    await stopGatewayProcess(store.layout);
  } finally {
    lock.release();
  }
}

/** Whether any deployment of the site still wants, or has, jobs. */
export function isGatewayNeeded(store: DeploymentStore): boolean {
  return store.list().some((name) => {
    const state = store.load(name);
    return state !== undefined && (state.desired === 'serving' || liveLaunches(state).length > 0);
  });
}

/** The person's key for this gateway: the kept one if it still works, else a new one, which is kept. */
export async function ensureKey(
  operations: Operations,
  endpoint: GatewayEndpoint,
  credentials: CredentialFile,
): Promise<string> {
  const { store, loaded, facts } = operations;
  const url = baseUrl(endpoint);
  const kept = credentials.find({ gateway_folder: store.layout.gateway_folder });
  if (kept && (await isAccepted(url, kept.key))) {
    if (kept.url !== url) credentials.save({ ...kept, url });
    return kept.key;
  }
  const admin = new GatewayAdmin(endpoint.url, readAdminToken(store.layout));
  const made = await admin.createKey(facts.user);
  credentials.save({
    url,
    site: loaded.site.name,
    gateway_folder: store.layout.gateway_folder,
    key: made.key,
    key_id: made.id,
    created_at_ms: operations.now_ms(),
  });
  return made.key;
}

async function isAccepted(url: string, key: string): Promise<boolean> {
  try {
    await listModels(url, key);
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
  url: string,
  key: string,
  names: readonly string[],
  signal: AbortSignal,
): Promise<string[]> {
  let missing = [...names];
  await waitUntil(
    async () => {
      const listed = new Set((await listModels(url, key, signal)).map((model) => model.id));
      missing = names.filter((name) => !listed.has(name));
      return missing.length === 0 ? true : undefined;
    },
    { timeout_ms: discovery_ms, interval_ms: 200, signal },
  );
  return missing;
}
