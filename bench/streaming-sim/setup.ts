/**
 * C2CServe's set-up as far as its abstract, captions and review tell it: GH200, MIG, four models, bursts. What they do
 * not tell is stated here: lengths of requests, service level, and which slices there are.
 */
import { findModel } from '../../solver/catalog/known-models.ts';
import { type StreamedModel, streamedModel } from '../../solver/streaming/model-products.ts';
import { type CatalogueRequest, drawCatalogue } from '../../solver/streaming-simulator/catalogue.ts';
import { gh200Machine, type StreamingMachine } from '../../solver/streaming-simulator/machine.ts';
import { type StreamingFigures, streamingFigures } from '../../solver/streaming-simulator/outcome.ts';
import { type StreamingPolicy, serveStreaming } from '../../solver/streaming-simulator/serving.ts';

export const slo = { ttft_ms: 2000, tpot_ms: 200 } as const;
export const lengths = {
  input: { kind: 'lognormal', mean: 512, cv: 1, max: 4096 },
  output: { kind: 'lognormal', mean: 128, cv: 1, max: 1024 },
} as const;
export const arrival_cv = 2;

/** Slices of each superchip. */
export const layouts: Readonly<Record<string, { slices: readonly string[]; chips: number }>> = {
  'the whole GPU': { slices: ['7g.96gb'], chips: 1 },
  'two slices (4g + 3g)': { slices: ['4g.48gb', '3g.48gb'], chips: 1 },
  'four slices (3g + 2g + 2 × 1g)': { slices: ['3g.48gb', '2g.24gb', '1g.12gb', '1g.12gb'], chips: 1 },
  'seven slices (1g)': { slices: Array.from({ length: 7 }, () => '1g.12gb'), chips: 1 },
  'three slices (3g + 2 × 2g) of each of two superchips': {
    slices: ['2g.24gb', '2g.24gb', '3g.48gb'],
    chips: 2,
  },
};

export function machineOf(layout: string): StreamingMachine {
  const { slices, chips } = layouts[layout]!;
  return gh200Machine(slices, chips);
}

/** In BF16, as their authors publish them. */
export const paperModels: readonly StreamedModel[] = [
  'llama-3.2-3b',
  'llama-3.1-8b',
  'mixtral-8x7b',
  'qwen3-30b-a3b',
].map((name) => streamedModel(findModel(name), gh200Machine(['7g.96gb']).slices[0]!.device));

/** One access pattern for all shapes: no partial sums through device memory, 64 rows a tile. */
const fixed = { alpha: 0, tile_rows: 64 } as const;
const everything: StreamingPolicy = {
  name: 'everything',
  placement: 'budgets',
  chunk_control: true,
  kernels: 'chosen',
  keep_tensors: true,
};

export const policies: readonly StreamingPolicy[] = [
  everything,
  { ...everything, name: 'without placement', placement: 'fewest' },
  { ...everything, name: 'placement without links', placement: 'time' },
  { ...everything, name: 'placement by batches', placement: 'batches' },
  { ...everything, name: 'without chunk control', chunk_control: false },
  { ...everything, name: 'without kernel choice', kernels: fixed },
  { ...everything, name: 'nothing stays on slices', keep_tensors: false },
  { ...everything, name: 'kernel choice alone', placement: 'fewest', chunk_control: false },
  { ...everything, name: 'none of the three', placement: 'fewest', chunk_control: false, kernels: fixed },
];

export function drawBursts(requests_per_s: number, seconds: number, seed: number): CatalogueRequest[] {
  return drawCatalogue({
    models: paperModels.map((_, model) => ({ model, requests_per_s: requests_per_s / paperModels.length })),
    seconds,
    arrival_cv,
    ...lengths,
    seed,
  });
}

export function figuresFor(
  requests: readonly CatalogueRequest[],
  machine: StreamingMachine,
  policy: StreamingPolicy,
  models = paperModels,
): StreamingFigures {
  return streamingFigures(serveStreaming(requests, { machine, models, policy, slo }), slo);
}
