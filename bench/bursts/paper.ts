/**
 * FlexPipe's own figures beside ours. Its cluster, its requests and its baselines are its own: see docs/pipelines.md.
 */
import type { PipelineFigures } from '../../solver/pipeline-simulator/outcome.ts';
import type { BenchResult } from '../result.ts';
import { opt66b } from './opt-66b.ts';

const requests = 12_000;

/** By contestant, the mean over seeds. */
export type ByContestant = ReadonlyMap<string, PipelineFigures>;

export function againstPaper(found: ReadonlyMap<number, ByContestant>): BenchResult[] {
  const of = (cv: number, name: string): PipelineFigures => found.get(cv)!.get(name)!;
  const lower = (cv: number, name: string): number =>
    100 * (1 - of(cv, 'adaptive').latency_ms.mean / of(cv, name).latency_ms.mean);
  const paper = (what: string, unit: string, ours: number, theirs: number, bar = true): BenchResult => ({
    what,
    unit,
    ours,
    peer: 'FlexPipe',
    theirs,
    ratio: theirs === 0 ? null : ours / theirs,
    bar: bar ? `≥ ${theirs} ${unit} (the paper)` : '',
    holds: bar ? ours >= theirs : null,
  });
  return [
    paper('mean latency below AlpaServe-like, CV 1', '%', lower(1, 'AlpaServe-like'), 38.3),
    paper('mean latency below MuxServe-like, CV 2', '%', lower(2, 'MuxServe-like'), 46.9),
    paper('mean latency below AlpaServe-like, CV 4', '%', lower(4, 'AlpaServe-like'), 66.1),
    paper('mean latency below MuxServe-like, CV 4', '%', lower(4, 'MuxServe-like'), 80.6),
    ...[4, 8].map((cv) =>
      paper(`requests in time, CV ${cv}`, '%', (100 * of(cv, 'adaptive').goodput) / requests, 98.3),
    ),
    ...([4, 8, 16] as const).map((stages) =>
      beside(of(8, 'adaptive'), of(8, `static ${stages} stages`), stages),
    ),
    fewer('time on hops, CV 4', 'ms', of(4, 'adaptive').hopping_ms, 225),
    fewer(
      'devices always on, of the most that CV 8 had',
      '%',
      (100 * of(8, 'adaptive').always_on_devices) / of(8, 'adaptive').devices_max,
      30,
    ),
    ...recoveries(of),
    starts(of(8, 'adaptive')),
    {
      what: 'requests in time per device-hour, CV 4',
      unit: 'requests',
      ours: of(4, 'adaptive').goodput_per_device_hour,
      peer: 'Tetris-like',
      theirs: of(4, 'Tetris-like').goodput_per_device_hour,
      ratio: of(4, 'adaptive').goodput_per_device_hour / of(4, 'Tetris-like').goodput_per_device_hour,
      bar: 'ratio ≥ 8.5 (the paper)',
      holds: of(4, 'adaptive').goodput_per_device_hour >= 8.5 * of(4, 'Tetris-like').goodput_per_device_hour,
    },
  ];
}

/** The adaptive one against a single pipeline that stays as it is; the paper gives no figure for these. */
function beside(ours: PipelineFigures, theirs: PipelineFigures, stages: number): BenchResult {
  return {
    what: `mean latency with ${ours.devices_mean.toFixed(1)} devices on average, CV 8`,
    unit: 'ms',
    ours: ours.latency_ms.mean,
    peer: `static, ${stages} stages on ${stages} devices`,
    theirs: theirs.latency_ms.mean,
    ratio: theirs.latency_ms.mean / ours.latency_ms.mean,
    bar: '',
    holds: null,
  };
}

function fewer(what: string, unit: string, ours: number, theirs: number): BenchResult {
  return {
    what,
    unit,
    ours,
    peer: 'FlexPipe',
    theirs,
    ratio: theirs / ours,
    bar: `≤ ${theirs} ${unit} (the paper)`,
    holds: ours <= theirs,
  };
}

/** Median time from stall to recovery. Where nothing stalled there is nothing to recover from. */
function recoveries(of: (cv: number, name: string) => PipelineFigures): BenchResult[] {
  return (
    [
      [1, 88],
      [2, 79],
      [4, 9],
    ] as const
  ).map(([cv, theirs]) => {
    const { stalls, recovery_ms } = of(cv, 'adaptive');
    const ours = Number.isNaN(recovery_ms) ? 0 : recovery_ms;
    return {
      ...fewer(`median recovery of ${stalls.toFixed(0)} stalls, CV ${cv}`, 'ms', ours, theirs),
      ratio: ours === 0 ? null : theirs / ours,
    };
  });
}

/** How long what is started takes to serve, against four stages that come from storage each time. */
function starts({ changes_s }: PipelineFigures): BenchResult {
  const ours = changes_s.reduce((sum, seconds) => sum + seconds, 0) / Math.max(1, changes_s.length);
  const theirs = opt66b[0]!.load_s;
  return {
    what: `until a change serves, KV copied, CV 8 (${changes_s.length} changes)`,
    unit: 's',
    ours,
    peer: 'four stages from storage (Table 2)',
    theirs,
    ratio: theirs / ours,
    bar: '72 % shorter (the paper)',
    holds: ours <= 0.28 * theirs,
  };
}
