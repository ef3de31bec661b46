import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { type Load, saturate } from './load.ts';
import { manyStreams, memoryOfStreams } from './many-streams.ts';
import { median } from './median.ts';
import { atRate, compileOpenLoop } from './open-loop.ts';
import { measureProcesses, processesOf } from './processes.ts';
import { ensurePrograms } from './programs.ts';
import { pacedRequest, requestBody } from './requests.ts';
import { type Closers, type GatewayStage, openStage, type RunningProxy } from './stage.ts';
import { measureRest, measureStreams, pacedModels } from './streams.ts';

const pairs = 10;
const warmUps = 5;
const saturation = { connections: 64, duration_s: 2 };
const steady = { rate_per_s: 300, duration_s: 4 };
const latencyRounds = 3;

export const gatewayBench: Bench = {
  name: 'gateway',
  describe:
    'the gateway with all it does (gossip, TLS to pinned keys, limits, filters, ledger, metrics) beside nginx as a reverse proxy over the same instant upstream',
  run,
};

const parts = {
  throughput: measureThroughput,
  latency: measureLatency,
  streams: (stage: GatewayStage, { log }: BenchOptions) => measureStreams(stage, pacedRequest, log),
  rest: (stage: GatewayStage, { log }: BenchOptions) => measureRest(stage, log),
  memory: measureMemory,
};
type Part = keyof typeof parts;

/** Arguments name the parts to run; all where there are none. With `--processes N`, several processes beside one. */
async function run(options: BenchOptions): Promise<BenchResult[]> {
  const { values, positionals } = parseArgs({
    args: [...options.args],
    allowPositionals: true,
    options: { processes: { type: 'string' } },
  });
  const processes = processesOf(values.processes);
  const unknown = positionals.filter((argument) => !(argument in parts));
  if (unknown.length > 0)
    throw new Error(`unknown part ${unknown[0]}; there are ${Object.keys(parts).join(', ')}`);
  const all = processes === undefined ? Object.keys(parts) : [];
  const wanted = (positionals.length > 0 ? positionals : all) as Part[];
  const programs = ensurePrograms(options.log);
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-bench-'));
  const closers: Closers = [() => rmSync(folder, { recursive: true, force: true })];
  try {
    const stage = await openStage(folder, programs, closers, processes);
    const results: BenchResult[] = [];
    const { several } = stage;
    if (several)
      results.push(
        ...(await measureProcesses(
          { ...stage, several },
          (url) => loadOf(stage, url),
          pacedRequest,
          options.log,
        )),
      );
    for (const part of wanted) results.push(...(await parts[part](stage, options)));
    return results;
  } finally {
    for (const close of closers.reverse()) await close();
  }
}

async function measureThroughput(stage: GatewayStage, { log }: BenchOptions): Promise<BenchResult[]> {
  const measure = async (proxy: RunningProxy): Promise<{ rps: number; cpu_us: number }> => {
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

async function measureLatency(stage: GatewayStage, { log }: BenchOptions): Promise<BenchResult[]> {
  const openLoop = compileOpenLoop(stage.folder);
  const targets = { direct: stage.plainUpstreamUrl, gateway: stage.gateway.url, nginx: stage.nginx.url };
  const p50: Record<keyof typeof targets, number[]> = { direct: [], gateway: [], nginx: [] };
  const p99: typeof p50 = { direct: [], gateway: [], nginx: [] };
  for (let round = 0; round < latencyRounds; round++) {
    for (const [name, url] of Object.entries(targets) as [keyof typeof targets, string][]) {
      const measured = await atRate(openLoop, loadOf(stage, url), steady);
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

async function measureMemory(stage: GatewayStage, { log }: BenchOptions): Promise<BenchResult[]> {
  const { streams, events, pause_ms } = manyStreams;
  const { gateway, key } = stage;
  const measured = await memoryOfStreams(
    gateway.child.pid!,
    gateway.url,
    key,
    pacedRequest(pacedModels.channels, manyStreams),
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

function loadOf(stage: GatewayStage, url: string): Load {
  return {
    folder: stage.folder,
    url,
    key: stage.key,
    body: requestBody,
    cores: stage.loadCores,
    taskset: stage.programs.taskset,
  };
}
