/**
 * Ordinary, broken, huge and malicious clients together, against two gateways and four replicas on a real Slurm cluster:
 * nothing may end, nothing may grow, honest clients hardly notice, and the ledger has every answer once. What the attackers'
 * own programs take of the two cores is not held against the product: it is compared with a run in which idle loops take
 * the same share.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import Database from 'better-sqlite3';
import { gatewayFolderOf } from '../../spec/gateway-folders.ts';
import { packageRoot } from '../../spec/package-root.ts';
import { gatewayFiles, stateLayout } from '../../spec/state-layout.ts';
import { Gateways } from '../chaos/gateways.ts';
import { model, Stage } from '../chaos/stage.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import type { AttackKind, AttackReport } from './attacker.ts';
import type { Target } from './attacks.ts';
import { askUntil, type HonestRecord, honestRecord, knownAnswers, type Question } from './honest.ts';
import { isAlive, listeningPorts, ownProcesses, pssBytes } from './processes.ts';

const replicas = 4;
const honest_clients = 6;
/** Declared time of an iteration on every (emulated) device: the cores behind them are not what is tried here. */
const step_ms = 20;
/** Enough that the tenants' requests do not fill the replicas by their number alone. */
const max_sequences = 16;
/** Acts a second of each kind of attacker. */
const acts_per_s: Record<AttackKind, number> = { strangers: 20, broken: 8, huge: 0.25, malicious: 1.5 };
/** The other user of the machine: `nobody`. */
const stranger_uid = 65_534;
const pss_growth_max = 0.05;
const p99_ratio_max = 2;

export const soakBench: Bench = {
  name: 'soak',
  describe:
    'ordinary, broken, huge and malicious clients against two gateways and four paced replicas (root, for a Slurm cluster and another user)',
  run: async (options) => toResults(await runSoak(minutesOf(options.args), options.log), options),
};

interface SoakOutcome {
  minutes: number;
  ended: string[];
  /** By process, at a sixth of the run (minute 10 of an hour) and at its end. */
  memory: { what: string; early_bytes: number; late_bytes: number }[];
  attacked: HonestRecord;
  undisturbed: HonestRecord;
  attacks: Record<AttackKind, AttackReport>;
  attackers_share: number;
  /** Answers of honest clients that the ledgers have not, or have more than once. */
  missing: number;
  twice: number;
}

function minutesOf(args: readonly string[]): number {
  if (args.length === 0) return 60;
  const minutes = Number(args[1]);
  if (args.length !== 2 || args[0] !== '--minutes' || !(minutes > 0))
    throw new Error(`usage: npm run bench -- soak [--minutes N], not ${args.join(' ')}`);
  return minutes;
}

async function runSoak(minutes: number, log: BenchOptions['log']): Promise<SoakOutcome> {
  const stage = await Stage.open({ replicas, step_ms, max_sequences });
  try {
    log(`deploying ${replicas} replicas`);
    for (const name of stage.deployments) await stage.must('deploy', stage.deploymentFile(name), '--detach');
    for (const name of stage.deployments)
      await stage.must('deploy', stage.deploymentFile(name), '--timeout', '90s');
    const gateways = await Gateways.open(stage);
    const tenant = await tenantKey(stage);
    const questions = await knownAnswers(gateways.doors[0]!.url, gateways.key, model);
    return await measure(minutes, { stage, gateways, tenant, questions, log });
  } finally {
    await stage.close();
  }
}

async function tenantKey(stage: Stage): Promise<string> {
  const made = await stage.must('keys', 'create', 'tenant', '--tokens-per-minute', '20000', '--json');
  return (JSON.parse(made) as { key: string }).key;
}

interface Run {
  stage: Stage;
  gateways: Gateways;
  tenant: string;
  questions: readonly Question[];
  log: BenchOptions['log'];
}

async function measure(minutes: number, run: Run): Promise<SoakOutcome> {
  const { stage, gateways, tenant, log } = run;
  const processes = ownProcesses(stage.folder);
  log(`${processes.length} processes: ${[...new Set(processes.map(({ what }) => what))].join(', ')}`);
  const doors = gateways.doors.map(({ url }) => new URL(url));
  const ports = doors.map(({ hostname, port }) => ({ host: hostname, port: Number(port) }));
  const others = listeningPorts(processes).filter(({ port }) => ports.every((own) => own.port !== port));
  const target: Target = { gateways: ports, others, model };
  const began_ms = performance.now();
  const end_ms = began_ms + 60_000 * minutes;
  const attacked = honestRecord();
  const attackers = attackKinds.map((kind) =>
    attack(kind, kind === 'strangers' ? target : { ...target, key: tenant }),
  );
  const asking = ask(run, attacked, end_ms);
  await until(began_ms + 10_000 * minutes);
  const early = processes.map((one) => (isAlive(one) ? pssBytes(one) : 0));
  await asking;
  const wall_s = (performance.now() - began_ms) / 1000;
  const ended = processes.filter((one) => !isAlive(one)).map(({ what, pid }) => `${what} ${pid}`);
  const late = processes.map((one) => (isAlive(one) ? pssBytes(one) : 0));
  const reports = await Promise.all(attackers.map((attacker) => attacker.stop()));
  const attacks = Object.fromEntries(
    attackKinds.map((kind, at) => [kind, reports[at]!]),
  ) as SoakOutcome['attacks'];
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

const attackKinds: readonly AttackKind[] = ['strangers', 'broken', 'huge', 'malicious'];

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
    const ledger = new Database(join(gatewayFolderOf(root, number), gatewayFiles.ledger), { readonly: true });
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
