/** The gateway of a site as a process of this machine: looked at, started, stopped. */
import { spawn } from 'node:child_process';
import { closeSync, fstatSync, openSync, readFileSync, rmSync } from 'node:fs';
import { hostname } from 'node:os';
import { basename, join } from 'node:path';
import { makeFolders } from '../../host/make-folders.ts';
import { ownUser } from '../../host/own-user.ts';
import {
  identityOf,
  isAlive,
  type ProcessIdentity,
  readProcessStat,
  signalProcess,
} from '../../host/process-identity.ts';
import { compiledFile } from '../../host/programs.ts';
import { waitUntil } from '../../host/wait-until.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { gatewayFolderOf, listGatewayFolders } from '../../spec/gateway-folders.ts';
import { holderNodeOptions } from '../../spec/gateway-node-options.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { expandSitePath } from '../../spec/site-paths.ts';
import {
  type GatewayConfig,
  type GatewayEndpoint,
  gatewayFiles,
  providerKeyFile,
  type StateLayout,
} from '../../spec/state-layout.ts';
import { explainFromLog } from '../state/log-files.ts';
import { providerName } from '../state/provider-name.ts';
import { askForText, reasonOf } from './client.ts';
import { readGatewayEndpoint, readHolder, readLastConfig } from './files.ts';

/** How long a gateway may take until it answers, ms. Opening a ledger on a slow network filesystem counts. */
const start_ms = 30_000;
/** How long a gateway may take to end its streams after SIGTERM, ms; it drains for at most 30 s itself. */
const stop_ms = 45_000;

export type GatewayStatus =
  | { state: 'running'; endpoint: GatewayEndpoint }
  /** It is of another host, and from here its address does not answer (it may listen on loopback there). */
  | { state: 'elsewhere'; endpoint: GatewayEndpoint; because: string }
  /** The process is there but does not answer. */
  | {
      state: 'silent';
      endpoint: GatewayEndpoint;
      because: string;
      /** It ended; the process that holds its port starts it again. */
      is_restarting?: true;
    }
  /** `predecessor`: session id of the gateway that ran last. */
  | { state: 'not_running'; because: string; predecessor?: string };

export async function inspectGateway(layout: StateLayout): Promise<GatewayStatus> {
  const endpoint = readGatewayEndpoint(layout);
  if (!endpoint) return { state: 'not_running', because: 'it was not started, or was stopped' };
  const here = endpoint.hostname === hostname() && endpoint.job_id === undefined;
  const identity = readHolder(layout);
  // A port that answers proves nothing on a shared host: only the process we started is trusted with a key.
  if (here && identity && isAlive(identity) && !isGatewayAlive(endpoint, identity))
    return {
      state: 'silent',
      endpoint,
      because: `process ${endpoint.pid} is gone, and its holder (process ${identity.pid}) starts another`,
      is_restarting: true,
    };
  if (here && !(identity && isGatewayAlive(endpoint, identity)))
    return {
      state: 'not_running',
      because: identity ? `process ${endpoint.pid} is gone` : 'it was stopped',
      predecessor: endpoint.session_id,
    };
  if (!here && endpoint.job_id === undefined && isLoopback(endpoint.host))
    // What answers there from here is another process, which must not be given a key.
    return {
      state: 'elsewhere',
      endpoint,
      because: `it belongs to ${endpoint.hostname} and listens on ${endpoint.host} there`,
    };
  const health = await askHealth(endpoint);
  if (health === undefined) return { state: 'running', endpoint };
  return here
    ? { state: 'silent', endpoint, because: health }
    : { state: 'elsewhere', endpoint, because: `it belongs to ${endpoint.hostname}; from here: ${health}` };
}

/** The process of the gateway itself, which its holder started. */
function isGatewayAlive(endpoint: GatewayEndpoint, holder: ProcessIdentity): boolean {
  const { pid, process } = endpoint;
  // One of an earlier version was started without a holder.
  return process ? isAlive({ pid, ...process }) : holder.pid === pid && isAlive(holder);
}

/** The layout of the site as its gateway of this number sees it, from 1. */
export function layoutOf(layout: StateLayout, number: number): StateLayout {
  return { ...layout, gateway_folder: gatewayFolderOf(layout.root, number) };
}

/** Every gateway of the site that has ever run, with how it is now. */
export async function inspectGateways(
  layout: StateLayout,
): Promise<{ number: number; layout: StateLayout; status: GatewayStatus }[]> {
  return Promise.all(
    listGatewayFolders(layout.root).map(async ({ number }) => {
      const own = layoutOf(layout, number);
      return { number, layout: own, status: await inspectGateway(own) };
    }),
  );
}

/** Where it is to listen, if not where the site config says. */
export interface ListenAddress {
  host?: string | undefined;
  port?: number | undefined;
}

/** The program that holds a gateway's port and runs the gateway; it takes `--config FILE`. */
export const holderProgram = compiledFile('gateway/holder/main.js');

/**
 * Starts the gateway, with the holder of its port, as processes that outlive this command, and waits until it answers.
 * The caller holds the gateway lock of the site and has looked that none runs.
 * @param within_ms how long that may take; a gateway that is later is ended
 * @throws E_GATEWAY_START with the last lines of its log. One that was not to run before is not to then.
 */
export async function startGatewayProcess(
  site: SiteConfig,
  layout: StateLayout,
  signal?: AbortSignal,
  address?: ListenAddress,
  within_ms = start_ms,
): Promise<GatewayEndpoint> {
  makeFolders(layout.gateway_folder);
  const before = readLastConfig(layout);
  const wasDesired = shouldRun(layout);
  try {
    return await startHolder(site, layout, signal, address, within_ms);
  } catch (error) {
    // Nobody is to start it again and again where it never ran, nor at an address that cannot be had.
    if (!wasDesired) {
      rmSync(join(layout.gateway_folder, gatewayFiles.process), { force: true });
      const config = join(layout.gateway_folder, gatewayFiles.config);
      if (before) writeFileAtomically(config, `${JSON.stringify(before, null, 2)}\n`);
      else rmSync(config, { force: true });
    }
    throw error;
  }
}

async function startHolder(
  site: SiteConfig,
  layout: StateLayout,
  signal: AbortSignal | undefined,
  address: ListenAddress | undefined,
  within_ms: number,
): Promise<GatewayEndpoint> {
  const config = writeGatewayConfig(site, layout, address);
  const logPath = join(layout.gateway_folder, gatewayFiles.log);
  const log = openSync(logPath, 'a', 0o600);
  const before = fstatSync(log).size;
  let exit: string | undefined;
  let pid: number | undefined;
  try {
    const child = spawn(process.execPath, [...holderNodeOptions, holderProgram, '--config', config], {
      cwd: layout.gateway_folder,
      detached: true,
      stdio: ['ignore', log, log],
    });
    child.once('exit', (code, signalName) => {
      exit = signalName ? `it ended by ${signalName}` : `it ended with exit code ${code}`;
    });
    await new Promise<void>((resolve, reject) => child.once('spawn', resolve).once('error', reject));
    child.unref();
    pid = child.pid!;
    const identity = identityOf(pid);
    if (identity)
      writeFileAtomically(join(layout.gateway_folder, gatewayFiles.process), `${JSON.stringify(identity)}\n`);
  } finally {
    closeSync(log);
  }
  const endpoint = await waitUntil(
    async () => {
      if (exit !== undefined) return { failed: exit };
      const written = readGatewayEndpoint(layout);
      const isOurs = written !== undefined && readProcessStat(written.pid)?.parent === pid;
      return isOurs && (await askHealth(written)) === undefined ? written : undefined;
    },
    { timeout_ms: within_ms, interval_ms: 50, signal },
  );
  if (endpoint && 'url' in endpoint) return endpoint;
  // One that comes up later than this would hold the folder, unknown to all, against every further start.
  if (exit === undefined) {
    // With the gateway, which is in the group of its holder.
    signalProcess(-pid, 'SIGKILL');
    await waitUntil(() => (exit === undefined ? undefined : true), { timeout_ms: 5_000, interval_ms: 50 });
  }
  const found = explainFromLog(logPath, before);
  throw new HpcserveError('E_GATEWAY_START', {
    what: 'the gateway did not start',
    because: [
      endpoint?.failed ?? `it did not answer within ${within_ms / 1000} s`,
      ...found.because,
      `log file: ${logPath}`,
    ],
    try: found.try,
  });
}

/** Ends the gateway of this host with its holder, and waits until both are gone. Nothing happens where none runs. */
export async function stopGatewayProcess(layout: StateLayout): Promise<void> {
  const told = new Set<number>();
  // The holder hands it on. Whichever of the two was killed is replaced by the other: it is told when it shows.
  const gone = (): true | undefined => {
    const [first] = processesOf(layout);
    if (!first) return true;
    if (!told.has(first.pid)) signalProcess(first.pid, 'SIGTERM');
    told.add(first.pid);
    return undefined;
  };
  if (!(await waitUntil(gone, { timeout_ms: stop_ms, interval_ms: 50 }))) {
    // The holder first: it starts nothing any more then.
    for (const { pid } of processesOf(layout)) signalProcess(pid, 'SIGKILL');
    if (!(await waitUntil(gone, { timeout_ms: 5_000, interval_ms: 50 })))
      throw new HpcserveError('E_DEPLOYMENT_STOP', {
        what: 'the gateway does not end',
        because: `process ${processesOf(layout)[0]?.pid} survives SIGKILL: it waits for a filesystem or device`,
      });
  }
  // endpoint.json stays: the next gateway takes its port from there, and clients keep their URL.
  rmSync(join(layout.gateway_folder, gatewayFiles.process), { force: true });
}

/** The holder and the gateway, as far as they live on this host; the holder first. */
function processesOf(layout: StateLayout): ProcessIdentity[] {
  const holder = readHolder(layout);
  if (!holder) return [];
  const endpoint = readGatewayEndpoint(layout);
  const gateway = endpoint?.process && { pid: endpoint.pid, ...endpoint.process };
  const both = gateway && gateway.pid !== holder.pid ? [holder, gateway] : [holder];
  return both.filter(isAlive);
}

/** Whether the process is to run: it was started, and nobody ended it in order. */
export function shouldRun(layout: StateLayout): boolean {
  return readHolder(layout) !== undefined;
}

/** Whether the process that starts the gateway again lives on this host. */
export function isHeld(layout: StateLayout): boolean {
  const holder = readHolder(layout);
  return holder !== undefined && isAlive(holder);
}

/**
 * Writes the gateway's configuration. A further gateway stays where it was told to listen once; the port of the site
 * config is the first one's.
 * @returns its path.
 */
export function writeGatewayConfig(
  site: SiteConfig,
  layout: StateLayout,
  address: ListenAddress = {},
): string {
  const path = join(layout.gateway_folder, gatewayFiles.config);
  const first = layout.gateway_folder === gatewayFolderOf(layout.root, 1);
  const before = first ? undefined : readLastConfig(layout);
  const config: GatewayConfig = {
    format: 1,
    site: site.name,
    provider: providerName(site, ownUser().name),
    provider_key_file: providerKeyFile(layout, process.getuid!()),
    host: address.host ?? before?.host ?? site.gateway.host,
    port: address.port ?? before?.port ?? (first ? site.gateway.port : 0),
    processes: site.gateway.processes,
    mesh_folder: layout.mesh_folder,
    gateway_folder: layout.gateway_folder,
    deployments_folder: layout.deployments_folder,
    keeper_folder: layout.keeper_folder,
    keys_folder: layout.keys_folder,
    routing: site.gateway.routing,
    wait_max_s: site.gateway.wait_max_s,
    load_wait_s: site.gateway.load_wait_s,
    trace: site.gateway.trace,
    otel: site.otel,
    ...clientSettings(site, layout),
    ...bodySettings(site),
    ...keptSettings(site),
    ...meshSettings(site, first),
  };
  writeFileAtomically(path, `${JSON.stringify(config, null, 2)}\n`);
  return path;
}

/** How clients connect, beside the port. */
function clientSettings(
  { gateway }: SiteConfig,
  layout: StateLayout,
): Pick<GatewayConfig, 'tls' | 'socket' | 'login'> {
  const { tls, socket, login } = gateway;
  const expand = (path: string): string => expandSitePath(path, process.env);
  const suffix = /-\d+$/.exec(basename(layout.gateway_folder))?.[0] ?? '';
  const settings: ReturnType<typeof clientSettings> = {};
  if (socket !== undefined) settings.socket = `${expand(socket)}${suffix}`;
  if (tls?.self_signed) settings.tls = { authority_folder: layout.tls_folder, names: tls.names };
  if (tls?.certificate_file !== undefined && tls.key_file !== undefined)
    settings.tls = {
      certificate_file: expand(tls.certificate_file),
      key_file: expand(tls.key_file),
      ca_file: tls.ca_file === undefined ? undefined : expand(tls.ca_file),
    };
  if (login) {
    const { client_secret_file: secret, ca_file: ca } = login;
    settings.login = { ...login, client_secret_file: secret && expand(secret), ca_file: ca && expand(ca) };
  }
  return settings;
}

function keptSettings({ gateway }: SiteConfig): Partial<GatewayConfig> {
  const { origins, responses_kept_h, files_kept_d, kept_key_gb_max } = gateway;
  return {
    origins,
    responses_kept_s: 3600 * responses_kept_h,
    files_kept_s: 86_400 * files_kept_d,
    kept_key_bytes_max: Math.round(1e9 * kept_key_gb_max),
  };
}

function bodySettings({ gateway }: SiteConfig): Partial<GatewayConfig> {
  const { body_mib_max, bodies_gb_max, bodies_key_share_max, body_wait_s, memory_gb } = gateway;
  const bodies_bytes_max = Math.round(1e9 * (bodies_gb_max ?? memory_gb / 4));
  return {
    body_bytes_max: body_mib_max * 2 ** 20,
    bodies_bytes_max,
    bodies_key_bytes_max: Math.round(bodies_key_share_max * bodies_bytes_max),
    body_wait_s,
  };
}

/** A gateway is reached from other sites at a port that stays, so only the first can have it. */
function meshSettings({ kind, mesh }: SiteConfig, first: boolean): Pick<GatewayConfig, 'mesh'> {
  const { gossip, bootstrap, relay, host, port } = mesh;
  if (!gossip) return {};
  const where = host ?? (kind === 'local' ? '127.0.0.1' : '0.0.0.0');
  return { mesh: { bootstrap, relay, host: where, port: first ? port : 0 } };
}

/** @throws E_GATEWAY_UNREACHABLE where the gateway has written none yet. */
export function readAdminToken(layout: StateLayout): string {
  const path = join(layout.gateway_folder, gatewayFiles.admin_token);
  try {
    return readFileSync(path, 'utf8').trim();
  } catch (error) {
    throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
      what: 'the admin token of the gateway cannot be read',
      because: `${path}: ${(error as Error).message}`,
      cause: error,
    });
  }
}

/** @returns undefined when it is healthy, else why not. */
async function askHealth(endpoint: GatewayEndpoint): Promise<string | undefined> {
  const url = new URL('/health', endpoint.url);
  try {
    const { status } = await askForText(endpoint, '/health', { signal: AbortSignal.timeout(3_000) });
    // 503 is an honest answer of a gateway without a serving model: it runs.
    return (status >= 200 && status < 300) || status === 503 ? undefined : `${url} answers ${status}`;
  } catch (error) {
    return `${url}: ${reasonOf(error)}`;
  }
}

export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\./.test(host);
}
