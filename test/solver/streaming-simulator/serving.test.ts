import { describe, expect, it } from 'vitest';
import { findModel } from '../../../solver/catalog/known-models.ts';
import { streamedModel } from '../../../solver/streaming/model-products.ts';
import {
  type CatalogueRequest,
  drawCatalogue,
  longTail,
} from '../../../solver/streaming-simulator/catalogue.ts';
import { gh200Machine } from '../../../solver/streaming-simulator/machine.ts';
import { streamingFigures } from '../../../solver/streaming-simulator/outcome.ts';
import {
  type StreamingOutcome,
  type StreamingPolicy,
  serveStreaming,
} from '../../../solver/streaming-simulator/serving.ts';

const machine = gh200Machine(['4g.48gb', '3g.48gb']);
const models = ['llama-3.1-8b', 'qwen3-30b-a3b'].map((name) =>
  streamedModel(findModel(name), machine.slices[0]!.device),
);
const slo = { ttft_ms: 2000, tpot_ms: 200 };
const policy: StreamingPolicy = {
  name: 'everything',
  placement: 'budgets',
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
        policy: { ...nothing_stays, placement: 'fewest' },
        slo,
      }).sequences[0]!.done_ms;
    expect(served(1)).toBeGreaterThan(1.15 * served(2));
  });

  describe('beside a long prompt of another slice', () => {
    const two = gh200Machine(['3g.48gb', '3g.48gb']);
    const prompt = { model: 0, arrival_ms: 0, input_tokens: 16_384, output_tokens: 1 };
    const tokens = { model: 0, arrival_ms: 1, input_tokens: 16, output_tokens: 20 };
    const run = (kernels: StreamingPolicy['kernels'], own = two, requests = [prompt, tokens]) => {
      const served: StreamingPolicy = { ...nothing_stays, placement: 'fewest', kernels };
      const outcome = serveStreaming(requests, { machine: own, models, policy: served, slo });
      const { first_ms, done_ms } = outcome.sequences.at(-1)!;
      const prompt_ms = outcome.sequences[0]!.done_ms;
      return { token_ms: (done_ms - first_ms) / 19, prompt_ms, link_bytes: outcome.link_bytes };
    };
    const alone_ms = run('chosen', two, [tokens]).token_ms;
    // Weights are read once for each 256 rows of a prompt.
    const starving = run({ alpha: 0, tile_rows: 256 });

    it('tokens starve where its products read weights again, and the choice of α gives way', () => {
      expect(starving.token_ms).toBeGreaterThan(1.6 * alone_ms);
      const chosen = run('chosen');
      expect(chosen.token_ms).toBeLessThan(0.75 * starving.token_ms);
      expect(chosen.link_bytes).toBeLessThan(0.5 * starving.link_bytes);
      // It gives nothing up for it.
      expect(chosen.prompt_ms).toBeLessThan(starving.prompt_ms);
    });

    it('it gives way further where a plan has given the neighbour its share', () => {
      const shared = { ...two, slices: two.slices.map((slice) => ({ ...slice, link_share: 0.25 })) };
      const [own, counted] = [run('chosen'), run('chosen', shared)];
      expect(counted.token_ms).toBeLessThan(own.token_ms);
      expect(counted.link_bytes).toBeLessThan(own.link_bytes);
    });

    it('a link that is slower than it was said to be is noticed, and weights are no longer read again', () => {
      const slow = {
        ...two,
        links: new Map([...two.links].map(([name, link]) => [name, { ...link, bytes_per_s: 60e9 }])),
      };
      const [told, noticed] = [run('chosen', two, [prompt]), run('chosen', slow, [prompt])];
      // Each of eight chunks needs all weights once.
      const once_bytes = 8 * models[0]!.dense_bytes;
      expect(told.link_bytes).toBeGreaterThan(1.1 * once_bytes);
      expect(noticed.link_bytes).toBeLessThan(1.02 * once_bytes);
      expect(noticed.prompt_ms).toBeLessThan((1000 * 1.05 * once_bytes) / 60e9);
    });
  });

  describe('where several slices could have a request', () => {
    const two = gh200Machine(['3g.48gb', '3g.48gb'], 2);
    const served = (placement: StreamingPolicy['placement'], requests: readonly CatalogueRequest[]) =>
      serveStreaming(requests, { machine: two, models, policy: { ...nothing_stays, placement }, slo });
    // Steps of the first take most of a slice's time, and one more of its link.
    const first = { model: 0, arrival_ms: 60_000, input_tokens: 16, output_tokens: 400 };
    const second = { ...first, model: 1, arrival_ms: 60_100, output_tokens: 100 };
    const over = { model: 0, arrival_ms: 0, input_tokens: 1, output_tokens: 1 };
    const pace = ({ sequences }: StreamingOutcome, at: number): number =>
      (sequences[at]!.done_ms - sequences[at]!.first_ms) / (sequences[at]!.output_tokens - 1);

    it('it goes to a link that nobody reads over, and each has all of its own', () => {
      const alone_ms = pace(served('budgets', [second]), 0);
      // What came before draws lots between equal places: none of them leads to a neighbour of the first.
      const besideFirst = (placement: StreamingPolicy['placement']): number[] =>
        [0, 1, 2, 3, 4, 5].map((count) => {
          const before = Array.from({ length: count }, () => over);
          return pace(served(placement, [...before, first, second]), count + 1) / alone_ms;
        });
      for (const slower of besideFirst('budgets')) expect(slower).toBeCloseTo(1, 6);
      expect(Math.max(...besideFirst('time'))).toBeGreaterThan(1.2);
    });

    it('it joins the batch of its model, whose weights cross once for both', () => {
      const joined = served('budgets', [first, { ...second, model: 0 }]);
      const alone = served('budgets', [first]);
      const prompt_bytes = models[0]!.dense_bytes;
      expect(joined.link_bytes).toBeLessThan(alone.link_bytes + 1.1 * prompt_bytes);
    });
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
