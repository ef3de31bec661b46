import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { defaultSharingSettings, type SharingSettings } from '../../../solver/sharing/settings.ts';
import { ExclusiveServing } from '../../../solver/sharing-simulator/exclusive-serving.ts';
import { type RequestOutcome, report } from '../../../solver/sharing-simulator/outcome.ts';
import {
  SharedServing,
  type SharedServingOptions,
} from '../../../solver/sharing-simulator/shared-serving.ts';
import { SimulationEvents } from '../../../solver/sharing-simulator/simulation-events.ts';
import { replicaModels, testbed } from '../../../solver/sharing-simulator/testbed.ts';
import { drawWorkload, type WorkloadRequest } from '../../../solver/sharing-simulator/workload.ts';

const models = replicaModels(['llama-2-13b', 'llama-2-7b'], 48);
const workload = drawWorkload({ models: 48, minutes: 6, seed: 4 });
const devices = testbed({ cpus: 2, gpus: 1 });

function share(
  requests: readonly WorkloadRequest[],
  settings: Partial<SharingSettings> = {},
  options: Partial<SharedServingOptions> = {},
): { serving: SharedServing; outcomes: RequestOutcome[] } {
  const serving = new SharedServing({
    devices,
    models,
    settings: { ...defaultSharingSettings, ...settings },
    noise: 0.03,
    seed: 1,
    ...options,
  });
  return { serving, outcomes: serving.run(requests) };
}

describe('the workload', () => {
  it('has as many calls as the sample it is drawn after, as unevenly', () => {
    for (const [count, calls] of [
      [32, 2366],
      [64, 4684],
      [128, 9266],
    ] as const) {
      const requests = drawWorkload({ models: count, minutes: 30, seed: 1 });
      expect(Math.abs(requests.length / calls - 1)).toBeLessThan(0.03);
      const perModel = new Array<number>(count).fill(0);
      for (const { model } of requests) perModel[model]!++;
      perModel.sort((a, b) => b - a);
      const top = perModel.slice(0, count / 16).reduce((sum, calls) => sum + calls, 0);
      expect(top / requests.length).toBeGreaterThan(0.6);
      expect(perModel[count / 2]!).toBeLessThan(10);
    }
  });

  it('comes in bursts: its busiest minute has half as many calls again as the mean, and more', () => {
    const perMinute = new Array<number>(30).fill(0);
    for (const { arrival_ms } of drawWorkload({ models: 128, minutes: 30, seed: 1 }))
      perMinute[Math.floor(arrival_ms / 60_000)]!++;
    const mean = perMinute.reduce((sum, calls) => sum + calls, 0) / 30;
    expect(Math.max(...perMinute) / mean).toBeGreaterThan(1.4);
  });

  it('has the lengths of Azure’s conversations, within 4096 tokens', () => {
    const requests = drawWorkload({ models: 128, minutes: 30, seed: 2 });
    const mean = (pick: (request: WorkloadRequest) => number): number =>
      requests.reduce((sum, request) => sum + pick(request), 0) / requests.length;
    expect(mean(({ input_tokens }) => input_tokens)).toBeGreaterThan(830);
    expect(mean(({ input_tokens }) => input_tokens)).toBeLessThan(930);
    expect(mean(({ output_tokens }) => output_tokens)).toBeGreaterThan(205);
    expect(mean(({ output_tokens }) => output_tokens)).toBeLessThan(245);
    for (const { input_tokens, output_tokens } of requests)
      expect(input_tokens + output_tokens).toBeLessThanOrEqual(4096);
  });

  it('is the same for the same seed, another for another', () => {
    const draw = (seed: number): WorkloadRequest[] => drawWorkload({ models: 16, minutes: 5, seed });
    expect(draw(3)).toEqual(draw(3));
    expect(draw(3)).not.toEqual(draw(4));
  });
});

describe('events', () => {
  it('come by time, and by order of adding within one time', () => {
    fc.assert(
      fc.property(fc.array(fc.nat({ max: 20 })), (times) => {
        const queue = new SimulationEvents<number>();
        for (const [index, time] of times.entries()) queue.add(time, index);
        const expected = times.map((time, index) => ({ at_ms: time, event: index }));
        expected.sort((a, b) => a.at_ms - b.at_ms || a.event - b.event);
        const seen = [];
        for (let next = queue.next(); next !== undefined; next = queue.next()) seen.push(next);
        expect(seen).toEqual(expected);
      }),
    );
  });
});

describe('sharing, simulated', () => {
  const { serving, outcomes } = share(workload);
  const figures = report(outcomes, serving.counters);

  it('loses nobody: each request has its whole answer or was never begun', () => {
    expect(outcomes.length).toBe(workload.length);
    expect(figures.requests).toBeGreaterThan(600);
    for (const { request, first_token_ms, last_token_ms } of outcomes) {
      expect(first_token_ms === undefined).toBe(last_token_ms === undefined);
      if (first_token_ms === undefined) continue;
      expect(first_token_ms).toBeGreaterThan(request.arrival_ms);
      // A step of the fastest device takes 14 ms at least.
      expect(last_token_ms! - first_token_ms).toBeGreaterThanOrEqual((request.output_tokens - 1) * 12);
    }
  });

  it('is overloaded here, refuses some, and keeps its word to nearly all others, in spite of noise', () => {
    expect(figures.dropped).toBeGreaterThan(20);
    const served = figures.requests - figures.dropped;
    expect(figures.met / served).toBeGreaterThan(0.985);
  });

  it('never holds more memory than there is, and moves, evicts and preempts meanwhile', () => {
    expect(serving.held_share_max).toBeGreaterThan(0.9);
    expect(serving.held_share_max).toBeLessThanOrEqual(1);
    expect(figures.moves).toBeGreaterThan(0);
    expect(figures.loads).toBeGreaterThan(30);
  });

  it('is the same again', () => {
    const again = share(workload);
    expect(again.outcomes).toEqual(outcomes);
  });

  it('keeps more SLOs than devices that are not shared, and than a scheduler without deadlines', () => {
    const alone = new ExclusiveServing({ devices, models, keep_alive_ms: 1000, noise: 0.03, seed: 1 });
    const exclusive = report(alone.run(workload), alone.counters);
    expect(figures.met).toBeGreaterThan(1.3 * exclusive.met);
    const single = share(workload, {}, { instances_max: 1 });
    expect(figures.met).toBeGreaterThan(1.1 * report(single.outcomes, single.serving.counters).met);
    const blind = share(workload, { shadow_validation: false });
    expect(figures.met).toBeGreaterThan(1.5 * report(blind.outcomes, blind.serving.counters).met);
  });

  it('leaves GPUs free while CPUs meet the SLO', () => {
    const light = workload.filter((_, index) => index % 12 === 0);
    const used = share(light, {}, { devices: testbed({ cpus: 4, gpus: 4 }) });
    const other = share(light, {}, { devices: testbed({ cpus: 0, gpus: 4 }) });
    const [first, second] = [used, other].map((run) => report(run.outcomes, run.serving.counters).gpus_used);
    expect(first!).toBeLessThan(0.5 * second!);
  });

  it('evicts, and serves all the same, where answers outgrow what was expected', () => {
    // Short answers first, so that history promises little; then long ones, many at once.
    const flood: WorkloadRequest[] = Array.from({ length: 60 }, (_, index) => ({
      id: `r${index}`,
      model: 0,
      arrival_ms: index < 30 ? index * 2000 : 60_000 + (index - 30) * 700,
      input_tokens: 1200,
      output_tokens: index < 30 ? 10 : 900,
    }));
    const run = share(
      flood,
      { kv_tokens_min: 512, kv_watermark: 0 },
      { devices: [{ ...testbed({ cpus: 0, gpus: 1 })[0]!, pool_bytes: 34 * 2 ** 30 }] },
    );
    expect(run.serving.counters.evictions).toBeGreaterThan(0);
    const begun = run.outcomes.filter(({ first_token_ms }) => first_token_ms !== undefined);
    expect(begun.length).toBeGreaterThan(35);
    expect(run.outcomes.some(({ moves }) => moves > 0)).toBe(true);
    expect(run.serving.held_share_max).toBeLessThanOrEqual(1);
  });
});

describe('exclusive devices, simulated', () => {
  it('have one model at a time, as many as there are devices', () => {
    // Three models at once on two devices: the third is never served in time.
    const requests: WorkloadRequest[] = [0, 2, 4].map((model, index) => ({
      id: `r${index}`,
      model,
      arrival_ms: index,
      input_tokens: 100,
      output_tokens: 400,
    }));
    const serving = new ExclusiveServing({
      devices: testbed({ cpus: 0, gpus: 2 }),
      models,
      keep_alive_ms: 1000,
      noise: 0,
      seed: 1,
    });
    expect(serving.run(requests).map(({ first_token_ms }) => first_token_ms !== undefined)).toEqual([
      true,
      true,
      false,
    ]);
    expect(serving.counters.loads).toBe(2);
  });

  it('scale out at the stated concurrency: the seventh request on a CPU with 13B finds another', () => {
    const requests: WorkloadRequest[] = Array.from({ length: 7 }, (_, index) => ({
      id: `r${index}`,
      model: 0,
      arrival_ms: index,
      input_tokens: 20,
      output_tokens: 100,
    }));
    const serve = (count: number): number => {
      const serving = new ExclusiveServing({
        devices: testbed({ cpus: 4, gpus: 0 }),
        models,
        keep_alive_ms: 1000,
        noise: 0,
        seed: 1,
      });
      serving.run(requests.slice(0, count));
      return serving.counters.loads;
    };
    expect([serve(6), serve(7)]).toEqual([1, 2]);
  });
});
