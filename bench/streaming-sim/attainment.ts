/** Shares of requests within their service level, with and without each part; and the highest rate that keeps 95 %. */
import type { StreamingFigures } from '../../solver/streaming-simulator/outcome.ts';
import type { StreamingPolicy } from '../../solver/streaming-simulator/serving.ts';
import type { BenchResult } from '../result.ts';
import { drawBursts, figuresFor, layouts, machineOf, policies, slo } from './setup.ts';

/** No rule or setting was chosen on these: chunks and placement were changed with seed 1 in view. */
const seeds = [11, 12, 13, 14] as const;
const seconds = 600;
const wanted_attainment = 0.95;
/** Requests a second over all models, in steps of a quarter. */
const rates = Array.from({ length: 16 }, (_, step) => 0.04 * 1.25 ** step);
/** What the paper says of its placement: p99 TTFT of 0.64 s, 1.94 times better. */
const paper_placement_gain = 1.94;

interface MeanFigures {
  ttft: number;
  tpot: number;
  both: number;
  ttft_p99_ms: number;
  tpot_p99_ms: number;
  link_gb_per_s: number;
}

export function attainmentResults(log: (line: string) => void): BenchResult[] {
  log(`service level: first token within ${slo.ttft_ms} ms, further ones within ${slo.tpot_ms} ms each`);
  return Object.keys(layouts).flatMap((layout) => layoutResults(layout, log));
}

function layoutResults(layout: string, log: (line: string) => void): BenchResult[] {
  const highest = new Map(policies.map((policy) => [policy.name, highestRate(layout, policy)]));
  const [everything] = policies;
  const rate = highest.get(everything!.name)! || rates[0]!;
  log(`${layout}, ${rate.toFixed(3)} requests/s, means of ${seeds.length} seeds of ${seconds} s:`);
  log(
    `  ${''.padEnd(26)}${['TTFT', 'TPOT', 'both', 'p99 TTFT', 'p99 TPOT', 'link', 'rate ≥ 95 %'].map((title) => title.padStart(12)).join('')}`,
  );
  const found = new Map<string, MeanFigures>();
  for (const policy of policies) {
    const own = meanFigures(layout, policy, rate);
    found.set(policy.name, own);
    const cells = [
      ...[own.ttft, own.tpot, own.both].map((share) => `${(100 * share).toFixed(1)} %`),
      `${own.ttft_p99_ms.toFixed(0)} ms`,
      `${own.tpot_p99_ms.toFixed(0)} ms`,
      `${own.link_gb_per_s.toFixed(0)} GB/s`,
      `${highest.get(policy.name)!.toFixed(3)}/s`,
    ];
    log(`  ${policy.name.padEnd(26)}${cells.map((cell) => cell.padStart(12)).join('')}`);
  }
  const all = found.get('everything')!;
  const without = found.get('without placement')!;
  const none = highest.get('none of the three')!;
  const own_rate = highest.get(everything!.name)!;
  return [
    {
      what: `${layout}: highest rate with 95 % in time, beside none of placement, chunks and kernels`,
      unit: 'requests/s',
      ours: own_rate,
      peer: 'none of the three',
      theirs: none,
      ratio: none > 0 ? own_rate / none : null,
      bar: 'ratio ≥ 1.2',
      holds: own_rate >= 1.2 * none && own_rate > 0,
    },
    ...(layouts[layout]!.length > 1
      ? [
          {
            what: `${layout}: p99 TTFT at that rate, beside none but placement left out (the paper: ${paper_placement_gain}×)`,
            unit: 'ms',
            ours: all.ttft_p99_ms,
            peer: 'without placement',
            theirs: without.ttft_p99_ms,
            ratio: without.ttft_p99_ms / all.ttft_p99_ms,
            bar: `ratio ≥ ${paper_placement_gain}`,
            holds: without.ttft_p99_ms / all.ttft_p99_ms >= paper_placement_gain,
          },
        ]
      : []),
  ];
}

/** By bisection: more requests are not easier. 0 where not even the lowest rate keeps the share. */
function highestRate(layout: string, policy: StreamingPolicy): number {
  let [kept, lost] = [-1, rates.length];
  while (lost - kept > 1) {
    const middle = (kept + lost) >> 1;
    if (meanFigures(layout, policy, rates[middle]!).both >= wanted_attainment) kept = middle;
    else lost = middle;
  }
  return rates[kept] ?? 0;
}

function meanFigures(layout: string, policy: StreamingPolicy, rate: number): MeanFigures {
  const machine = machineOf(layout);
  const runs = seeds.map((seed) => figuresFor(drawBursts(rate, seconds, seed), machine, policy));
  const mean = (of: (run: StreamingFigures) => number): number =>
    runs.reduce((sum, run) => sum + of(run), 0) / runs.length;
  return {
    ttft: mean((run) => run.ttft_attainment),
    tpot: mean((run) => run.tpot_attainment),
    both: mean((run) => run.attainment),
    ttft_p99_ms: mean((run) => run.ttft_ms.p99),
    tpot_p99_ms: mean((run) => run.tpot_ms.p99),
    link_gb_per_s: mean((run) => run.link_bytes_per_s) / 1e9,
  };
}
