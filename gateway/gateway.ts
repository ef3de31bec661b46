import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { KeyStore, openLedger } from '../ledger/index.ts';
import { LocalSession, RendezvousRegistry } from '../mesh/index.ts';
import { routingPolicy } from '../solver/routing/policies.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import {
  type GatewayConfig,
  type GatewayEndpoint,
  gatewayFiles,
  type TakenPort,
} from '../spec/state-layout.ts';
import { limits } from '../spec/wire.ts';
import { createApi, isAdmin } from './api.ts';
import { Availability } from './availability.ts';
import { BodyMemory } from './body-memory.ts';
import { ClientConnections } from './client-connections.ts';
import { ClientTls } from './client-tls.ts';
import { bearerOf, OpenAiHandler } from './openai-handler.ts';
import { FrontPort, type FrontPortTimes, refuseConnection } from './front-port.ts';
import {
  adminToken,
  prepareFolder,
  readEndpoint,
  startOf,
  writeEndpoint,
  writeTakenPort,
} from './gateway-files.ts';
import { GatewayGossip } from './gateway-gossip.ts';
import { lockGatewayFolder } from './gateway-lock.ts';
import { GatewayProvider } from './gateway-provider.ts';
import type { HolderLink } from './holder/holder-link.ts';
import type { HeldName } from './holder/messages.ts';
import { adoptProviders } from './keys/adopt-providers.ts';
import { KeyLimits } from './keys/key-limits.ts';
import { KnownProviders } from './keys/known-providers.ts';
import type { GatewayLog } from './log.ts';
import { GatewayMetrics } from './metrics.ts';
import { JournalMemory } from './relay/journal/journal-memory.ts';
import { Router } from './routing/router.ts';
import { ServiceTimes } from './routing/service-times.ts';
import { Sessions } from './sessions.ts';
import { Defragmenter } from './sharing/defragmenter.ts';
import { DemandMeter } from './workload/demand-meter.ts';
import { WorkloadMeter } from './workload/workload-meter.ts';

export interface GatewayTimes extends FrontPortTimes {
  /** How long answers may still take when the gateway stops. */
  drain_ms: number;
  /** Of the mesh folder. */
  poll_ms: number;
  /** Of the keys' folder: how long another gateway's revocation may take to be seen. Higher: less to read. */
  keys_ms: number;
  /** Between two exchanges of what limited keys used with the other gateways; see `KeyLimits`. */
  limits_ms: number;
  /** How long a stream whose replica broke waits for another. Lower: errors show sooner; higher: restarts are outlived. */
  continue_ms: number;
  /** Between two looks for models that are split over devices; see `Defragmenter`. */
  defragment_ms: number;
}

const defaultTimes: GatewayTimes = {
  headers_ms: 10_000,
  request_ms: 60_000,
  keep_alive_ms: 75_000,
  drain_ms: 30_000,
  check_ms: 1000,
  poll_ms: 1000,
  keys_ms: 2000,
  limits_ms: 1000,
  continue_ms: 10_000,
  defragment_ms: 2000,
};

export interface RunningGateway {
  endpoint: GatewayEndpoint;
  admin_token: string;
  /** Lets answers end (for at most `drain_ms`), leaves the mesh, closes the ledger. */
  close(): Promise<void>;
}

export interface GatewayOptions {
  log: GatewayLog;
  times?: Partial<GatewayTimes>;
  /** The folder was taken over by another gateway: this one has closed itself. */
  onLost?: () => void;
  /** The process that holds its listening sockets, where there is one. */
  holder?: HolderLink | undefined;
  /** Listening sockets that are there already. */
  inherited?: Partial<Record<HeldName, number>>;
}

/**
 * Starts a gateway on its folder.
 *
 * Throws E_GATEWAY_RUNNING, E_GATEWAY_PORT, E_GATEWAY_FOLDER, E_LEDGER_*, E_MESH_*.
 */
export async function startGateway(config: GatewayConfig, options: GatewayOptions): Promise<RunningGateway> {
  const { log } = options;
  const times = { ...defaultTimes, ...options.times };
  const undo: (() => unknown)[] = [];
  try {
    prepareFolder(config.gateway_folder);
    let close = async (): Promise<void> => {};
    const lock = await lockGatewayFolder(config.gateway_folder, (reason) => {
      log.error({ reason }, 'the gateway folder was lost; stopping');
      void close().then(options.onLost);
    });
    undo.push(() => lock.release());
    const admin_token = adminToken(config.gateway_folder);
    const { ledger, filesystem, repair } = openLedger(join(config.gateway_folder, gatewayFiles.ledger), {
      onHealth: (error) => {
        if (error) log.error({ code: error.code, because: error.because }, 'ledger cannot be written');
        else log.info({}, 'ledger can be written again');
      },
    });
    undo.push(() => ledger.close());
    if (repair)
      log.error({ ...repair }, 'the ledger was damaged: set aside, and what could be read was saved');
    log.info({ filesystem: filesystem.name }, 'ledger open');
    const keys = await KeyStore.open(config.keys_folder ?? join(dirname(config.gateway_folder), 'keys'), {
      poll_ms: times.keys_ms,
      onTrouble: (reason) => {
        if (reason) log.warn({ reason }, 'the keys folder cannot be read: keys are as they were');
        else log.info({}, 'the keys folder can be read again');
      },
    });
    undo.push(() => keys.close());
    keys.adopt(ledger.formerKeys());
    const keyLimits = new KeyLimits({
      gateway_folder: config.gateway_folder,
      ledger,
      log,
      exchange_ms: times.limits_ms,
    });
    undo.push(() => keyLimits.close());
    await keyLimits.start(keys.list());
    const workload = new WorkloadMeter(config.gateway_folder, log);
    undo.push(() => workload.close());

    const registry = await RendezvousRegistry.open(config.mesh_folder, {
      create: true,
      poll_ms: times.poll_ms,
    });
    undo.push(() => registry.close());
    const gossip = new GatewayGossip(registry, config, log);
    undo.push(() => gossip.close());
    let sessions: Sessions | undefined;
    const provider = new GatewayProvider(config, log, () => {
      own.update({}).catch((error: unknown) => log.error(error));
    });
    undo.push(() => provider.close());
    const own = await LocalSession.join(
      registry,
      metadata(config),
      () => sessions?.relink(),
      () => provider.delegation,
    );
    undo.push(() => own.leave());
    adoptProviders(keys, { name: config.provider, provider_id: provider.delegation?.provider_id }, log);
    const providers = new KnownProviders(registry);
    undo.push(() => providers.close());
    await retirePredecessor(config.gateway_folder, registry, own);
    const found = new Sessions(registry, () => own.identity, log, gossip.detour);
    sessions = found;
    undo.push(() => found.close());

    const { table } = sessions;
    const defragmenter = new Defragmenter(table, log, times.defragment_ms);
    undo.push(() => defragmenter.close());
    const metrics = new GatewayMetrics({
      sessions: () => {
        const all = table.sessions();
        const reachable = all.filter((session) => session.reachable).length;
        return { reachable, unreachable: all.length - reachable };
      },
      replicas: () =>
        table
          .sessions()
          .filter(({ reachable }) => reachable)
          .flatMap(({ replicas }) => replicas.map((replica) => ({ ...replica, model: replica.served.name }))),
      mesh: () => gossip.status(),
      ledgerFailing: () => ledger.failure !== undefined,
      workloads: () => workload.workloads(),
    });
    const availability = new Availability(config.deployments_folder, table, log);
    const serviceTimes = new ServiceTimes();
    const demand = new DemandMeter(
      config.gateway_folder,
      log,
      (model) => serviceTimes.measured(model)?.ttft_s,
    );
    undo.push(() => demand.close());
    const wait_max_s = config.wait_max_s ?? 120;
    const router = new Router({
      table,
      policy: routingPolicy(config.routing ?? 'by-engine', limits.queue_length),
      serviceTimes,
      wait_max_s,
      expectedTokens: (model) => workload.expectedTokens(model),
      explainAbsence: (model, names) => availability.explain(model, names),
    });
    const door = new OpenAiHandler({
      router,
      ledger,
      keys,
      providers,
      keyLimits,
      bodies: bodyMemory(config),
      body_bytes_max: Math.min(config.body_bytes_max ?? limits.body_bytes, limits.body_bytes),
      workload,
      metrics,
      log,
      journals: new JournalMemory(),
      serviceTimes,
      demand,
      defragmenter,
      wake_wait_s: wait_max_s,
      continue_ms: times.continue_ms,
    });
    const services = {
      table,
      router,
      records: () => registry.snapshot(),
      mesh: gossip,
      ledger,
      keys,
      providers,
      keyLimits,
      workload,
      metrics,
      availability,
      admin_token,
      log,
    };
    const tls = config.tls ? await ClientTls.open({ ...config, tls: config.tls }, log) : undefined;
    undo.push(() => tls?.close());
    const connections = new ClientConnections(limits.connections, (request) => {
      const secret = bearerOf(request);
      return secret !== undefined && (keys.find(secret) !== undefined || isAdmin(request, admin_token));
    });
    let made: FrontPort | undefined;
    const api = createApi(
      services,
      door,
      (handler) => {
        made = new FrontPort(
          { times, log, connections, tls, holder: options.holder, inherited: options.inherited ?? {} },
          (request, response) => {
            if (!door.take(request, response)) handler(request, response);
          },
        );
        return made.server;
      },
      refuseConnection,
    );
    await api.ready();
    const front = made!;
    undo.push(() => front.stop());
    const port = await listenAsBefore(front, config, log);
    if (config.socket !== undefined) await front.listenOnSocket(config.socket);
    await own.update({
      lifecycle: 'SERVING',
      metadata: { addresses: [{ host: publicHost(config.host), port }] },
    });
    const endpoint: GatewayEndpoint = {
      format: 1,
      url: `${config.tls ? 'https' : 'http'}://${urlHost(publicHost(config.host))}:${port}`,
      hostname: hostname(),
      host: config.host,
      port,
      pid: process.pid,
      session_id: own.id,
      started_at_ms: Date.now(),
    };
    if (process.env.SLURM_JOB_ID) endpoint.job_id = process.env.SLURM_JOB_ID;
    const process_started = startOf(process.pid);
    if (process_started) endpoint.process = process_started;
    if (tls) endpoint.certificate_file = tls.certificate_file;
    if (tls?.ca_file !== undefined) endpoint.ca_file = tls.ca_file;
    if (config.socket !== undefined) endpoint.socket = config.socket;
    writeEndpoint(config.gateway_folder, endpoint);
    log.info({ url: endpoint.url, session: own.id }, 'gateway listens');
    options.holder?.listens();

    let closing: Promise<void> | undefined;
    close = () => {
      closing ??= (async () => {
        door.drain();
        defragmenter.close();
        log.info({}, 'gateway drains');
        options.holder?.close();
        await front.drain(times.drain_ms);
        tls?.close();
        await api.close();
        await found.close();
        provider.close();
        providers.close();
        await own.leave();
        await gossip.close();
        await registry.close();
        await keyLimits.close();
        keys.close();
        await workload.close();
        await demand.close();
        await ledger.close();
        lock.release();
        log.info({}, 'gateway stopped');
      })();
      return closing;
    };
    return { endpoint, admin_token, close };
  } catch (error) {
    for (const step of undo.reverse()) await step();
    throw error;
  }
}

function bodyMemory({
  bodies_bytes_max = 1e9,
  bodies_key_bytes_max,
  body_wait_s = 5,
}: GatewayConfig): BodyMemory {
  return new BodyMemory({
    bytes_max: bodies_bytes_max,
    key_bytes_max: bodies_key_bytes_max ?? bodies_bytes_max / 4,
    wait_ms: 1000 * body_wait_s,
  });
}

/** One that was killed could not say that it left; who holds the lock of the folder knows that it is gone. */
async function retirePredecessor(
  folder: string,
  registry: RendezvousRegistry,
  own: LocalSession,
): Promise<void> {
  const before = readEndpoint(folder)?.session_id;
  const record = before === undefined ? undefined : registry.get(before);
  if (record && record.lifecycle !== 'LEFT')
    await registry.retire(record.session_id, 'the gateway ended, another one takes its place', own.identity);
}

/** The port of the last run, where it can be had. Throws E_GATEWAY_PORT. */
async function listenAsBefore(front: FrontPort, config: GatewayConfig, log: GatewayLog): Promise<number> {
  const { gateway_folder, host } = config;
  const previous = readEndpoint(gateway_folder);
  const note = (taken: TakenPort | undefined): void => {
    // A port that was never this gateway's has been given no key.
    if (!taken || taken.port !== previous?.port || previous.hostname !== hostname()) return;
    writeTakenPort(gateway_folder, taken);
    log.error(
      { ...taken },
      'another user had the port of this gateway: who asked there may have shown his key; revoke such keys with `hpcserve keys revoke`',
    );
  };
  try {
    const found = await front.listen({
      host,
      port: config.port,
      previous: previous?.host === host ? previous.port : 0,
    });
    note(found.taken);
    return found.port;
  } catch (error) {
    if (error instanceof HpcserveError) note(error.details.taken as TakenPort | undefined);
    throw error;
  }
}

function metadata(config: GatewayConfig): Parameters<typeof LocalSession.join>[1] {
  return {
    role: 'gateway',
    node: process.env.SLURMD_NODENAME ?? hostname(),
    hostname: hostname(),
    site: config.site,
    provider: config.provider,
    tier: 'stable',
    devices: [],
    models: [],
    addresses: [],
    ...(process.env.SLURM_JOB_ID ? { job_id: process.env.SLURM_JOB_ID } : {}),
  };
}

/** The name under which others reach a gateway that listens on every interface. */
function publicHost(host: string): string {
  return host === '0.0.0.0' || host === '::' ? hostname() : host;
}

function urlHost(host: string): string {
  return host.includes(':') ? `[${host}]` : host;
}
