/** What each operator of a model costs that is to be cut: from its files, its shape, and what its stages measured. */
import type { EngineSeen, PlacementModel } from '../../spec/plan.ts';
import type { DeviceSpec } from '../catalog/device-spec.ts';
import { kvBits, kvBytesPerToken } from '../catalog/kv-type.ts';
import type { ModelShape } from '../catalog/model-shape.ts';
import { type OperatorCost, withMeasuredRanges } from '../partition/operator-graph.ts';
import { predictGraph } from '../partition/predict-graph.ts';
import { calibrationFor } from '../simulator/calibration.ts';

export interface OperatorQuestion {
  model: PlacementModel;
  shape: ModelShape | undefined;
  device: DeviceSpec;
  /** As the engine is asked for it: KV may follow. */
  precision: string;
  weight_bytes: number;
  /** Sequences of one batch, and keys that each attends to. */
  rows: number;
  context_tokens: number;
  /** Of a pipeline of this model that runs, if one does. */
  seen: EngineSeen['stages'];
}

export interface StageOperators {
  operators: readonly OperatorCost[];
  /** Whence times are, for people. */
  times: string;
}

/** A layer takes so long where nothing is known of the model: all of them are alike. */
const layer_s = 1e-3;

/** @param stages layers that are assumed where no file says how many there are */
export function operatorCosts(question: OperatorQuestion, stages: number): StageOperators {
  const predicted = withFileWeights(predictedOperators(question, stages), question);
  const { seen } = question;
  if (seen === undefined) {
    const times = question.shape ? `predicted for ${question.rows} rows` : 'taken to be alike for all layers';
    return { operators: predicted, times };
  }
  const all = seen.every(({ operators_s }) => operators_s !== undefined);
  const times = all ? 'each operator measured by its stages' : 'measured by its stages';
  return { operators: withMeasuredRanges(predicted, seen), times };
}

/** How fast another device computes the model, against that of the question: 2 takes half its time. */
export function relativeSpeed(
  question: Omit<OperatorQuestion, 'seen'>,
  device: DeviceSpec,
  stages: number,
): number {
  const time_s = (of: DeviceSpec): number =>
    predictedOperators({ ...question, device: of, seen: undefined }, stages).reduce(
      (sum, { compute_s }) => sum + compute_s,
      0,
    );
  return time_s(question.device) / time_s(device);
}

function predictedOperators(question: OperatorQuestion, stages: number): OperatorCost[] {
  const { model, shape, device, precision, rows, context_tokens } = question;
  const n_layer = model.summary?.n_layer ?? stages;
  const kv_bytes_per_token = kvBytesPerToken('native', model, precision) / n_layer;
  if (shape === undefined) return alikeLayers(n_layer, question.weight_bytes, kv_bytes_per_token);
  const { operators } = predictGraph({
    shape,
    device,
    calibration: calibrationFor('native', device.family),
    rows,
    context_tokens,
    kv_bits: kvBits('native', model, precision),
  });
  return operators.map((operator) =>
    operator.kind === 'attention' ? { ...operator, kv_bytes_per_token } : operator,
  );
}

/** Each has half its weights in either of its operators; the others have none. */
function alikeLayers(n_layer: number, weight_bytes: number, kv_bytes_per_token: number): OperatorCost[] {
  const none = { compute_s: 0, weight_bytes: 0, activation_bytes: 0, kv_bytes_per_token: 0 };
  const half = { ...none, compute_s: layer_s / 2, weight_bytes: weight_bytes / n_layer / 2 };
  return [
    { ...none, kind: 'embedding' },
    ...Array.from({ length: n_layer }, (_, layer): OperatorCost[] => [
      { ...half, kind: 'attention', layer, kv_bytes_per_token },
      { ...half, kind: 'feed_forward', layer },
    ]).flat(),
    { ...none, kind: 'output' },
  ];
}

/** Bytes as the files have them; within a layer they are shared as the shape says. */
function withFileWeights(
  operators: OperatorCost[],
  { model, weight_bytes }: OperatorQuestion,
): OperatorCost[] {
  const { summary } = model;
  if (summary === undefined) return operators;
  const { embedding, layers, output } = summary.weight_bytes_of;
  const sum = operators.reduce((bytes, operator) => bytes + operator.weight_bytes, 0);
  // Headers of some folders do not say which layer has what.
  if (layers.length !== summary.n_layer)
    return operators.map((operator) => ({
      ...operator,
      weight_bytes: sum > 0 ? (operator.weight_bytes * weight_bytes) / sum : 0,
    }));
  return operators.map((operator, index): OperatorCost => {
    if (operator.kind === 'embedding') return { ...operator, weight_bytes: embedding };
    // A head without a matrix of its own is the embedding.
    if (operator.kind === 'output')
      return { ...operator, weight_bytes: output < embedding / 2 ? embedding + output : output };
    const first = operators[index - (operator.kind === 'attention' ? 0 : 1)]!;
    const second = operators[index + (operator.kind === 'attention' ? 1 : 0)]!;
    const both = first.weight_bytes + second.weight_bytes;
    const share = both > 0 ? operator.weight_bytes / both : 0.5;
    return { ...operator, weight_bytes: share * layers[operator.layer!]! };
  });
}
