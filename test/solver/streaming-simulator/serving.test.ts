import { describe, expect, it } from 'vitest';
import { findModel } from '../../../solver/catalog/known-models.ts';
import { streamedModel } from '../../../solver/streaming/model-products.ts';
import { drawCatalogue, longTail } from '../../../solver/streaming-simulator/catalogue.ts';
import { gh200Machine } from '../../../solver/streaming-simulator/machine.ts';
import { streamingFigures } from '../../../solver/streaming-simulator/outcome.ts';
import { type StreamingPolicy, serveStreaming } from '../../../solver/streaming-simulator/serving.ts';

const machine = gh200Machine(['4g.48gb', '3g.48gb']);
const models = ['llama-3.1-8b', 'qwen3-30b-a3b'].map((name) =>
  streamedModel(findModel(name), machine.slices[0]!.device),
);
const slo = { ttft_ms: 2000, tpot_ms: 200 };
const policy: StreamingPolicy = {
  name: 'everything',
  placement: true,
  chunk_control: true,
  kernels: 'chosen',
  keep_tensors: true,
};
const nothing_stays = { ...policy, keep_tensors: false };
const alone = [{ model: 0, arrival_ms: 0, input_tokens: 512, output_tokens: 11 }];

describe('streamed models on slices', () => {
  it('take what their weights take over the link, by hand', () => {
    const whole = gh200Machine(['7g.96gb']);
    const outcome = serveStreaming(alone, { machine: whole, models, policy: nothing_stays, slo });
    const [sequence] = outcome.sequences;
    // 15.0 GB at 85 % of 450 GB/s, for the prompt and for each of ten tokens.
    const pass_ms = (1000 * models[0]!.dense_bytes) / (0.85 * 450e9);
    expect(sequence!.first_ms).toBeGreaterThan(0.99 * pass_ms);
    expect(sequence!.first_ms).toBeLessThan(1.5 * pass_ms);
    expect((sequence!.done_ms - sequence!.first_ms) / 10).toBeCloseTo(pass_ms, 0);
    expect(outcome.iterations).toBe(11);
  });

  it('are slower while a neighbour reads over the same link, and not on a link of their own', () => {
    const both = [...alone, { ...alone[0]!, model: 1, input_tokens: 64 }];
    const served = (chips: number): number =>
      serveStreaming(both, {
        machine: gh200Machine(chips === 1 ? ['4g.48gb', '3g.48gb'] : ['4g.48gb'], chips),
        models,
        policy: { ...nothing_stays, placement: false },
        slo,
      }).sequences[0]!.done_ms;
    expect(served(1)).toBeGreaterThan(1.15 * served(2));
  });

  it('all end, whatever is asked, and what stays spares the link', () => {
    const rates = longTail(2, 0.2, 1);
    const requests = drawCatalogue({
      models: rates.map((requests_per_s, model) => ({ model, requests_per_s })),
      seconds: 120,
      arrival_cv: 2,
      input: { kind: 'lognormal', mean: 512, cv: 1, max: 4096 },
      output: { kind: 'lognormal', mean: 64, cv: 1, max: 512 },
      seed: 3,
    });
    const run = (own: StreamingPolicy) => serveStreaming(requests, { machine, models, policy: own, slo });
    const [kept, streamed] = [run(policy), run(nothing_stays)];
    for (const { sequences } of [kept, streamed])
      for (const { generated, output_tokens, done_ms, first_ms } of sequences) {
        expect(generated).toBe(output_tokens);
        expect(done_ms).toBeGreaterThanOrEqual(first_ms);
      }
    expect(kept.link_bytes).toBeLessThan(0.8 * streamed.link_bytes);
    expect(streamingFigures(kept, slo).attainment).toBeGreaterThan(
      streamingFigures(streamed, slo).attainment - 0.01,
    );
    expect(run(policy)).toEqual(kept);
  });

  it('are asked at the rates that are asked for, along a pattern', () => {
    const requests = drawCatalogue({
      models: [{ model: 0, requests_per_s: 2 }],
      seconds: 1000,
      arrival_cv: 1,
      input: { kind: 'fixed', tokens: 1 },
      output: { kind: 'fixed', tokens: 1 },
      seed: 1,
      pattern: (at_s) => (at_s < 500 ? 1.5 : 0.5),
    });
    const early = requests.filter(({ arrival_ms }) => arrival_ms < 500_000).length;
    expect(requests.length).toBeGreaterThan(1800);
    expect(requests.length).toBeLessThan(2200);
    expect(early / requests.length).toBeCloseTo(0.75, 1);
  });
});
