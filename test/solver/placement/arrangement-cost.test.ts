/** What stands and what is proposed are weighed by one measure, the one that plans are made by. */
import { describe, expect, it } from 'vitest';
import { arrangementCost } from '../../../solver/placement/arrangement-cost.ts';
import { place } from '../../../solver/placement/placement.ts';
import type { RunningReplicas } from '../../../spec/plan.ts';
import { ask, gguf, gpus, llama } from './support.ts';

const kinds = [gpus('A100-40GB', 40, 2, { count: 2 }), gpus('H100', 80, 2, { count: 2 })];
const model = (replicas: number | 'auto', rate_per_s: number) =>
  llama('m', '8b', {
    replicas,
    max_sequences: 16,
    workload: { rate_per_s, input_tokens: 500, output_tokens: 200 },
  });
const runningOf = (plan: ReturnType<typeof place>): RunningReplicas[] =>
  plan.launches.flatMap(({ node_kind, units }) =>
    units.map((unit) => ({ model: 'm', node_kind, replicas: 1, device_count: unit.device_count })),
  );

describe('the cost of what stands', () => {
  it('is least for the plan itself, by whatever objective', () => {
    for (const objective of ['slo', 'latency', 'gpu-hours'] as const) {
      const question = ask([model(2, 2)], kinds, { objective });
      const plan = place(question);
      const best = arrangementCost(question, plan.launches)!;
      for (const only of kinds) {
        const other = place({ ...question, node_kinds: [only] });
        expect(arrangementCost(question, other.launches)!).toBeGreaterThanOrEqual(best - 1e-6);
      }
    }
  });

  it('grows with moves, so that what runs stays where the gain is small', () => {
    const question = ask([model(2, 2)], kinds);
    const { launches } = place(question);
    const elsewhere = place({
      ...question,
      node_kinds: kinds.filter(({ node_kind }) => node_kind !== launches[0]!.node_kind),
    });
    const running = runningOf(elsewhere);
    const asIfNew = arrangementCost(question, launches)!;
    expect(arrangementCost({ ...question, running }, launches)!).toBeGreaterThan(asIfNew);
    expect(arrangementCost({ ...question, running }, elsewhere.launches)).toBeCloseTo(
      arrangementCost(question, elsewhere.launches)!,
      6,
    );
  });

  it('tells that two replicas are too few for what is asked now, and that more are worth their devices', () => {
    const few = place(ask([model('auto', 1)], kinds));
    const busy = ask([model('auto', 60)], kinds, { running: runningOf(few) });
    const more = place(busy);
    expect(more.launches.length).toBeGreaterThan(few.launches.length);
    expect(arrangementCost(busy, few.launches)!).toBeGreaterThan(1.1 * arrangementCost(busy, more.launches)!);
  });

  it('counts each replica with its weights where they lie', () => {
    const on = gpus('A100-80GB', 80, 2, { engines: { native: { available: true } }, count: 1 });
    const asked = (weights: string) =>
      gguf('m', '8b', {
        replicas: 2,
        weights,
        max_sequences: 1,
        workload: { rate_per_s: 0.2, input_tokens: 100, output_tokens: 100 },
      });
    const [lying, streamed] = ['resident', 'streamed'].map(
      (weights) => place(ask([asked(weights)], [on])).launches,
    );
    const question = ask([asked('auto')], [on], { objective: 'latency' });
    const mixed = [lying![0]!, streamed![0]!];
    const [all, some, none] = [lying!, mixed, streamed!].map(
      (launches) => arrangementCost(question, launches)!,
    );
    expect(some).toBeGreaterThan(all!);
    expect(some).toBeLessThan(none!);
    expect(arrangementCost(question, mixed.toReversed())).toBeCloseTo(some!, 9);
  });

  it('is none where a replica is missing, or stands where none may any more', () => {
    const question = ask([model(2, 2)], kinds);
    const { launches } = place(question);
    expect(arrangementCost(question, [])).toBeUndefined();
    expect(arrangementCost({ ...question, models: [model(5, 2)] }, launches)).toBeUndefined();
    const gone = kinds.filter(({ node_kind }) => node_kind !== launches[0]!.node_kind);
    expect(arrangementCost({ ...question, node_kinds: gone }, launches)).toBeUndefined();
  });
});
