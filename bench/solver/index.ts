/**
 * Our optimiser beside CP-SAT with one worker, native HiGHS and HiGHS from npm: the same formulation, one
 * thread each, in turns in one run. Our time is everything from the options to the proof; theirs is the
 * solver's own call, without building the model. Arguments: `--folder DIR` with instances (or
 * `HPCSERVE_INSTANCES`), `--generated` for some by seed instead, `--rounds N` (default 3), `--limit-s N` (default 30),
 * `--seed N` of the fresh instances (default 1), `--instances N` seeded ones (default 120; `all`: 1,000, which take
 * some minutes).
 */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { packageRoot } from '../../host/package-root.ts';
import { solveAssignment } from '../../solver/assignment/solve.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { generateInstance } from './generate.ts';
import { generatedInstances, loadInstances } from './instances.ts';
import { gapTo, runOurs } from './our-run.ts';
import { median, row } from './rows.ts';
import { seeded, seeded_all, seeded_few } from './seeded.ts';
import { sideBySide } from './side-by-side.ts';

const memory_bar_mb = 512;
const replan_bar_ms = 50;
const close_bar = 0.01;
const proof_bar_s = 10;

function fresh(seed: number, limit_s: number, log: BenchOptions['log']): BenchResult[] {
  const results: BenchResult[] = [];
  for (const models of [8, 16, 32, 64]) {
    let worst_gap = 0;
    let slowest_s = 0;
    let proved = 0;
    let runs = 0;
    for (const mode of ['single', 'split'] as const)
      for (const kind of ['roofline', 'uniform'] as const)
        for (const each of [seed, seed + 1]) {
          const run = runOurs(generateInstance({ models, types: 5, mode, kind, seed: each }), limit_s);
          // The optimum where it was proved, else what no plan can be below: never our own word.
          worst_gap = Math.max(worst_gap, gapTo(run.bound, run.cost_at_1_s));
          slowest_s = Math.max(slowest_s, run.solve.wall_s);
          proved += run.proved ? 1 : 0;
          runs++;
        }
    log(
      `fresh, M=${models}: worst gap at 1 s ${(100 * worst_gap).toFixed(2)} %, slowest proof ${slowest_s.toFixed(2)} s`,
    );
    results.push(
      row(
        `fresh, M=${models}: worst gap at 1 s to the proved bound`,
        100 * worst_gap,
        '%',
        '≤ 1 %',
        worst_gap <= close_bar,
      ),
      row(
        `fresh, M=${models}: slowest proof (${proved} of ${runs} proved)`,
        slowest_s,
        's',
        models <= 32 ? '≤ 10 s' : '',
        models <= 32 ? proved === runs && slowest_s <= proof_bar_s : null,
      ),
    );
  }
  return results;
}

/** A plan counts as good once it costs at most this share more than the best one. */
const good_enough = 0.01;

/** A node of four devices leaves or joins, one type after the other, from the plan and prices of before. */
function replans(seed: number): BenchResult[] {
  const proofs: number[] = [];
  const goods: number[] = [];
  for (const each of [seed, seed + 1, seed + 2])
    for (const mode of ['single', 'split'] as const) {
      const before = generateInstance({ models: 16, types: 5, mode, kind: 'roofline', seed: each });
      const { prices, choice } = solveAssignment(before);
      for (const change of [-4, 4])
        for (const type of before.counts.keys()) {
          const counts = before.counts.map((count, at) => Math.max(0, count + (at === type ? change : 0)));
          const found: { cost: number; ms: number }[] = [];
          const start = performance.now();
          const { cost } = solveAssignment(
            { ...before, counts },
            {
              warm: { prices, ...(choice ? { choice } : {}) },
              onProgress: (progress) => {
                if (progress.cost !== undefined)
                  found.push({ cost: progress.cost, ms: performance.now() - start });
              },
            },
          );
          proofs.push(performance.now() - start);
          if (cost === undefined) continue;
          goods.push(found.find((plan) => plan.cost <= (1 + good_enough) * cost)!.ms);
        }
    }
  const rows: [what: string, ms: number][] = [
    ['slowest to proof', Math.max(...proofs)],
    ['slowest to a plan within 1 % of the best', Math.max(...goods)],
  ];
  const stated: [what: string, ms: number][] = [
    ['median to proof', median(proofs)],
    ['95th percentile to proof', proofs.sort((x, y) => x - y)[Math.floor(0.95 * proofs.length)]!],
  ];
  const what = `re-plan after 4 devices left or joined, M=16, of ${proofs.length}`;
  return [
    ...rows.map(([words, ms]) =>
      row(`${what}: ${words}`, ms, 'ms', `≤ ${replan_bar_ms} ms`, ms <= replan_bar_ms),
    ),
    ...stated.map(([words, ms]) => row(`${what}: ${words}`, ms, 'ms', '', null)),
  ];
}

function memory(): BenchResult {
  const script = fileURLToPath(new URL('./memory.js', import.meta.url));
  const peak_mb = Number(execFileSync(process.execPath, [script], { encoding: 'utf8' }));
  return row(
    'peak resident memory, M=64, N=8',
    peak_mb,
    'MB',
    `≤ ${memory_bar_mb} MB`,
    peak_mb <= memory_bar_mb,
  );
}

export const solverBench: Bench = {
  name: 'solver',
  describe: 'placement optimiser: time to proof beside CP-SAT, native HiGHS and npm highs',
  async run({ args, log }) {
    const { values } = parseArgs({
      args: [...args],
      options: {
        folder: {
          type: 'string',
          default: process.env.HPCSERVE_INSTANCES ?? join(packageRoot, '..', 'shared', 'solver'),
        },
        generated: { type: 'boolean', default: false },
        instances: { type: 'string', default: String(seeded_few) },
        rounds: { type: 'string', default: '3' },
        'limit-s': { type: 'string', default: '30' },
        seed: { type: 'string', default: '1' },
      },
    });
    const limit_s = Number(values['limit-s']);
    const seed = Number(values.seed);
    const instances = values.instances === 'all' ? seeded_all : Number(values.instances);
    if (!Number.isSafeInteger(instances) || instances < 0)
      throw new RangeError(`--instances ${values.instances}: a number of seeded instances, or all`);
    // Compiled code, as in a process that lives: the first solves of a process take some 50 ms more.
    for (const mode of ['single', 'split'] as const)
      for (const kind of ['roofline', 'uniform'] as const)
        for (const models of [8, 16, 32])
          solveAssignment(generateInstance({ models, types: 5, mode, kind, seed: 99 }));
    const chosen = values.generated ? generatedInstances() : loadInstances(values.folder);
    return [
      ...(await sideBySide(chosen, Number(values.rounds), limit_s, log)),
      ...fresh(seed, limit_s, log),
      ...replans(seed),
      ...(await seeded(instances, log)),
      memory(),
    ];
  },
};
