/** What runs while the bench measures: upstreams, nginx, and the gateway as a process, each on cores of its own. */
import { execFileSync } from 'node:child_process';
import { openSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { type Delegation, LocalSession, ProviderKey, RendezvousRegistry } from '../../mesh/index.ts';
import { gatewayNodeOptions } from '../../spec/gateway-node-options.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import { type GatewayConfig, gatewayFiles } from '../../spec/state-layout.ts';
import { writeProxyConfig, writeUpstreamConfig } from './nginx.ts';
import { type PacedUpstream, startPacedPlain, startPacedSession } from './paced-upstream.ts';
import { type Pinned, startPinned, untilListening } from './process.ts';
import { coresFor } from './processes.ts';
import type { Program } from './programs.ts';
import { instantAnswer } from './requests.ts';
import {
  beat,
  delegationOf,
  freePort,
  makeKey,
  metadata,
  untilServed,
  writeGatewayConfig,
} from './setting.ts';
import { pacedModels } from './streams.ts';

/** A key with every limit there is, none of which is reached; it also trusts the bench's provider alone. */
const keySettings: KeySettings = {
  requests_per_minute: 1e9,
  tokens_per_minute: 1e9,
  budget: { tokens: 1e15, window: 'month' },
  qos: 'tier=stable',
};

export const chatPath = '/v1/chat/completions';

/** Ended in the reverse order. */
export type Closers = (() => Promise<unknown> | unknown)[];
export type RunningProxy = Pinned & { url: string };
/** Starts a program on some cores, and waits until it listens. */
export type Start = (
  name: string,
  onCores: readonly number[],
  command: readonly string[],
  port: number,
  env?: NodeJS.ProcessEnv,
) => Promise<Pinned>;

export interface GatewayStage {
  programs: Record<Program, string>;
  folder: string;
  key: string;
  gateway: RunningProxy;
  nginx: RunningProxy;
  nginxStream: RunningProxy;
  /** Of the upstream that answers at once, without TLS. */
  plainUpstreamUrl: string;
  /** Of what is measured, and of all else. */
  proxyCores: number[];
  loadCores: number[];
  config: GatewayConfig;
  provider: ProviderKey;
  start: Start;
  /** The gateway once more, after it was stopped. */
  startGateway(): Promise<RunningProxy>;
  /** A gateway of several processes, where one is asked for. */
  several: (RunningProxy & { processes: number }) | undefined;
  /** The gateways have cores that the load does not use. */
  hasCores: boolean;
}

export async function openStage(
  folder: string,
  programs: GatewayStage['programs'],
  closers: Closers,
  processes?: number,
): Promise<GatewayStage> {
  const { placed, proxyCores, loadCores } = placeOnCores(processes);
  pinOwn(programs.taskset, loadCores);
  const start = starter(folder, programs, closers);
  const mesh_folder = join(folder, 'mesh');
  const registry = await RendezvousRegistry.open(mesh_folder, { create: true });
  closers.push(() => registry.close());

  const provider_key_file = join(folder, 'provider.key');
  const provider = ProviderKey.loadOrCreate(provider_key_file);
  const delegation = delegationOf(provider);
  const nginxCommand = (config: string): string[] => [programs.nginx, '-c', config, '-p', folder];
  const upstream = await instantUpstream(registry, delegation, folder, (config, port) =>
    start('the upstream', loadCores, nginxCommand(config), port),
  );
  await pacedSession(registry, pacedModels.channels, delegation, closers, ({ identity }, beats) =>
    startPacedSession(registry, identity, beats),
  );
  const paced = await pacedSession(registry, pacedModels.plain, delegation, closers, ({ identity }, beats) =>
    startPacedPlain(identity, beats),
  );

  const config = writeGatewayConfig(folder, mesh_folder, provider_key_file, await freePort());
  const origin = `http://127.0.0.1:${config.port}`;
  const startGateway = async (): Promise<RunningProxy> => {
    const started = await start('the gateway', proxyCores, gatewayCommand(config), config.port);
    return { ...started, url: origin + chatPath };
  };
  const gateway = await startGateway();
  const proxyOf = async (name: string, to: Upstream): Promise<RunningProxy> => {
    const port = await freePort();
    const command = nginxCommand(writeProxyConfig(folder, name, port, to));
    return {
      ...(await start('nginx', proxyCores, command, port)),
      url: `http://127.0.0.1:${port}${chatPath}`,
    };
  };
  const nginx = await proxyOf('proxy', upstream);
  const nginxStream = await proxyOf('stream-proxy', paced);

  const key = await makeKey(origin, config, { ...keySettings, providers: [provider.id] });
  const models = ['bench', ...Object.values(pacedModels)];
  await untilServed(origin, key, models);
  const several = placed && (await startSeveral(start, folder, { mesh_folder, provider_key_file }, placed));
  if (several) await untilServed(new URL(several.url).origin, key, models);
  return {
    several,
    hasCores: placed?.hasCores ?? true,
    programs,
    folder,
    key,
    proxyCores,
    loadCores,
    gateway,
    nginx,
    nginxStream,
    plainUpstreamUrl: `http://127.0.0.1:${upstream.plain_port}${chatPath}`,
    config,
    provider,
    start,
    startGateway,
  };
}

/**
 * This process reads the streams: a scheduler that could, would wake it on the core of the proxy that writes to it, in
 * the proxy's place.
 */
function pinOwn(taskset: string, cores: readonly number[]): void {
  execFileSync(taskset, ['--all-tasks', '--cpu-list', '--pid', cores.join(','), String(process.pid)], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
}

function placeOnCores(processes: number | undefined) {
  const cores = availableParallelism();
  if (cores < 2)
    throw new Error('the gateway bench needs two cores: one for the proxy, one for load and upstream');
  const placed = processes === undefined ? undefined : coresFor(processes, cores);
  return {
    placed,
    proxyCores: placed?.one ?? [cores - 1],
    loadCores: placed?.load ?? Array.from({ length: cores - 1 }, (_, core) => core),
  };
}

/** A gateway of several processes on the mesh and with the keys of another one. */
async function startSeveral(
  start: Start,
  folder: string,
  { mesh_folder, provider_key_file }: { mesh_folder: string; provider_key_file: string },
  { several, processes }: ReturnType<typeof coresFor>,
): Promise<RunningProxy & { processes: number }> {
  const at = join(folder, 'several');
  const config = writeGatewayConfig(at, mesh_folder, provider_key_file, await freePort(), processes);
  const started = await start('the gateway', several, gatewayCommand(config), config.port);
  return { ...started, url: `http://127.0.0.1:${config.port}${chatPath}`, processes };
}

function gatewayCommand({ gateway_folder }: GatewayConfig): string[] {
  const main = join(packageRoot, 'dist/gateway/main.js');
  const configFile = join(gateway_folder, gatewayFiles.config);
  return [process.execPath, ...gatewayNodeOptions, ...gatewayFlags(), main, '--config', configFile];
}

function starter(folder: string, programs: GatewayStage['programs'], closers: Closers): Start {
  const log = join(folder, 'output.log');
  const output = openSync(log, 'a');
  return async (name, onCores, command, port, env = {}) => {
    const started = startPinned(programs.taskset, onCores, command, { cwd: folder, output, env });
    closers.push(() => started.stop());
    try {
      await untilListening(port, started.child);
    } catch (error) {
      const last = readFileSync(log, 'utf8').slice(-2000);
      throw new Error(`${name} did not start: ${last}`, { cause: error });
    }
    return started;
  };
}

interface Upstream {
  port: number;
  session_id: string;
}

/** A session of the mesh that answers at once, always the same. */
async function instantUpstream(
  registry: RendezvousRegistry,
  delegation: Delegation,
  folder: string,
  start: (config: string, port: number) => Promise<unknown>,
): Promise<Upstream & { plain_port: number }> {
  const port = await freePort();
  const plain_port = await freePort();
  const session = await LocalSession.join(registry, metadata('bench', port), undefined, () => delegation);
  const config = writeUpstreamConfig(folder, {
    port,
    plain_port,
    certificate_pem: session.identity.certificate_pem,
    private_key_pem: session.identity.privateKeyPem(),
    heartbeat: JSON.stringify(beat(session.id, 'bench', 1)),
    answer: instantAnswer,
  });
  await start(config, port);
  await session.update({ lifecycle: 'SERVING' });
  return { port, plain_port, session_id: session.id };
}

/** A session of the mesh whose streams keep a pace. */
async function pacedSession(
  registry: RendezvousRegistry,
  model: string,
  delegation: Delegation,
  closers: Closers,
  start: (session: LocalSession, heartbeat: () => string) => Promise<PacedUpstream>,
): Promise<Upstream> {
  let sequence = 0;
  const session = await LocalSession.join(registry, metadata(model, 1), undefined, () => delegation);
  const paced = await start(session, () => JSON.stringify(beat(session.id, model, sequence++)));
  closers.push(() => paced.close());
  await session.update({
    lifecycle: 'SERVING',
    metadata: { addresses: [{ host: '127.0.0.1', port: paced.port }] },
  });
  return { port: paced.port, session_id: session.id };
}

/** `HPCSERVE_BENCH_NODE_FLAGS` lets a developer profile the gateway (`--cpu-prof`). */
function gatewayFlags(): string[] {
  return (process.env.HPCSERVE_BENCH_NODE_FLAGS ?? '').split(' ').filter(Boolean);
}
