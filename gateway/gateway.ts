import type { IncomingMessage } from 'node:http';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import type { Duplex } from 'node:stream';
import { DisposerStack } from '../host/disposer-stack.ts';
import { KeyStore, type Ledger, openLedger } from '../ledger/index.ts';
import { LocalSession, RendezvousRegistry } from '../mesh/index.ts';
import { systemMessage } from '../spec/errors/system-error.ts';
import type { SessionMetadata } from '../spec/session-record.ts';
import { type GatewayConfig, type GatewayEndpoint, gatewayFiles } from '../spec/state-layout.ts';
import { limits } from '../spec/wire.ts';
import { createApi } from './api.ts';
import { Availability } from './availability.ts';
import { Batches, type BatchesOptions } from './batches/batches.ts';
import { bearerOf } from './bearer.ts';
import { isAdmin } from './caller.ts';
import { ClientConnections } from './client-connections.ts';
import { ClientServers } from './client-servers.ts';
import { ClientTls } from './client-tls.ts';
import { CrossOrigin } from './cross-origin.ts';
import { describeEndpoint, listenAsBefore, publicHost } from './endpoint.ts';
import { FrontPort } from './front-port.ts';
import { adminToken, prepareFolder, readEndpoint, writeEndpoint } from './gateway-files.ts';
import { GatewayGossip } from './gateway-gossip.ts';
import { lockGatewayFolder } from './gateway-lock.ts';
import { GatewayProvider } from './gateway-provider.ts';
import { defaultTimes, type GatewayTimes } from './gateway-times.ts';
import {
  bodyMax_bytes,
  bodyMemory,
  openPrompts,
  openRouter,
  openTracer,
  openTracing,
  openWaiting,
} from './handler-parts.ts';
import type { HolderLink } from './holder/holder-link.ts';
import type { Inherited } from './holder/messages.ts';
import { KeptForKeys } from './kept/kept-for-keys.ts';
import { adoptProviders } from './keys/adopt-providers.ts';
import { KeyLimits } from './keys/key-limits.ts';
import { KnownProviders } from './keys/known-providers.ts';
import { OwnLimits } from './keys/request-limits.ts';
import type { GatewayLog } from './log.ts';
import type { Login, LoginServices } from './login/login.ts';
import { GatewayMetrics } from './metrics.ts';
import { OpenAiHandler } from './openai-handler.ts';
import { Distributor } from './processes/distributor.ts';
import type { IdentityPem } from './processes/messages.ts';
import { PassedRequests } from './processes/passed-requests.ts';
import { type StartLimit, Workers } from './processes/workers.ts';
import { refuseConnection } from './refuse-connection.ts';
import { JournalMemory } from './relay/journal/journal-memory.ts';
import { OwnAccounts } from './relay/request-accounts.ts';
import { ServiceTimes } from './routing/service-times.ts';
import { ScalingExchange } from './scaling-exchange.ts';
import type { SessionLink } from './session-link.ts';
import { Sessions } from './sessions.ts';
import { Defragmenter } from './sharing/defragmenter.ts';
import { DemandMeter } from './workload/demand-meter.ts';
import { WorkloadMeter } from './workload/workload-meter.ts';

export interface RunningGateway {
  endpoint: GatewayEndpoint;
  admin_token: string;
  /** Lets answers end (for at most `drain_ms`), leaves the mesh, closes the ledger. */
  close(): Promise<void>;
}

export interface GatewayOptions {
  log: GatewayLog;
  times?: Partial<GatewayTimes>;
  /** Requests that may wait for a replica that starts; absent: as many as may wait at a replica. */
  waiting_max?: number;
  /** Of the processes that relay, where there are several. */
  start_limit?: StartLimit;
  /** The folder was taken over by another gateway: this one has closed itself. */
  onLost?: () => void;
  /** The process that holds its listening sockets, where there is one. */
  holder?: HolderLink | undefined;
  /** Listening sockets that are there already. */
  inherited?: Inherited;
}

/** What the parts of a gateway that starts have in common. */
interface Start {
  config: GatewayConfig;
  options: GatewayOptions;
  times: GatewayTimes;
  log: GatewayLog;
  /** The processes that relay its requests, where it does not do that itself; there from its start on. */
  workers?: Workers;
  /** Each part is added when it is there, with how it ends. */
  parts: DisposerStack;
}

/**
 * Starts a gateway on its folder, part by part; they end in the reverse order, when starting fails and when it closes.
 *
 * ```
 *   folder ─► records ─► mesh ─► routing ─► front ─► workers ─► serving
 *   lock      ledger     folder   filters    TLS      where      port, socket, lifecycle SERVING,
 *             keys       gossip   policy     paths    several    endpoint file
 *             limits     own session
 * ```
 *
 * The order matters where it ends: requests end before what they need; the own session leaves while the mesh can still
 * tell of it; the ledger closes when nothing records any more; and the lock goes last, since whoever takes it next
 * writes the same files.
 *
 * Throws E_GATEWAY_RUNNING, E_GATEWAY_PORT, E_GATEWAY_FOLDER, E_GATEWAY_WORKER, E_LEDGER_*, E_MESH_*.
 */
export async function startGateway(config: GatewayConfig, options: GatewayOptions): Promise<RunningGateway> {
  const { log } = options;
  const parts = new DisposerStack();
  const times = { ...defaultTimes, ...options.times };
  if (config.load_wait_s !== undefined) times.load_wait_ms = 1000 * config.load_wait_s;
  const start: Start = { config, options, times, log, parts };
  let running: RunningGateway | undefined;
  const onLost = async (): Promise<void> => {
    await running?.close();
    options.onLost?.();
  };
  try {
    const admin_token = await takeFolder(start, onLost);
    const records = await openRecords(start);
    const mesh = await joinMesh(start, records.keys);
    const routing = prepareRouting(start, records, mesh);
    const front = await openFront(start, { ...records, ...mesh, ...routing, admin_token });
    await openWorkers(start, { ...records, ...mesh, ...routing, ...front, admin_token });
    const endpoint = await serve(start, mesh.own, routing.defragmenter, front);
    let closed: Promise<void> | undefined;
    const close = (): Promise<void> => {
      closed ??= parts.dispose().then(() => log.info({}, 'gateway stopped'));
      return closed;
    };
    running = { endpoint, admin_token, close };
    return running;
  } catch (error) {
    await parts.dispose().catch((second: unknown) => {
      log.error({ reason: String(second) }, 'what was started could not be ended in order');
    });
    throw error;
  }
}

/** @returns the admin token */
async function takeFolder(
  { config: { gateway_folder }, log, parts }: Start,
  onLost: () => Promise<void>,
): Promise<string> {
  prepareFolder(gateway_folder);
  const lock = await lockGatewayFolder(gateway_folder, (reason) => {
    log.error({ reason }, 'the gateway folder was lost; stopping');
    void onLost();
  });
  parts.add(lock, () => lock.release());
  return adminToken(gateway_folder);
}

type Records = Awaited<ReturnType<typeof openRecords>>;

/** What is kept of requests: the ledger, keys and what they used, and measured load. */
async function openRecords(start: Start) {
  const { config, times, log, parts } = start;
  const { gateway_folder } = config;
  const ledger = openGatewayLedger(gateway_folder, log, () => start.workers?.tell(['ledger', null]));
  parts.add(ledger, () => ledger.close());
  const keys = await KeyStore.open(config.keys_folder ?? join(dirname(gateway_folder), 'keys'), {
    poll_ms: times.keys_ms,
    onTrouble: (reason) => {
      if (reason) log.warn({ reason }, 'the keys folder cannot be read: keys are as they were');
      else log.info({}, 'the keys folder can be read again');
    },
  });
  parts.add(keys, () => keys.close());
  keys.adopt(ledger.formerKeys());
  const keyLimits = new KeyLimits({ gateway_folder, ledger, log, exchange_ms: times.limits_ms });
  parts.add(keyLimits, () => keyLimits.close());
  await keyLimits.start(keys.list());
  const kept = parts.add(new KeptForKeys(config, log), (part) => part.close());
  const workload = parts.add(new WorkloadMeter(gateway_folder, log), (meter) => meter.close());
  const serviceTimes = new ServiceTimes();
  const demand = new DemandMeter(gateway_folder, log, (model) => serviceTimes.clientTtft_s(model));
  parts.add(demand, () => demand.close());
  return { ledger, keys, keyLimits, kept, workload, serviceTimes, demand };
}

function openGatewayLedger(gateway_folder: string, log: GatewayLog, onGood: () => void): Ledger {
  const { ledger, filesystem, repair } = openLedger(join(gateway_folder, gatewayFiles.ledger), {
    onHealth: (error) => {
      if (error) log.error({ code: error.code, because: error.because }, 'ledger cannot be written');
      else {
        log.info({}, 'ledger can be written again');
        onGood();
      }
    },
    onThrown: (thrown) => log.error(thrown, 'an answer could not be sent behind its commit'),
  });
  if (repair) log.error({ ...repair }, 'the ledger was damaged: set aside, and what could be read was saved');
  log.info({ filesystem: filesystem.name }, 'ledger open');
  return ledger;
}

type Mesh = Awaited<ReturnType<typeof joinMesh>>;

/** The gateway as a member of the mesh, and links to the sessions that serve models there. */
async function joinMesh(start: Start, keys: KeyStore) {
  const { config, times, log, parts } = start;
  const registry = await RendezvousRegistry.open(config.mesh_folder, {
    create: true,
    poll_ms: times.poll_ms,
  });
  parts.add(registry, () => registry.close());
  const gossip = parts.add(new GatewayGossip(registry, config, log), (part) => part.close());
  let sessions: Sessions | undefined;
  const provider = new GatewayProvider(config, log, () => {
    own.update({}).catch((error: unknown) => log.error(error));
  });
  parts.add(provider, () => provider.close());
  const own = await LocalSession.join(
    registry,
    metadata(config),
    () => {
      sessions?.relink();
      start.workers?.tell(['identity', identityPemOf(own)]);
    },
    () => provider.delegation,
  );
  parts.add(own, () => own.leave());
  adoptProviders(keys, { name: config.provider, provider_id: provider.delegation?.provider_id }, log);
  const providers = parts.add(new KnownProviders(registry), (part) => part.close());
  await retirePredecessor(config.gateway_folder, registry, own);
  const linked = new Sessions(registry, () => own.identity, log, gossip.relayFallback);
  sessions = linked;
  parts.add(linked, (part) => part.close());
  if (config.keeper_folder !== undefined) {
    const files = { gateway_folder: config.gateway_folder, keeper_folder: config.keeper_folder };
    parts.add(new ScalingExchange(files, registry, own, log, times.poll_ms), (part) => part.close());
  }
  const session = (session_id: string): SessionLink | undefined => linked.link(session_id);
  return { registry, gossip, own, providers, sessions: linked, session, table: linked.table };
}

function metadata({ site, provider }: GatewayConfig): SessionMetadata {
  const described: SessionMetadata = {
    role: 'gateway',
    node: process.env.SLURMD_NODENAME ?? hostname(),
    hostname: hostname(),
    site,
    provider,
    tier: 'stable',
    devices: [],
    models: [],
    addresses: [],
  };
  if (process.env.SLURM_JOB_ID) described.job_id = process.env.SLURM_JOB_ID;
  return described;
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

type Routing = ReturnType<typeof prepareRouting>;

/** Who answers a request, and what is told of that. Nothing here is to be ended. */
function prepareRouting(start: Start, records: Records, { sessions, table, gossip }: Mesh) {
  const { config, log } = start;
  const { ledger, workload, serviceTimes } = records;
  const availability = new Availability(config.deployments_folder, table, log);
  const prompts = openPrompts(sessions);
  const router = openRouter(config, { table, serviceTimes, workload, availability, prompts });
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
    links: () => table.linkedDevices().map(({ node, name: link, use }) => ({ node, link, use })),
    mesh: () => gossip.status(),
    ledgerFailing: () => ledger.failure !== undefined,
    workloads: () => workload.workloads(),
    relays: () => start.workers?.ready ?? 1,
    workers: async () => (await start.workers?.measure()) ?? [],
  });
  const onMeasured = (model: string): void => start.workers?.measured(model);
  const accounts = new OwnAccounts({ ...records, metrics, onMeasured });
  return { router, prompts, availability, metrics, accounts, defragmenter: new Defragmenter(table, log) };
}

type Front = Awaited<ReturnType<typeof openFront>>;

/** Where clients come in, and what answers them; it does not listen yet. */
async function openFront(start: Start, services: Records & Mesh & Routing & { admin_token: string }) {
  const { config, options, times, log, parts } = start;
  const bodies = bodyMemory(config);
  const tracing = openTracing(config, { id: services.own.id, interval_ms: times.export_ms, log });
  parts.add(tracing, () => tracing?.close());
  const login = await openLogin(config, { ...services, log });
  const handler = new OpenAiHandler({
    ...services,
    login,
    tracing,
    bodies,
    limits: new OwnLimits(services.keyLimits),
    body_bytes_max: bodyMax_bytes(config),
    log,
    journals: new JournalMemory(),
    tracer: openTracer(config),
    waiting: openWaiting(config, times, waitingMax(options)),
  });
  const tls = config.tls ? await ClientTls.open({ ...config, tls: config.tls }, log) : undefined;
  parts.add(tls, () => tls?.close());
  const { keys, registry, gossip, admin_token } = services;
  const isProven = (request: IncomingMessage): boolean => {
    const secret = bearerOf(request);
    if (secret === undefined) return login?.isKnown(request) === true;
    return keys.find(secret) !== undefined || isAdmin(request, admin_token);
  };
  const tunnel = (session_id: string): Promise<Duplex> => tunnelTo(session_id, services);
  const passed = isRelayedByWorkers(config) ? new PassedRequests({ isProven, tunnel }) : undefined;
  const own = passed
    ? undefined
    : new ClientServers(times, new ClientConnections(limits.connections, isProven), tls?.options);
  const accepting = own ?? new Distributor((...connection) => start.workers!.give(connection));
  tls?.watch(own ?? { setSecureContext: (shown) => start.workers?.tell(['tls', shown]) });
  const { holder, inherited = {} } = options;
  const port = parts.add(new FrontPort({ log, accepting, holder, inherited }), (part) => part.stop());
  const ask: BatchesOptions['ask'] = (...request) => handler.answer(...request);
  const { gateway_folder } = config;
  const batches = new Batches({ ...services, gateway_folder, log, ask });
  const crossOrigin = new CrossOrigin(config.origins ?? []);
  const api = createApi(
    {
      ...services,
      login,
      log,
      bodies,
      batches,
      mesh: gossip,
      records: () => registry.snapshot(),
      keysTaken: async () => start.workers?.tookKeys(),
      processes: () => ({ processes: config.processes ?? 1, workers: start.workers?.states() ?? [] }),
    },
    handler,
    (listener) =>
      (own ?? passed!).answerWith((request, response) => {
        if (crossOrigin.take(request, response) || handler.take(request, response)) return;
        listener(request, response);
      }),
    refuseConnection,
  );
  parts.add(api, () => api.close());
  await api.ready();
  // Behind the paths, so that it ends before them: what asks the handler goes first.
  parts.add(batches, () => batches.close());
  return { handler, tls, port, batches, passed };
}

/** Loaded where people may sign in, and nowhere else. @throws E_GATEWAY_FOLDER */
async function openLogin(config: GatewayConfig, services: LoginServices): Promise<Login | undefined> {
  if (!config.login) return undefined;
  const { Login: Opened } = await import('./login/login.ts');
  return Opened.open(config, config.login, services);
}

/** Whether requests are relayed by processes of their own. */
function isRelayedByWorkers({ processes = 1 }: GatewayConfig): boolean {
  return processes > 1;
}

function waitingMax({ waiting_max = limits.queue_length }: GatewayOptions): number {
  return waiting_max;
}

/** A connection to a session that has no direct way. @throws Error where there is none */
async function tunnelTo(session_id: string, { registry, gossip }: Mesh): Promise<Duplex> {
  const record = registry.get(session_id);
  if (!record) throw new Error('the session has left');
  return gossip.relayFallback.open(record);
}

/** Starts the processes that relay requests, where there are several. @throws E_GATEWAY_WORKER */
async function openWorkers(
  start: Start,
  services: Records & Mesh & Routing & Front & { admin_token: string },
): Promise<void> {
  const { config, options, times, log, parts } = start;
  const { keys, passed, tls } = services;
  if (!passed) return;
  const workers = new Workers({
    ...services,
    passed,
    log,
    count: config.processes!,
    start_limit: options.start_limit,
    measured: services,
    start: () => ({
      config,
      times,
      waiting_max: waitingMax(options),
      admin_token: services.admin_token,
      identity: identityPemOf(services.own),
      sessions: services.registry.snapshot().map((record) => [record.session_id, record]),
      tls: tls?.options,
      ledger_failure: services.ledger.failure?.toJSON() ?? null,
    }),
    followKeys: (callback) => keys.follow(callback),
    ledgerFailed: (failure) => workers.tell(['ledger', failure.toJSON()]),
  });
  start.workers = parts.add(workers, (all) => all.close());
  const unsubscribe = services.registry.onChange((changes) =>
    workers.tell(['sessions', changes.map(({ session_id, after }) => [session_id, after ?? null])]),
  );
  parts.add(unsubscribe, () => unsubscribe());
  await workers.start();
}

function identityPemOf({ identity }: LocalSession): IdentityPem {
  return { private_key_pem: identity.privateKeyPem(), certificate_pem: identity.certificate_pem };
}

/**
 * Lets clients in, and tells everybody where it answers. It ends first: with no new requests, and those inside
 * answered.
 */
async function serve(
  start: Start,
  own: LocalSession,
  defragmenter: Defragmenter,
  { handler, tls, port, batches }: Front,
): Promise<GatewayEndpoint> {
  const { config, options, times, log, parts } = start;
  const { holder } = options;
  const listening = await listenAsBefore(port, config, log);
  if (config.socket !== undefined) await port.listenOnSocket(config.socket);
  await own.update({
    lifecycle: 'SERVING',
    metadata: { addresses: [{ host: publicHost(config.host), port: listening }] },
  });
  const endpoint = describeEndpoint(config, tls, listening, own.id);
  writeEndpoint(config.gateway_folder, endpoint);
  log.info({ url: endpoint.url, session: own.id }, 'gateway listens');
  holder?.listens();
  defragmenter.start(times.defragment_ms);
  batches
    .resume()
    .catch((error: Error) => log.error({ reason: systemMessage(error) }, 'batches do not go on'));
  parts.add(port, async () => {
    handler.drain();
    defragmenter.stop();
    log.info({}, 'gateway drains');
    holder?.close();
    await Promise.all([port.drain(times.drain_ms), start.workers?.drain(times.drain_ms)]);
  });
  return endpoint;
}
