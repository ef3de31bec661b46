/**
 * Bursts (FlexPipe §9): one OPT-66B by Table 2 at 20 requests a second, with CVs of 1 to 8, in a fragmented cluster
 * of 82 GPUs; served by the live decision of `solver/granularity` and, each in a run of its own with the same
 * requests, by what it is compared with. Times of decision and partition beside it.
 */
import {
  type FragmentedCluster,
  fragmentedCluster,
  whole_device_share,
} from '../../solver/pipeline-simulator/fragments.ts';
import { figuresOf, type PipelineFigures } from '../../solver/pipeline-simulator/outcome.ts';
import { servePipelines } from '../../solver/pipeline-simulator/serving.ts';
import {
  drawGammaArrivals,
  drawSurges,
  type PipelineRequest,
  surgeRates,
} from '../../solver/pipeline-simulator/surges.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { contestants } from './contestants.ts';
import { kv_bytes, opt66b, passes_mean } from './opt-66b.ts';
import { againstPaper, type ByContestant } from './paper.ts';
import { decisionTimes } from './times.ts';

const cvs = [1, 2, 4, 8] as const;
const seeds = [1, 2] as const;
/** The paper's goodput of one run without misses. */
const requests = 12_000;
/** Served before, so that elastic systems do not begin with a cold cluster: no contestant is judged by them. */
const warmup_requests = 2000;
/** Mean length: within the windows of 15 s of Fig. 9. */
const surge_s = 10;
const cluster_size = { servers: 42, devices: 82, memory_bytes: 80e9 };

export const burstsBench: Bench = {
  name: 'bursts',
  describe:
    'OPT-66B by FlexPipe’s Table 2 under bursts, simulated with the live decision on granularity; beside static pipelines and systems like the paper’s',
  run: (options) => Promise.resolve([...decisionTimes(options.log), ...bursts(options)]),
};

function bursts({ args, log }: BenchOptions): BenchResult[] {
  const at = args.indexOf('--rate');
  const rate_per_s = at < 0 ? 20 : Number(args[at + 1]);
  const gamma = args.includes('--gamma');
  const { devices } = fragmentedCluster({ ...cluster_size, seed: 1 });
  const share = (bytes: number): string =>
    `${((100 * devices.filter((device) => device.memory_bytes_free >= bytes).length) / devices.length).toFixed(0)} %`;
  log(
    `supply: ${share(whole_device_share * cluster_size.memory_bytes)} of devices are whole (the paper: 8.7 %), four on one server at ${fourTogether(devices)} of ${cluster_size.servers} (the paper: 0.02 %); room for a stage of ${opt66b.map(({ stages, stage_bytes, reserve_bytes }) => `${stages}: ${share(stage_bytes + reserve_bytes)}`).join(', ')}`,
  );
  const found = new Map<number, ByContestant>();
  for (const cv of cvs) {
    const figures = serveAll(rate_per_s, cv, gamma, log);
    found.set(cv, figures);
    logFigures(`CV ${cv}, ${rate_per_s} requests/s${gamma ? ', Gamma arrivals' : ''}`, figures, log);
  }
  return againstPaper(found);
}

/** Servers of which four devices are whole, as tensor parallelism over four would need them. */
function fourTogether(devices: FragmentedCluster['devices']): number {
  const whole = new Map<string, number>();
  for (const { server, memory_share_free } of devices)
    if (memory_share_free >= whole_device_share) whole.set(server, (whole.get(server) ?? 0) + 1);
  return [...whole.values()].filter((count) => count >= 4).length;
}

function serveAll(
  rate_per_s: number,
  cv: number,
  gamma: boolean,
  log: (line: string) => void,
): Map<string, PipelineFigures> {
  const runs = new Map<string, PipelineFigures[]>();
  for (const seed of seeds) {
    const drawn = { rate_per_s, cv, requests: warmup_requests + requests, passes_mean, seed };
    const arrivals: PipelineRequest[] = gamma ? drawGammaArrivals(drawn) : drawSurges({ ...drawn, surge_s });
    const told = (now_ms: number, because: string): void => {
      if (seed === seeds[0]) log(`  ${(now_ms / 1000).toFixed(0).padStart(5)} s  ${because}`);
    };
    const peak_per_s = gamma ? rate_per_s : surgeRates(rate_per_s, cv).surge_per_s;
    for (const policy of contestants(rate_per_s, peak_per_s, told)) {
      const outcome = servePipelines(arrivals, policy, {
        profile: opt66b,
        cluster: fragmentedCluster({ ...cluster_size, seed }),
        tick_ms: 250,
        // Must reach of inflight refactoring: an iteration, and so much.
        cutover_ms: 5,
        kv_bytes,
        kv_bytes_per_s: 12.5e9,
        warmup_requests,
      });
      runs.set(policy.name, [...(runs.get(policy.name) ?? []), figuresOf(outcome, deadlineOf_ms)]);
    }
  }
  return new Map([...runs].map(([name, figures]) => [name, meanFigures(figures)]));
}

/**
 * In time: within twice what four stages take for it when nothing waits, at least a second. The paper does not tell.
 */
function deadlineOf_ms(passes: number): number {
  const { stages, stage_s, hops_s } = opt66b[0]!;
  return Math.max(1000, 2000 * passes * (stages * stage_s + hops_s));
}

function meanFigures(runs: readonly PipelineFigures[]): PipelineFigures {
  const mean = (of: (run: PipelineFigures) => number): number => {
    const known = runs.map(of).filter((value) => !Number.isNaN(value));
    return known.length === 0 ? Number.NaN : known.reduce((sum, value) => sum + value, 0) / known.length;
  };
  const latency = (key: keyof PipelineFigures['latency_ms']): number => mean((run) => run.latency_ms[key]);
  return {
    latency_ms: {
      mean: latency('mean'),
      p50: latency('p50'),
      p90: latency('p90'),
      p95: latency('p95'),
      p99: latency('p99'),
      max: latency('max'),
    },
    waiting_ms: mean((run) => run.waiting_ms),
    computing_ms: mean((run) => run.computing_ms),
    hopping_ms: mean((run) => run.hopping_ms),
    goodput: mean((run) => run.goodput),
    recovery_ms: mean((run) => run.recovery_ms),
    stalls: mean((run) => run.stalls),
    changes_s: runs.flatMap((run) => run.changes_s),
    always_on_devices: mean((run) => run.always_on_devices),
    devices_max: Math.max(...runs.map((run) => run.devices_max)),
    devices_mean: mean((run) => run.devices_mean),
    utilization: mean((run) => run.utilization),
    goodput_per_device_hour: mean((run) => run.goodput_per_device_hour),
  };
}

function logFigures(title: string, figures: ByContestant, log: (line: string) => void): void {
  log(`${title}, means of ${seeds.length} seeds:`);
  log(
    `  ${''.padEnd(30)}${['mean', 'P50', 'P99', 'wait', 'stages', 'hops', 'in time', 'recovery', 'stalls', 'changes', 'always on', 'devices', 'most', 'in use'].map((title) => title.padStart(10)).join('')}`,
  );
  for (const [name, own] of figures) {
    const { latency_ms: latency } = own;
    const cells = [
      ...[latency.mean, latency.p50, latency.p99, own.waiting_ms, own.computing_ms, own.hopping_ms].map(
        (ms) => `${ms.toFixed(0)} ms`,
      ),
      `${((100 * own.goodput) / requests).toFixed(1)} %`,
      Number.isNaN(own.recovery_ms) ? '—' : `${own.recovery_ms.toFixed(0)} ms`,
      own.stalls.toFixed(0),
      (own.changes_s.length / seeds.length).toFixed(1),
      own.always_on_devices.toFixed(0),
      own.devices_mean.toFixed(1),
      own.devices_max.toFixed(0),
      `${(100 * own.utilization).toFixed(0)} %`,
    ];
    log(`  ${name.padEnd(30)}${cells.map((cell) => cell.padStart(10)).join('')}`);
  }
}
