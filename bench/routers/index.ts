/**
 * Our gateway beside the routers that people put before their engines: the same upstreams, the same core for the
 * router, in one run and in turn. Ours speaks TLS to pinned keys, counts limits and writes the ledger; nginx speaks
 * TLS; the others speak plain HTTP and do none of it.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ensurePrograms } from '../gateway/programs.ts';
import { type Closers, openStage } from '../gateway/stage.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { startContenders } from './contenders.ts';
import { isIsolated, openLoopback, runIsolated } from './isolated.ts';
import {
  halfOf,
  measureEvents,
  measureLatency,
  measureMemory,
  measureRequests,
  measureStart,
  type Scene,
} from './measure.ts';
import { buildOpenTela, openTela, openTelaWithNode } from './opentela.ts';
import { type PartName, readRoutersOptions } from './options.ts';
import { routersHere } from './peers.ts';
import { alone, type Bars, type Column, compare, ours, oursWithAgent, sideBySide } from './side-by-side.ts';

/** The one that ours is to be no dearer and no slower than. */
const rival = 'vllm-router';
const atLeast: Bars = { [rival]: 1 };
const withAgentAtLeast: Bars = { [rival]: 1 / 1.5 };
/** At one stream, idle work included: the one beside us that has a mesh, too. */
const aloneAtLeast: Bars = { [openTela]: 1 };
const aloneWithAgentAtLeast: Bars = { [openTelaWithNode]: 1 };
/** At fewer streams, what a router does when it is idle is the most of it. */
const judged_streams_min = 32;
const memory_mb_max = 400;

export const routersBench: Bench = {
  name: 'routers',
  describe:
    'the gateway beside vllm-router, sglang-router, smg, OpenTela and nginx: CPU, rates, latency, memory, start',
  run,
};

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { parts, rounds, opentela } = readRoutersOptions(args);
  if (opentela !== undefined && !isIsolated()) {
    // What is to be installed comes over the network.
    ensurePrograms(log);
    return runIsolated(routersBench.name, args);
  }
  if (isIsolated()) openLoopback();
  const peers = routersHere(log, opentela !== undefined);
  if (opentela === undefined)
    log('missing: OpenTela (--opentela or HPCSERVE_OPENTELA: a checkout of github.com/eth-easl/OpenTela)');
  const programs = ensurePrograms(log);
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-routers-'));
  const closers: Closers = [() => rmSync(folder, { recursive: true, force: true })];
  try {
    const otela = opentela === undefined ? undefined : buildOpenTela(opentela, folder, log);
    const stage = await openStage(folder, programs, closers);
    const contenders = await startContenders(stage, peers, otela, closers);
    const results = new Results(log);
    const scene: Scene = { stage, contenders, rounds, log };
    await measureAll(scene, parts, results);
    return results.rows;
  } finally {
    for (const close of closers.reverse()) await close();
  }
}

/** Rows as they come, and a table for each part. */
class Results {
  readonly rows: BenchResult[] = [];
  readonly #log: (line: string) => void;

  constructor(log: (line: string) => void) {
    this.#log = log;
  }

  add(...rows: BenchResult[]): void {
    this.rows.push(...rows);
  }

  show(columns: readonly Column[]): void {
    for (const line of sideBySide(columns)) this.#log(line);
  }
}

async function measureAll(scene: Scene, parts: readonly PartName[], results: Results): Promise<void> {
  if (parts.includes('events')) {
    const columns = await measureEvents(scene);
    for (const { streams, cpu } of columns) {
      const isJudged = streams >= judged_streams_min;
      results.add(...compare(cpu, isJudged ? atLeast : aloneAtLeast));
      results.add(...compare(cpu, isJudged ? withAgentAtLeast : aloneWithAgentAtLeast, oursWithAgent));
    }
    results.show(columns.map(({ cpu }) => cpu));
  }
  if (parts.includes('requests') || parts.includes('latency')) await measureLoads(scene, parts, results);
  if (parts.includes('memory')) {
    const column = await measureMemory(scene);
    results.add(alone(column, memory_mb_max), ...compare(column));
    results.show([column]);
  }
  if (parts.includes('start')) {
    const column = await measureStart(scene);
    results.add(...compare(column));
    results.show([column]);
  }
}

/** Requests as many as each can, and what each adds to half of that, and to a rate that two of them share. */
async function measureLoads(scene: Scene, parts: readonly PartName[], results: Results): Promise<void> {
  const { rate, cpu } = await measureRequests(scene);
  if (parts.includes('requests')) {
    results.add(...compare(rate, atLeast), ...compare(cpu), ...compare(cpu, {}, oursWithAgent));
    results.show([rate, cpu]);
  }
  if (!parts.includes('latency')) return;
  const routers = scene.contenders.filter(({ cpu_only }) => !cpu_only);
  const half = halfOf(rate);
  const columns = await measureLatency({ ...scene, contenders: routers }, 'half of its own limit', half);
  for (const column of columns) results.add(...compare(column));
  results.show(columns);
  const both = routers.filter(({ name }) => (name === ours || name === rival) && rate.rounds.has(name));
  if (both.length < 2) return;
  const rate_per_s = Math.min(...both.map(half));
  const at = `${rate_per_s.toFixed(0)}/s, half of the lower limit`;
  const [p50, p99, p999] = await measureLatency({ ...scene, contenders: both }, at, () => rate_per_s);
  results.add(...compare(p50!, atLeast), ...compare(p99!, atLeast), ...compare(p999!));
  results.show([p50!, p99!, p999!]);
}
