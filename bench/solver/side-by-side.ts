/** Our solver and its peers on the same instances, in turns. */
import type { AssignmentProblem } from '../../solver/assignment/problem.ts';
import type { BenchOptions, BenchResult } from '../result.ts';
import type { Instance } from './instances.ts';
import { solveWithNpmHighs } from './npm-highs.ts';
import { type OurRun, runOurs } from './our-run.ts';
import { type PeerAnswer, PythonPeer, type PythonSolver } from './python-peers.ts';
import { recomputeCost } from './recompute.ts';
import { median, row } from './rows.ts';

const names = { 'cp-sat': 'CP-SAT, 1 worker', highs: 'native HiGHS', 'npm-highs': 'npm highs' } as const;
type Peer = keyof typeof names;

interface Peers {
  python: ReadonlyMap<Peer, PythonPeer>;
  all: readonly Peer[];
}

/** What came of one instance: a run of ours a round, and an answer of each peer. */
interface Contest {
  name: string;
  ours: OurRun[];
  theirs: Map<Peer, PeerAnswer[]>;
}

export async function sideBySide(
  instances: readonly Instance[],
  rounds: number,
  limit_s: number,
  log: BenchOptions['log'],
): Promise<BenchResult[]> {
  const solvers = ['cp-sat', 'highs'] satisfies PythonSolver[];
  const python = new Map<Peer, PythonPeer>(solvers.map((solver) => [solver, PythonPeer.start(solver, log)]));
  const peers: Peers = { python, all: [...python.keys(), 'npm-highs'] };
  const contests: Contest[] = [];
  for (const instance of instances) {
    const contest = await compete(instance, peers, rounds, limit_s);
    log(describe(contest));
    contests.push(contest);
  }
  for (const peer of python.values()) peer.end();
  return [
    ...contests.flatMap((contest) => peers.all.flatMap((peer) => besides(contest, peer))),
    ...peers.all.map((peer) => medianRatio(contests, peer)),
    atOptimum(contests),
  ];
}

async function compete(
  { name, problem }: Instance,
  { python, all }: Peers,
  rounds: number,
  limit_s: number,
): Promise<Contest> {
  const contest: Contest = { name, ours: [], theirs: new Map(all.map((peer) => [peer, []])) };
  for (let round = 0; round < rounds; round++) {
    contest.ours.push(runOurs(problem, limit_s));
    for (const peer of all) {
      const answer = await ask(python.get(peer), problem, limit_s);
      if (answer.chosen !== null && recomputeCost(problem, answer.chosen) !== answer.objective)
        throw new Error(`${names[peer]} on ${name}: its objective is not the cost of its choice`);
      contest.theirs.get(peer)!.push(answer);
    }
  }
  return contest;
}

async function ask(
  peer: PythonPeer | undefined,
  problem: AssignmentProblem,
  limit_s: number,
): Promise<PeerAnswer> {
  return (await peer?.solve(problem, limit_s)) ?? (await solveWithNpmHighs(problem, limit_s));
}

/** Costs that a peer proved to be the least. */
function provedByPeers({ theirs }: Contest): number[] {
  return [...theirs.values()].flatMap((answers) =>
    answers.flatMap(({ status, objective }) => (status === 'optimal' ? [objective!] : [])),
  );
}

/** The least cost that anybody found; infinite where nobody has a plan. */
function leastCost(contest: Contest): number {
  return Math.min(...provedByPeers(contest), ...contest.ours.flatMap(({ cost }) => cost ?? []));
}

const proof_ms = ({ ours }: Contest): number => 1000 * median(ours.map(({ solve }) => solve.wall_s));
/** Infinite where a run found no plan. */
const best_ms = ({ ours }: Contest): number =>
  1000 * median(ours.map(({ best }) => best?.wall_s ?? Number.POSITIVE_INFINITY));
/** What is wrong with our runs, for the name of a row. */
const unproved = ({ ours }: Contest): string =>
  ours.some(({ cost }) => cost === undefined)
    ? ' (ours: no plan)'
    : ours.some(({ proved }) => !proved)
      ? ' (ours: not proved)'
      : '';

function describe(contest: Contest): string {
  const least = leastCost(contest);
  const held = contest.ours.map(({ status, cost }) => `${status} ${cost ?? 'no plan'}`);
  const ours = [...new Set(held)].join(', ');
  return `${contest.name}: ${Number.isFinite(least) ? least : 'no plan by anybody'}; ours ${ours}, best ${best_ms(contest).toFixed(1)} ms, end ${proof_ms(contest).toFixed(1)} ms`;
}

function besides(contest: Contest, peer: Peer): BenchResult[] {
  const answers = contest.theirs.get(peer)!;
  const ours_ms = proof_ms(contest);
  const peer_ms = 1000 * median(answers.map(({ solve_s }) => solve_s));
  const theirs = answers.some(({ status }) => status !== 'optimal') ? ' (not proved)' : '';
  const barred = peer === 'highs';
  const results = [
    row(
      `${contest.name}: proof${unproved(contest)}`,
      ours_ms,
      'ms',
      barred ? 'ratio ≥ 1' : '',
      barred ? unproved(contest) === '' && peer_ms >= ours_ms : null,
      `${names[peer]}${theirs}`,
      peer_ms,
    ),
  ];
  const best_s = answers.flatMap((answer) => answer.best_s ?? []);
  if (best_s.length === answers.length)
    results.push(
      row(`${contest.name}: best`, best_ms(contest), 'ms', '', null, names[peer], 1000 * median(best_s)),
    );
  return results;
}

function medianRatio(contests: readonly Contest[], peer: Peer): BenchResult {
  const ratio = median(
    contests.map(
      (contest) =>
        (1000 * median(contest.theirs.get(peer)!.map(({ solve_s }) => solve_s))) / proof_ms(contest),
    ),
  );
  const what = `median over instances: proof time of ${names[peer]} against ours`;
  return peer === 'cp-sat' ? row(what, ratio, '×', '≥ 0.5', ratio >= 0.5) : row(what, ratio, '×');
}

function atOptimum(contests: readonly Contest[]): BenchResult {
  const optimal = contests.filter((contest) => {
    const least = leastCost(contest);
    return (
      contest.ours.every((run) => run.proved && run.cost === least) &&
      provedByPeers(contest).every((cost) => cost === least)
    );
  }).length;
  return row(
    `instances at the optimum and proved, of ${contests.length}`,
    optimal,
    '',
    'all',
    optimal === contests.length,
  );
}
