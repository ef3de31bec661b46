/**
 * Many instances by seed, each of which has a plan: whether one is found, how soon, how good it is, and whether it
 * is proved. Some of them are put to CP-SAT too, so that no optimum is only our word.
 */
import type { BenchOptions, BenchResult } from '../result.ts';
import { generateInstance, seededShape, shapeName } from './generate.ts';
import { gapTo, type OurRun, runOurs } from './our-run.ts';
import { PythonPeer } from './python-peers.ts';
import { recomputeCost } from './recompute.ts';
import { median, row } from './rows.ts';

export const seeded_all = 1000;
/** All combinations of shapes once. */
export const seeded_few = 120;
/** Seconds of CPU time: this machine may have other work, which is not what is measured. */
const limit_s = 10;
const first_plan_bar_s = 1;
const close_bar = 0.01;
/** Models of an instance that is to be proved in `limit_s`. */
const proved_models_max = 64;
/** One in so many is put to CP-SAT. A stride that meets all shapes. */
const peer_stride = 11;
const peer_limit_s = 60;

interface SeededRun {
  name: string;
  models: number;
  run: OurRun;
  /** The optimum where anybody proved it, else our bound. */
  reference: number;
  /** What CP-SAT says, where it was asked and proved something. */
  peer?: { cost: number; solve_s: number };
}

export async function seeded(count: number, log: BenchOptions['log']): Promise<BenchResult[]> {
  const cpSat = count > 0 ? PythonPeer.start('cp-sat', log) : undefined;
  const runs: SeededRun[] = [];
  for (let index = 0; index < count; index++) {
    const shape = seededShape(index);
    const problem = generateInstance(shape);
    const run = runOurs(problem, limit_s, 'cpu_s');
    const seededRun: SeededRun = { name: shapeName(shape), models: shape.models, run, reference: run.bound };
    if (cpSat && index % peer_stride === 0 && shape.models <= proved_models_max) {
      const { status, objective, chosen, solve_s } = await cpSat.solve(problem, peer_limit_s);
      if (chosen && recomputeCost(problem, chosen) !== objective)
        throw new Error(`CP-SAT on ${seededRun.name}: its objective is not the cost of its choice`);
      if (status === 'optimal') {
        seededRun.peer = { cost: objective!, solve_s };
        seededRun.reference = objective!;
      }
    }
    runs.push(seededRun);
    if (!run.proved || seededRun.reference !== run.cost) log(describe(seededRun));
    if ((index + 1) % 100 === 0) log(`${index + 1} of ${count} seeded instances`);
  }
  cpSat?.end();
  return count > 0 ? summary(runs) : [];
}

function describe({ name, run, reference, peer }: SeededRun): string {
  const { cpu_s, wall_s } = run.solve;
  const held = peer ? `CP-SAT proved ${peer.cost}` : `bound ${run.bound}`;
  const gap = run.cost === undefined ? 'no plan' : `gap ${percent(gapTo(reference, run.cost))}`;
  return `${name}: ${run.status} after ${cpu_s.toFixed(2)} s of CPU (${wall_s.toFixed(2)} s), ${run.nodes} nodes; cost ${run.cost ?? 'none'}, ${held}, ${gap}`;
}

const percent = (share: number): string => `${(100 * share).toFixed(2)} %`;

function summary(runs: readonly SeededRun[]): BenchResult[] {
  const planned = runs.filter(({ run }) => run.cost !== undefined);
  const slowest = (of: 'cpu_s' | 'wall_s'): number =>
    Math.max(...runs.map(({ run }) => run.first?.[of] ?? Number.POSITIVE_INFINITY));
  const worst_gap = Math.max(...runs.map(({ run, reference }) => gapTo(reference, run.cost)));
  const what = `seeded, ${runs.length} instances`;
  const first_s = slowest('cpu_s');
  const asked = runs.filter(({ models }) => models <= proved_models_max);
  const unproved = asked.filter(({ run }) => !run.proved);
  const open_gap = Math.max(0, ...unproved.map(({ run }) => gapTo(run.bound, run.cost)));
  return [
    row(`${what}: with a plan`, planned.length, '', 'all', planned.length === runs.length),
    row(`${what}: slowest first plan, CPU time`, first_s, 's', '≤ 1 s', first_s <= first_plan_bar_s),
    row(`${what}: slowest first plan by the clock`, slowest('wall_s'), 's'),
    row(
      `${what}: largest gap to the optimum (or the bound) after 10 s`,
      100 * worst_gap,
      '%',
      '≤ 1 %',
      worst_gap <= close_bar,
    ),
    row(
      `${what}: proved in 10 s, of the ${asked.length} of up to ${proved_models_max} models`,
      asked.length - unproved.length,
      '',
    ),
    row(`${what}: largest gap to the bound of those not proved`, 100 * open_gap, '%'),
    row(
      `${what}: median time to proof, CPU time`,
      1000 * median(runs.map(({ run }) => run.solve.cpu_s)),
      'ms',
    ),
    ...besidePeer(what, runs),
  ];
}

function besidePeer(what: string, runs: readonly SeededRun[]): BenchResult[] {
  const both = runs.filter(({ peer }) => peer !== undefined);
  if (both.length === 0) return [];
  const same = both.filter(({ run, peer }) => run.cost === peer!.cost && run.bound <= peer!.cost).length;
  return [
    row(
      `${what}: at the optimum that CP-SAT proved, of ${both.length}`,
      same,
      '',
      'all that we proved too',
      both.every(({ run, peer }) =>
        run.proved
          ? run.cost === peer!.cost
          : run.bound <= peer!.cost && (run.cost ?? peer!.cost) >= peer!.cost,
      ),
    ),
    row(
      `${what}: median time of ${both.length} that CP-SAT proved`,
      1000 * median(both.map(({ run }) => run.solve.wall_s)),
      'ms',
      '',
      null,
      'CP-SAT, 1 worker',
      1000 * median(both.map(({ peer }) => peer!.solve_s)),
    ),
  ];
}
