import { readFileSync } from 'node:fs';
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { Socket } from 'node:net';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { KeyStore, openLedger } from '../ledger/index.ts';
import { OwnSession, RendezvousRegistry } from '../mesh/index.ts';
import { routingPolicy } from '../solver/routing/policies.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { type GatewayConfig, type GatewayEndpoint, gatewayFiles } from '../spec/state-layout.ts';
import { limits } from '../spec/wire.ts';
import { createApi } from './api.ts';
import { Availability } from './availability.ts';
import { FolderLock } from './folder-lock.ts';
import { FrontDoor } from './front-door.ts';
import { adminToken, prepareFolder, readEndpoint, writeEndpoint } from './gateway-files.ts';
import { GatewayGossip } from './gateway-gossip.ts';
import { rawErrorAnswer } from './http-error.ts';
import { KeyLimits } from './keys/key-limits.ts';
import { listen } from './listen.ts';
import type { GatewayLog } from './log.ts';
import { GatewayMetrics } from './metrics.ts';
import { JournalMemory } from './relay/journal/journal-memory.ts';
import { Router } from './routing/router.ts';
import { ServiceTimes } from './routing/service-times.ts';
import { Sessions } from './sessions.ts';
import { Defragmenter } from './sharing/defragmenter.ts';
import { DemandMeter } from './workload/demand-meter.ts';
import { WorkloadMeter } from './workload/workload-meter.ts';

export interface GatewayTimes {
  /** Until the whole header of a request must be there. Lower: slow attackers hold connections shorter. */
  headers_ms: number;
  /** Until the whole request must be there; 32 MiB need 4.5 Mbit/s at 60 s. */
  request_ms: number;
  /** How long an idle connection is kept. Higher: fewer handshakes for clients. */
  keep_alive_ms: number;
  /** How long answers may still take when the gateway stops. */
  drain_ms: number;
  /** Granularity of the first two. */
  check_ms: number;
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
    const lock = await FolderLock.take(config.gateway_folder, {
      onLost: (reason) => {
        log.error({ reason }, 'the gateway folder was lost; stopping');
        void close().then(options.onLost);
      },
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
    const own = await OwnSession.join(registry, metadata(config), () => sessions?.relink());
    undo.push(() => own.leave());
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
      explainAbsence: (model) => availability.explain(model),
    });
    const door = new FrontDoor({
      router,
      ledger,
      keys,
      keyLimits,
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
      keyLimits,
      workload,
      metrics,
      availability,
      admin_token,
      log,
    };
    let server: Server | undefined;
    const api = createApi(
      services,
      door,
      (handler) => {
        server = makeServer(config, times, (request, response) => {
          if (!door.take(request, response)) handler(request, response);
        });
        return server;
      },
      (error, socket) => refuseConnection(error, socket),
    );
    await api.ready();
    const listening = server!;
    const previous = readEndpoint(config.gateway_folder);
    const port = await listen(
      listening,
      {
        host: config.host,
        port: config.port,
        previous: previous?.host === config.host ? previous.port : 0,
      },
      log,
    );
    undo.push(() => stopListening(listening));
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
    writeEndpoint(config.gateway_folder, endpoint);
    log.info({ url: endpoint.url, session: own.id }, 'gateway listens');

    let closing: Promise<void> | undefined;
    close = () => {
      closing ??= (async () => {
        door.drain();
        defragmenter.close();
        log.info({}, 'gateway drains');
        await drain(listening, times.drain_ms);
        await api.close();
        await found.close();
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

function makeServer(
  config: GatewayConfig,
  times: GatewayTimes,
  handler: (request: IncomingMessage, response: ServerResponse) => void,
): Server {
  const options = {
    maxHeaderSize: limits.header_bytes,
    headersTimeout: times.headers_ms,
    requestTimeout: times.request_ms,
    keepAliveTimeout: times.keep_alive_ms,
    connectionsCheckingInterval: times.check_ms,
    noDelay: true,
  };
  const server = config.tls
    ? createHttpsServer({ ...options, ...readTls(config.tls) }, handler)
    : createHttpServer(options, handler);
  // What is beyond is not accepted, and the client sees its connection closed at once.
  server.maxConnections = limits.connections;
  return server;
}

function readTls(files: NonNullable<GatewayConfig['tls']>): {
  cert: Buffer;
  key: Buffer;
  minVersion: 'TLSv1.2';
} {
  try {
    return {
      cert: readFileSync(files.certificate_file),
      key: readFileSync(files.key_file),
      minVersion: 'TLSv1.2',
    };
  } catch (error) {
    throw new HpcserveError('E_GATEWAY_CONFIG', {
      what: 'the TLS certificate or key for clients cannot be read',
      because: (error as Error).message,
    });
  }
}

/** Answers on a connection whose bytes never became a request, and ends it. */
function refuseConnection(error: Error & { code?: string }, socket: Socket): void {
  if (!socket.writable || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  // An answer may be half sent already on this connection: a second one would be garbage inside it.
  const busy = (socket as Socket & { _httpMessage?: ServerResponse | null })._httpMessage;
  if (busy?.headersSent) {
    socket.destroy();
    return;
  }
  const [known, phrase] = connectionError(error);
  socket.end(rawErrorAnswer(known, phrase), () => socket.destroy());
}

function connectionError(error: Error & { code?: string }): [HpcserveError, string] {
  switch (error.code) {
    case 'HPE_HEADER_OVERFLOW':
      return [
        new HpcserveError('E_REQUEST_HEADERS', {
          what: `the header of the request is larger than ${limits.header_bytes} bytes`,
        }),
        'Request Header Fields Too Large',
      ];
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return [
        new HpcserveError('E_REQUEST_TIMEOUT', { what: 'the request did not arrive in time' }),
        'Request Timeout',
      ];
    default:
      return [
        new HpcserveError('E_REQUEST_MALFORMED', {
          what: 'what arrived is not an HTTP request',
          because: error.message,
        }),
        'Bad Request',
      ];
  }
}

/** Stops accepting and waits until every answer has ended, or cuts them off after `drain_ms`. */
async function drain(server: Server, drain_ms: number): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  const idle = setInterval(() => server.closeIdleConnections(), 50);
  const limit = setTimeout(() => server.closeAllConnections(), drain_ms);
  await closed;
  clearInterval(idle);
  clearTimeout(limit);
}

async function stopListening(server: Server): Promise<void> {
  server.closeAllConnections();
  await new Promise<void>((resolve) => server.close(() => resolve()));
}

function metadata(config: GatewayConfig): Parameters<typeof OwnSession.join>[1] {
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
