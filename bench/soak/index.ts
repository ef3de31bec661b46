/**
 * Ordinary, broken, huge and malicious clients together, against two gateways and four replicas on a real Slurm
 * cluster: nothing may end, nothing may grow, honest clients hardly notice, and the ledger has every answer once. What
 * the attackers' own programs take of the two cores is not held against the product: it is compared with a run in which
 * idle loops take the same share.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import Database from 'better-sqlite3';
import { packageRoot } from '../../host/package-root.ts';
import { openLedgerReader } from '../../ledger/index.ts';
import { gatewayFolderOf } from '../../spec/gateway-folders.ts';
import { gatewayFiles, stateLayout } from '../../spec/state-layout.ts';
import { Gateways } from '../chaos/gateways.ts';
import { model, Stage } from '../chaos/stage.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import type { AttackKind, AttackReport } from './attacker.ts';
import type { Target } from './attacks.ts';
import { askUntil, type HonestRecord, honestRecord, knownAnswers, type Question } from './honest.ts';
import { isAlive, listeningPorts, type OwnProcess, ownProcesses, pss_bytes } from './processes.ts';

const replicas = 4;
const honest_clients = 6;
/** Declared time of an iteration on every (emulated) device: the cores behind them are not what is tried here. */
const step_ms = 20;
/** Longer than a run: no job ends because its time is over. */
const time_limit = '12:00:00';
/** Enough that the tenants' requests do not fill the replicas by their number alone. */
const max_sequences = 16;
/** Acts a second of each kind of attacker. */
const acts_per_s: Record<AttackKind, number> = { strangers: 20, broken: 8, huge: 0.25, malicious: 1.5 };
const attackKinds = ['strangers', 'broken', 'huge', 'malicious'] as const satisfies readonly AttackKind[];
/** The other user of the machine: `nobody`. */
const stranger_uid = 65_534;
const pss_growth_max = 0.05;
const p99_ratio_max = 2;

export const soakBench: Bench = {
  name: 'soak',
  describe:
    'ordinary, broken, huge and malicious clients against two gateways and four paced replicas (root, for a Slurm cluster and another user)',
  run: async (options) => toResults(await runSoak(optionsOf(options.args), options.log), options),
};

interface SoakOptions {
  minutes: number;
  kinds: readonly AttackKind[];
}

interface SoakOutcome {
  minutes: number;
  ended: string[];
  /** By process, on average: from minute 10 to 15 of an hour, and in its last five. */
  memory: { what: string; early_bytes: number; late_bytes: number }[];
  attacked: HonestRecord;
  undisturbed: HonestRecord;
  attacks: Record<AttackKind, AttackReport>;
  attackers_share: number;
  /** Answers of honest clients that the ledgers have not, or have more than once. */
  missing: number;
  twice: number;
}

/** `--minutes N`, and `--attackers broken,huge` to see what some of them do. */
function optionsOf(args: readonly string[]): SoakOptions {
  const { values } = parseArgs({
    args: [...args],
    options: { minutes: { type: 'string', default: '60' }, attackers: { type: 'string' } },
  });
  const minutes = Number(values.minutes);
  if (!(minutes > 0)) throw new Error(`--minutes ${values.minutes} is no time`);
  const kinds = values.attackers?.split(',') ?? attackKinds;
  const unknown = kinds.find((kind) => !(attackKinds as readonly string[]).includes(kind));
  if (unknown !== undefined) throw new Error(`no attacker is called ${unknown}: ${attackKinds.join(', ')}`);
  return { minutes, kinds: kinds as AttackKind[] };
}

async function runSoak(options: SoakOptions, log: BenchOptions['log']): Promise<SoakOutcome> {
  const stage = await Stage.open({ replicas, step_ms, max_sequences, time_limit });
  try {
    log(`deploying ${replicas} replicas`);
    for (const name of stage.deployments)
      await stage.must('deploy', '--yes', stage.deploymentFile(name), '--detach');
    for (const name of stage.deployments)
      await stage.must('deploy', '--yes', stage.deploymentFile(name), '--timeout', '90s');
    const gateways = await Gateways.open(stage);
    const keys = await tenantKeys(stage);
    const questions = await knownAnswers(gateways.doors[0]!.url, gateways.key, model);
    return await measure(options, { stage, gateways, keys, questions, log });
  } finally {
    await stage.close();
  }
}

/** A key for each kind of attacker that has one. What cheats has a limit to cheat; the others send what they like. */
async function tenantKeys(stage: Stage): Promise<Run['keys']> {
  const keys: Run['keys'] = new Map();
  for (const [kind, options] of [
    ['broken', []],
    ['huge', []],
    ['malicious', ['--tokens-per-minute', '20000']],
  ] as const) {
    const made = await stage.must('keys', 'create', kind, ...options, '--json');
    keys.set(kind, (JSON.parse(made) as { key: string }).key);
  }
  return keys;
}

interface Run {
  stage: Stage;
  gateways: Gateways;
  keys: Map<AttackKind, string>;
  questions: readonly Question[];
  log: BenchOptions['log'];
}

async function measure({ minutes, kinds }: SoakOptions, run: Run): Promise<SoakOutcome> {
  const { stage, gateways, keys, log } = run;
  const processes = ownProcesses(stage.folder);
  log(`${processes.length} processes: ${[...new Set(processes.map(({ what }) => what))].join(', ')}`);
  const doors = gateways.doors.map(({ url }) => new URL(url));
  const ports = doors.map(({ hostname, port }) => ({ host: hostname, port: Number(port) }));
  const others = listeningPorts(processes).filter(({ port }) => ports.every((own) => own.port !== port));
  const target: Target = { gateways: ports, others, model };
  const began_ms = performance.now();
  const end_ms = began_ms + 60_000 * minutes;
  const attacked = honestRecord();
  const attackers = kinds.map((kind) =>
    attack(kind, { ...target, ...(keys.has(kind) && { key: keys.get(kind)! }) }),
  );
  const asking = ask(run, attacked, end_ms);
  const early = await averagePss(processes, began_ms + 10_000 * minutes, 5000 * minutes);
  const late = await averagePss(processes, end_ms - 5000 * minutes, 5000 * minutes);
  await asking;
  const wall_s = (performance.now() - began_ms) / 1000;
  const ended = processes.filter((one) => !isAlive(one)).map(({ what, pid }) => `${what} ${pid}`);
  const reports = await Promise.all(attackers.map((attacker) => attacker.stop()));
  const attacks = Object.fromEntries(kinds.map((kind, at) => [kind, reports[at]!])) as SoakOutcome['attacks'];
  const attackers_share = reports.reduce((sum, { cpu_s }) => sum + cpu_s, 0) / wall_s;
  log(`attackers took ${attackers_share.toFixed(2)} cores; the same share for idle loops now`);
  // What attackers left under way comes to its end.
  await sleep(10_000);
  const undisturbed = honestRecord();
  const idle = idleLoad(attackers_share);
  await ask(run, undisturbed, performance.now() + 10_000 * minutes);
  for (const child of idle) child.stdin!.end();
  return {
    minutes,
    ended,
    memory: processes.map(({ what, pid }, at) => ({
      what: `${what} ${pid}`,
      early_bytes: early[at]!,
      late_bytes: late[at]!,
    })),
    attacked,
    undisturbed,
    attacks,
    attackers_share,
    ...ledgerCounts(stage, [...attacked.request_ids, ...undisturbed.request_ids]),
  };
}

function ask({ gateways, questions }: Run, record: HonestRecord, end_ms: number): Promise<unknown> {
  const clients = Array.from({ length: honest_clients }, (_, index) =>
    askUntil(
      end_ms,
      { url: gateways.doors[index % 2]!.url, key: gateways.key, model, questions, index },
      record,
    ),
  );
  return Promise.all(clients);
}

/** Starts an attacker. The answer stops it, and gives what it counted. */
function attack(kind: AttackKind, target: Target): { stop(): Promise<AttackReport> } {
  const child = program(
    'attacker.js',
    [kind, String(acts_per_s[kind])],
    kind === 'strangers' ? stranger_uid : undefined,
  );
  let text = '';
  child.stdout!.on('data', (chunk) => {
    text += String(chunk);
  });
  child.stdin!.write(`${JSON.stringify(target)}\n`);
  return {
    stop: () =>
      new Promise((resolve, reject) => {
        child.on('close', (code) => {
          if (code === 0) resolve(JSON.parse(text) as AttackReport);
          else reject(new Error(`the attacker ${kind} ended with ${code}`));
        });
        child.stdin!.end();
      }),
  };
}

/** Loops that take so many cores together. */
function idleLoad(share: number): ChildProcess[] {
  const whole = Array.from({ length: Math.floor(share) }, () => 1);
  return [...whole, share - whole.length]
    .filter((part) => part > 0)
    .map((part) => program('idle-load.js', [String(part)]));
}

function program(name: string, args: readonly string[], uid?: number): ChildProcess {
  return spawn(process.execPath, [join(packageRoot, 'dist/bench/soak', name), ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
    cwd: '/',
    ...(uid !== undefined && { uid, gid: uid }),
  });
}

/** How often each answer stands in the ledgers of both gateways. */
function ledgerCounts(stage: Stage, ids: readonly string[]): { missing: number; twice: number } {
  const counts = new Map<string, number>();
  for (const number of [1, 2]) {
    const root = stateLayout(join(stage.folder, '.hpcserve'), 'chaos').root;
    const path = join(gatewayFolderOf(root, number), gatewayFiles.ledger);
    // A gateway moves what it has answered into the tables a moment later; a reader waits for that.
    openLedgerReader(path).close();
    const ledger = new Database(path, { readonly: true });
    const rows = ledger.prepare('SELECT request_id FROM requests').pluck().all() as string[];
    ledger.close();
    for (const id of rows) counts.set(id, (counts.get(id) ?? 0) + 1);
  }
  return {
    missing: ids.filter((id) => !counts.has(id)).length,
    twice: ids.filter((id) => counts.get(id)! > 1).length,
  };
}

async function until(at_ms: number): Promise<void> {
  await sleep(Math.max(0, at_ms - performance.now()));
}

/**
 * Bytes of each process over a while, looked at many times: a heap between two collections is now full, now empty, and
 * the large ones of the gateways are collected once in minutes.
 */
async function averagePss(
  processes: readonly OwnProcess[],
  from_ms: number,
  span_ms: number,
): Promise<number[]> {
  const samples = 60;
  const sums = processes.map(() => 0);
  for (let at = 0; at < samples; at++) {
    await until(from_ms + (at * span_ms) / samples);
    processes.forEach((one, index) => {
      sums[index]! += isAlive(one) ? pss_bytes(one) : 0;
    });
  }
  return sums.map((sum) => sum / samples);
}

function toResults(outcome: SoakOutcome, { log }: BenchOptions): BenchResult[] {
  const { minutes, attacked, undisturbed, memory, ended, missing, twice, attackers_share } = outcome;
  for (const [kind, { outcomes, cpu_s }] of Object.entries(outcome.attacks))
    log(`${kind}: ${JSON.stringify(outcomes)}, ${cpu_s.toFixed(0)} s of CPU`);
  for (const { what, early_bytes, late_bytes } of memory)
    log(`${what}: ${(early_bytes / 2 ** 20).toFixed(1)} MiB, then ${(late_bytes / 2 ** 20).toFixed(1)} MiB`);
  for (const words of [
    ...ended.map((what) => `${what} ended`),
    ...attacked.failed,
    ...undisturbed.failed,
  ].slice(0, 12))
    log(`! ${words}`);
  const sum = (of: 'early_bytes' | 'late_bytes') => memory.reduce((total, one) => total + one[of], 0);
  const growth = sum('late_bytes') / sum('early_bytes') - 1;
  const failed = attacked.failed.length + attacked.wrong;
  return [
    figure(`processes that ended in ${minutes} minutes`, '', ended.length, '0', ended.length === 0),
    figure(
      `honest requests that failed or were answered otherwise, of ${attacked.request_ids.length}`,
      '',
      failed,
      '0',
      failed === 0,
    ),
    figure(
      'PSS of all processes at the end beside a sixth of the run',
      '',
      1 + growth,
      '≤ 1.05',
      growth <= pss_growth_max,
    ),
    beside('p99 of honest first tokens', p99(attacked.ttft_ms), p99(undisturbed.ttft_ms)),
    beside('p99 of honest answers', p99(attacked.duration_ms), p99(undisturbed.duration_ms)),
    beside('p99 of gaps between honest tokens', p99(attacked.gap_ms), p99(undisturbed.gap_ms)),
    figure('share of the cores that attackers took, and idle loops after them', 'cores', attackers_share),
    figure('honest answers that no ledger has', '', missing, '0', missing === 0),
    figure('honest answers that ledgers have twice', '', twice, '0', twice === 0),
  ];
}

function p99(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(0.99 * sorted.length)] ?? Number.NaN;
}

function figure(
  what: string,
  unit: string,
  ours: number,
  bar = '',
  holds: boolean | null = null,
): BenchResult {
  return { what, unit, ours, peer: '', theirs: null, ratio: null, bar, holds };
}

function beside(what: string, ours: number, theirs: number): BenchResult {
  const holds = ours <= p99_ratio_max * theirs;
  return {
    what,
    unit: 'ms',
    ours,
    peer: 'idle loops',
    theirs,
    ratio: theirs / ours,
    bar: 'ratio ≥ 0.5',
    holds,
  };
}
