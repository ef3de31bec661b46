import { mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { type Delegation, LocalSession, ProviderKey, RendezvousRegistry } from '../../mesh/index.ts';
import { gatewayNodeOptions } from '../../spec/gateway-node-options.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import { gatewayFiles } from '../../spec/state-layout.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { fixedRate, type Load, saturate } from './load.ts';
import { manyStreams, memoryOfStreams } from './many-streams.ts';
import { median } from './median.ts';
import { writeProxyConfig, writeUpstreamConfig } from './nginx.ts';
import { type Pace, type PacedUpstream, startPacedPlain, startPacedSession } from './paced-upstream.ts';
import { type Pinned, startPinned, untilListening } from './process.ts';
import { ensurePrograms, type Program } from './programs.ts';
import {
  beat,
  delegationOf,
  freePort,
  makeKey,
  metadata,
  untilServed,
  writeGatewayConfig,
} from './setting.ts';
import { measureRest, measureStreams, pacedModels } from './streams.ts';

const pairs = 10;
const warmUps = 5;
const saturation = { connections: 64, duration_s: 2 };
const steady = { rate_per_s: 300, duration_s: 4 };
const latencyRounds = 3;

const requestBody = JSON.stringify({
  model: 'bench',
  messages: [
    { role: 'system', content: 'You are a helpful assistant.' },
    { role: 'user', content: 'Say hello to the world, please, and be brief about it.' },
  ],
  max_tokens: 64,
  temperature: 0.7,
});
const streamBodyOf = (model: string, { events, pause_ms }: Pace): string =>
  JSON.stringify({ ...JSON.parse(requestBody), model, stream: true, pace: { events, pause_ms } });

/** A key with every limit there is, none of which is reached; it also trusts the bench's provider alone. */
const keySettings: KeySettings = {
  requests_per_minute: 1e9,
  tokens_per_minute: 1e9,
  budget: { tokens: 1e15, window: 'month' },
  qos: 'tier=stable',
};

const answer = JSON.stringify({
  id: 'chatcmpl-bench',
  object: 'chat.completion',
  created: 1,
  model: 'bench',
  choices: [
    {
      index: 0,
      message: { role: 'assistant', content: 'Hello, world! '.repeat(8).trim() },
      finish_reason: 'stop',
    },
  ],
  usage: { prompt_tokens: 29, completion_tokens: 32, total_tokens: 61 },
});

export const gatewayBench: Bench = {
  name: 'gateway',
  describe:
    'the gateway with all it does (gossip, TLS to pinned keys, limits, filters, ledger, metrics) beside nginx as a reverse proxy over the same instant upstream',
  run,
};

/** What runs while the bench measures. */
interface Stage {
  programs: Record<Program, string>;
  folder: string;
  key: string;
  gateway: Pinned & { url: string };
  nginx: Pinned & { url: string };
  nginxStream: Pinned & { url: string };
  upstreamUrl: string;
  loadCores: number[];
}

const parts = {
  throughput: measureThroughput,
  latency: measureLatency,
  streams: (stage: Stage, { log }: BenchOptions) => measureStreams(stage, streamBodyOf, log),
  rest: (stage: Stage, { log }: BenchOptions) => measureRest(stage, log),
  memory: measureMemory,
};
type Part = keyof typeof parts;

/** Arguments name the parts to run; all where there are none. */
async function run(options: BenchOptions): Promise<BenchResult[]> {
  const unknown = options.args.filter((argument) => !(argument in parts));
  if (unknown.length > 0)
    throw new Error(`unknown part ${unknown[0]}; there are ${Object.keys(parts).join(', ')}`);
  const wanted = (options.args.length > 0 ? options.args : Object.keys(parts)) as Part[];
  const programs = ensurePrograms(options.log);
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-bench-'));
  const closers: Closers = [() => rmSync(folder, { recursive: true, force: true })];
  try {
    const stage = await setUp(folder, programs, closers);
    const results: BenchResult[] = [];
    for (const part of wanted) results.push(...(await parts[part](stage, options)));
    return results;
  } finally {
    for (const close of closers.reverse()) await close();
  }
}

type Closers = (() => Promise<unknown> | unknown)[];
/** Starts a program on some cores, and waits until it listens. */
type Start = (name: string, onCores: number[], command: string[], port: number) => Promise<Pinned>;

async function setUp(folder: string, programs: Stage['programs'], closers: Closers): Promise<Stage> {
  const cores = availableParallelism();
  if (cores < 2)
    throw new Error('the gateway bench needs two cores: one for the proxy, one for load and upstream');
  const proxyCores = [cores - 1];
  const loadCores = Array.from({ length: cores - 1 }, (_, core) => core);
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
  const main = join(packageRoot, 'dist/gateway/main.js');
  const configFile = join(config.gateway_folder, gatewayFiles.config);
  const gateway = await start(
    'the gateway',
    proxyCores,
    [process.execPath, ...gatewayNodeOptions, ...gatewayFlags(), main, '--config', configFile],
    config.port,
  );
  const path = '/v1/chat/completions';
  const proxyOf = async (name: string, to: Upstream): Promise<Pinned & { url: string }> => {
    const port = await freePort();
    const started = await start(
      'nginx',
      proxyCores,
      nginxCommand(writeProxyConfig(folder, name, port, to)),
      port,
    );
    return { ...started, url: `http://127.0.0.1:${port}${path}` };
  };
  const nginx = await proxyOf('proxy', upstream);
  const nginxStream = await proxyOf('stream-proxy', paced);

  const origin = `http://127.0.0.1:${config.port}`;
  const key = await makeKey(origin, config, { ...keySettings, providers: [provider.id] });
  await untilServed(origin, key, ['bench', ...Object.values(pacedModels)]);
  return {
    programs,
    folder,
    key,
    loadCores,
    gateway: { ...gateway, url: origin + path },
    nginx,
    nginxStream,
    upstreamUrl: `https://127.0.0.1:${upstream.port}${path}`,
  };
}

function starter(folder: string, programs: Stage['programs'], closers: Closers): Start {
  const log = join(folder, 'output.log');
  const output = openSync(log, 'a');
  return async (name, onCores, command, port) => {
    const started = startPinned(programs.taskset, onCores, command, { cwd: folder, output });
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
): Promise<Upstream> {
  const port = await freePort();
  const session = await LocalSession.join(registry, metadata('bench', port), undefined, () => delegation);
  const config = writeUpstreamConfig(folder, {
    port,
    certificate_pem: session.identity.certificate_pem,
    private_key_pem: session.identity.privateKeyPem(),
    heartbeat: JSON.stringify(beat(session.id, 'bench', 1)),
    answer,
  });
  await start(config, port);
  await session.update({ lifecycle: 'SERVING' });
  return { port, session_id: session.id };
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

async function measureThroughput(stage: Stage, { log }: BenchOptions): Promise<BenchResult[]> {
  const measure = async (proxy: Pinned & { url: string }): Promise<{ rps: number; cpu_us: number }> => {
    const before_us = proxy.cpu_us();
    const { requests, requests_per_s } = await saturate(
      stage.programs.wrk,
      loadOf(stage, proxy.url),
      saturation,
    );
    return { rps: requests_per_s, cpu_us: (proxy.cpu_us() - before_us) / requests };
  };
  // Connections to the upstream are made; and gateways run for weeks, so compilers have done their work first.
  for (let turn = 0; turn < warmUps; turn++) {
    await measure(stage.gateway);
    await measure(stage.nginx);
  }
  const ours: Awaited<ReturnType<typeof measure>>[] = [];
  const theirs: typeof ours = [];
  for (let pair = 0; pair < pairs; pair++) {
    ours.push(await measure(stage.gateway));
    theirs.push(await measure(stage.nginx));
    log(
      `pair ${pair + 1}: gateway ${ours[pair]!.rps.toFixed(0)}/s ${ours[pair]!.cpu_us.toFixed(1)} µs, nginx ${theirs[pair]!.rps.toFixed(0)}/s ${theirs[pair]!.cpu_us.toFixed(1)} µs`,
    );
  }
  const rps = { ours: median(ours.map((one) => one.rps)), theirs: median(theirs.map((one) => one.rps)) };
  const ratio = median(ours.map((one, pair) => one.rps / theirs[pair]!.rps));
  const cpu = {
    ours: median(ours.map((one) => one.cpu_us)),
    theirs: median(theirs.map((one) => one.cpu_us)),
  };
  return [
    {
      what: `requests per second on one core, ${saturation.connections} connections`,
      unit: '1/s',
      ours: rps.ours,
      peer: 'nginx',
      theirs: rps.theirs,
      ratio,
      bar: 'ratio ≥ 0.35',
      holds: ratio >= 0.35,
    },
    {
      what: 'CPU time per request',
      unit: 'µs',
      ours: cpu.ours,
      peer: 'nginx',
      theirs: cpu.theirs,
      ratio: cpu.theirs / cpu.ours,
      bar: '',
      holds: null,
    },
  ];
}

async function measureLatency(stage: Stage, { log }: BenchOptions): Promise<BenchResult[]> {
  const { h2load } = stage.programs;
  const targets = { direct: stage.upstreamUrl, gateway: stage.gateway.url, nginx: stage.nginx.url };
  const p50: Record<keyof typeof targets, number[]> = { direct: [], gateway: [], nginx: [] };
  const p99: typeof p50 = { direct: [], gateway: [], nginx: [] };
  for (let round = 0; round < latencyRounds; round++) {
    for (const [name, url] of Object.entries(targets) as [keyof typeof targets, string][]) {
      const measured = await fixedRate(h2load, loadOf(stage, url), steady);
      p50[name].push(measured.p50_ms);
      p99[name].push(measured.p99_ms);
      log(`at ${steady.rate_per_s}/s, ${name}: p50 ${measured.p50_ms} ms, p99 ${measured.p99_ms} ms`);
    }
  }
  const added = (of: typeof p50, name: 'gateway' | 'nginx'): number =>
    median(of[name].map((value, round) => value - of.direct[round]!));
  return [
    latencyResult('p50', added(p50, 'gateway'), added(p50, 'nginx'), 0.7),
    latencyResult('p99', added(p99, 'gateway'), added(p99, 'nginx'), 4),
  ];
}

function latencyResult(which: string, ours: number, theirs: number, bar_ms: number): BenchResult {
  return {
    what: `added ${which} at ${steady.rate_per_s} req/s`,
    unit: 'ms',
    ours,
    peer: 'nginx',
    theirs,
    ratio: theirs / ours,
    bar: `< ${bar_ms} ms`,
    holds: ours < bar_ms,
  };
}

async function measureMemory(stage: Stage, { log }: BenchOptions): Promise<BenchResult[]> {
  const { streams, events, pause_ms } = manyStreams;
  const { gateway, key } = stage;
  const measured = await memoryOfStreams(
    gateway.child.pid!,
    gateway.url,
    key,
    streamBodyOf(pacedModels.channels, manyStreams),
  );
  const expected = streams * (events + 1);
  if (measured.events !== expected)
    throw new Error(`${measured.events} events arrived instead of ${expected}`);
  if (measured.open_max !== streams)
    throw new Error(`only ${measured.open_max} of ${streams} streams were open at the same time`);
  const [mb, idle_mb] = [measured.pss_bytes / 1e6, measured.idle_bytes / 1e6];
  log(
    `${streams} streams, an event each ${pause_ms} ms: ${mb.toFixed(0)} MB, before ${idle_mb.toFixed(0)} MB`,
  );
  return [
    {
      what: `memory of the gateway with ${streams} streams that flow (PSS)`,
      unit: 'MB',
      ours: mb,
      peer: '',
      theirs: null,
      ratio: null,
      bar: '< 1000 MB',
      holds: mb < 1000,
    },
  ];
}

function loadOf(stage: Stage, url: string): Load {
  return {
    folder: stage.folder,
    url,
    key: stage.key,
    body: requestBody,
    cores: stage.loadCores,
    taskset: stage.programs.taskset,
  };
}
