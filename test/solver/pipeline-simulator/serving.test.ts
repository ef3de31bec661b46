import { describe, expect, it } from 'vitest';
import { kv_bytes, opt66b, passes_mean } from '../../../bench/bursts/opt-66b.ts';
import { floor_settings } from '../../../solver/locality/always-on-floor.ts';
import { FragmentPool } from '../../../solver/pipeline-simulator/fragment-pool.ts';
import { fragmentedCluster } from '../../../solver/pipeline-simulator/fragments.ts';
import { figuresOf } from '../../../solver/pipeline-simulator/outcome.ts';
import { reservedPolicy, staticPolicy, tetrisLike } from '../../../solver/pipeline-simulator/policies.ts';
import type { PipelinePolicy } from '../../../solver/pipeline-simulator/policy.ts';
import { servePipelines } from '../../../solver/pipeline-simulator/serving.ts';
import { drawSurges, type PipelineRequest, surgeRates } from '../../../solver/pipeline-simulator/surges.ts';

const cluster = fragmentedCluster({ servers: 42, devices: 82, memory_bytes: 80e9, seed: 1 });
const serve = (requests: readonly PipelineRequest[], policy: PipelinePolicy) =>
  servePipelines(requests, policy, {
    profile: opt66b,
    cluster,
    tick_ms: 250,
    cutover_ms: 5,
    kv_bytes,
    kv_bytes_per_s: 12.5e9,
  });
const surges = (cv: number, requests = 4000, seed = 5) =>
  drawSurges({ rate_per_s: 20, cv, requests, surge_s: 10, passes_mean, seed });

describe('surges', () => {
  it('have the rate and the CV that was asked for', () => {
    for (const cv of [1, 2, 4, 8]) {
      const arrivals = surges(cv, 100_000).map(({ arrival_ms }) => arrival_ms);
      const gaps = arrivals.slice(1).map((at, index) => at - arrivals[index]!);
      const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
      const variance = gaps.reduce((sum, gap) => sum + (gap - mean) ** 2, 0) / gaps.length;
      expect(1000 / mean / 20).toBeGreaterThan(0.75);
      expect(1000 / mean / 20).toBeLessThan(1.25);
      expect(Math.sqrt(variance) / mean / cv).toBeGreaterThan(0.75);
      expect(Math.sqrt(variance) / mean / cv).toBeLessThan(1.25);
    }
    expect(surgeRates(20, 8).surge_per_s).toBe(260);
  });
});

describe('the pipelines of the simulation', () => {
  it('take S · τ + (S − 1) · δ for a pass when nothing waits (Table 2)', () => {
    for (const granularity of opt66b) {
      const alone = [{ arrival_ms: 0, passes: 3 }];
      const [request] = serve(alone, staticPolicy(granularity.stages)).requests;
      const pass_ms = 1000 * (granularity.stages * granularity.stage_s + granularity.hops_s);
      expect(request!.done_ms).toBeCloseTo(3 * pass_ms, 6);
      expect(request!.waiting_ms).toBeCloseTo(0, 9);
    }
  });

  it('account for all of a request’s time, and serve every request once', () => {
    for (const policy of [staticPolicy(8), tetrisLike(4, 4), reservedPolicy(4, 1, 3)]) {
      const { requests } = serve(surges(8), policy);
      const unaccounted_ms = requests.map(({ arrival_ms, done_ms, waiting_ms, computing_ms, hopping_ms }) =>
        Math.abs(waiting_ms + computing_ms + hopping_ms - (done_ms - arrival_ms)),
      );
      expect(Math.max(...unaccounted_ms)).toBeLessThan(0.001);
      expect(requests.filter(({ passes_left }) => passes_left !== 0)).toEqual([]);
    }
  });

  it('serve b / η sequences every stage time, and no more than b at once', () => {
    const all = Array.from({ length: 1280 }, () => ({ arrival_ms: 0, passes: 10 }));
    const { requests, seconds } = serve(all, staticPolicy(4));
    const passes_per_s = (1280 * 10) / seconds;
    expect(passes_per_s / 457.5).toBeGreaterThan(0.9);
    expect(passes_per_s / 457.5).toBeLessThanOrEqual(1);
    const running = (at_ms: number): number =>
      requests.filter((own) => own.done_ms > at_ms && own.done_ms - own.computing_ms - own.hopping_ms < at_ms)
        .length;
    expect(running(3030)).toBeLessThanOrEqual(128);
  });

  it('are worse off with four stages than with eight in surges that four do not carry', () => {
    const figures = (stages: number) =>
      figuresOf(serve(surges(8), staticPolicy(stages)), (passes) => passes * 600);
    expect(figures(4).latency_ms.mean).toBeGreaterThan(2 * figures(8).latency_ms.mean);
    expect(figures(4).goodput).toBeLessThan(figures(8).goodput);
    expect(figures(4).stalls).toBeGreaterThan(0);
  });
});

describe('the devices of the simulation', () => {
  it('are a fragmented cluster as §3.1 describes it', () => {
    const { devices } = fragmentedCluster({ servers: 10, devices: 20_000, memory_bytes: 1, seed: 3 });
    const share = (of: (device: (typeof devices)[number]) => boolean): number =>
      devices.filter(of).length / devices.length;
    const mean = (of: (device: (typeof devices)[number]) => number): number =>
      devices.reduce((sum, device) => sum + of(device), 0) / devices.length;
    expect(share(({ memory_share_free }) => memory_share_free > 0.85)).toBeCloseTo(0.087, 2);
    expect(mean(({ memory_share_free }) => 1 - memory_share_free)).toBeCloseTo(0.4348, 1);
    expect(mean(({ busy }) => busy)).toBeCloseTo(0.1691, 1);
  });

  it('are held from their taking until five idle minutes are over, and are warm afterwards', () => {
    const pool = new FragmentPool({ cluster, always_on: 4, whole_devices: false, floor: floor_settings });
    const taken = pool.take(0, 8, 17e9, new Set());
    expect(taken.cold).toBe(true);
    expect(new Set(taken.devices).size).toBe(8);
    expect(taken.devices.slice(0, 4)).toEqual(pool.always_on);
    pool.settle(1000, new Set(pool.always_on));
    pool.settle(300_999, new Set(pool.always_on));
    expect(pool.heldTime_ms(300_999)).toBe(8 * 300_999);
    pool.settle(301_000, new Set(pool.always_on));
    expect(pool.heldTime_ms(302_000) - pool.heldTime_ms(301_000)).toBe(4000);
    expect(pool.isWarm(4, 17e9)).toBe(true);
    expect(pool.take(302_000, 8, 17e9, new Set()).cold).toBe(false);
  });
});
