/**
 * Random weights that behave: activations keep their size from layer to layer, attention looks at few
 * positions rather than at the mean of all, and logits have a spread of about 3, so that greedy decoding
 * gives varied text and its best token leads clearly. Rows are independent (see random.ts).
 */
import { type GgmlTypeTraits, ggmlRow_bytes, ggmlTypeByName } from '../formats/ggml-types.ts';
import { rowEncoders, type SynthTensorType } from './quantize.ts';
import { fnv1a32, RandomStream } from './random.ts';
import type { RopeScaling, SynthShape, TensorPlan } from './shape.ts';

/** A tensor as a worker needs it; plain data, so that it can be sent to a thread. */
export interface WeightTask {
  name: string;
  type: SynthTensorType;
  row_elements: number;
  rows: number;
  offset_bytes: number;
  fill: Fill;
}

/** How the values of a tensor come about. */
export type Fill =
  | { kind: 'normal'; mean: number; deviation: number; quiet_from_row: number }
  | { kind: 'values'; values: number[] };

/** Standard deviation of the logits over the vocabulary. */
const logit_deviation = 3;
/** Of the embedding, as trained models have it. */
const embedding_deviation = 0.02;
/**
 * How much larger the residual stream is at the end than at the start. A tied output matrix gives the last
 * token's own logit a lead of logit_deviation · √n_embd / growth: too small, and greedy text repeats one word.
 */
const residual_growth = 50;
/** Of queries and keys: scores then spread by its square, and softmax looks at few positions. */
const attention_gain = 1.8;
/**
 * Of the variance that a layer adds. Higher: context weighs more; from about a quarter on, averaging over positions
 * makes them all alike in deep models (rank collapse, Dong et al., 2021, arXiv:2103.03404), and text repeats.
 */
const attention_share = 0.1;
/** SiLU·up, and averaging values, shrink an input of size one to about 0.6. */
const block_shrink = 0.6;
/** Rows of special tokens are this much smaller, so that greedy answers rarely end by chance. */
const quiet_factor = 0.25;

export function fillOf(plan: TensorPlan, shape: SynthShape, first_special: number): Fill {
  const perInput = 1 / Math.sqrt(plan.shape[0]!);
  const logitScale = logit_deviation / Math.sqrt(shape.n_embd);
  switch (plan.role) {
    case 'embedding':
      return normal(0, embedding_deviation, shape.tied_embeddings ? first_special : undefined);
    case 'output':
      return normal(0, logitScale, first_special);
    case 'output_norm': {
      const mean = shape.tied_embeddings ? logitScale / embedding_deviation : 1;
      return normal(mean, mean / 10);
    }
    case 'norm':
      return normal(1, 0.1);
    case 'head_norm':
      return normal(attention_gain, 0.1);
    case 'bias':
      return normal(0, 0.2);
    case 'query':
    case 'key':
      return normal(0, attention_gain * perInput);
    case 'value':
    case 'gate':
    case 'up':
      return normal(0, perInput);
    case 'router':
      return normal(0, 2 * perInput);
    case 'attention_output':
      return normal(0, (residualSteps(plan.layer!, shape.n_layer).attention / block_shrink) * perInput);
    case 'down':
      return normal(0, (residualSteps(plan.layer!, shape.n_layer).feed_forward / block_shrink) * perInput);
    case 'rope_factors':
      return {
        kind: 'values',
        values: ropeFactors(shape.head_dim, shape.rope_freq_base, shape.rope_scaling!),
      };
  }
}

function normal(mean: number, deviation: number, quiet_from_row = Number.MAX_SAFE_INTEGER): Fill {
  return { kind: 'normal', mean, deviation, quiet_from_row };
}

/**
 * Sizes of what a layer adds to the residual stream, which grows by the same factor in each.
 */
function residualSteps(layer: number, layers: number): { attention: number; feed_forward: number } {
  const factor = residual_growth ** (1 / layers);
  const before = embedding_deviation * factor ** layer;
  const added = factor ** 2 - 1;
  const attention = added * attention_share;
  return { attention: before * Math.sqrt(attention), feed_forward: before * Math.sqrt(added - attention) };
}

/** Computes rows [begin, end) of a tensor in its storage type, as bytes, into `out`. Returns the byte count. */
export function encodeRows(
  task: WeightTask,
  seed: number,
  begin: number,
  end: number,
  out: Uint8Array,
): number {
  const traits: GgmlTypeTraits = ggmlTypeByName(task.type);
  const rowBytes = ggmlRow_bytes(traits, task.row_elements);
  const encode = rowEncoders[task.type];
  const row = new Float32Array(task.row_elements);
  const key = fnv1a32(task.name);
  const random = new RandomStream(seed, key, begin);
  for (let index = begin; index < end; index++) {
    if (task.fill.kind === 'values') {
      row.set(task.fill.values);
    } else {
      random.restart(seed, key, index);
      const { mean, deviation, quiet_from_row } = task.fill;
      random.fillNormal(row, mean, index >= quiet_from_row ? deviation * quiet_factor : deviation);
    }
    encode(row, out, (index - begin) * rowBytes);
  }
  return (end - begin) * rowBytes;
}

/**
 * Divisors of the rotary frequencies as Llama 3.1 defines them and converters store them: long waves are
 * slowed down by `factor`, short ones are left, those between are interpolated. Shape [head_dim / 2].
 */
function ropeFactors(head_dim: number, base: number, scaling: RopeScaling): number[] {
  const longest = scaling.original_context / scaling.low_freq_factor;
  const shortest = scaling.original_context / scaling.high_freq_factor;
  return Array.from({ length: head_dim / 2 }, (_, index) => {
    const wavelength = 2 * Math.PI * base ** ((2 * index) / head_dim);
    if (wavelength < shortest) return 1;
    if (wavelength > longest) return scaling.factor;
    const smooth =
      (scaling.original_context / wavelength - scaling.low_freq_factor) /
      (scaling.high_freq_factor - scaling.low_freq_factor);
    return 1 / ((1 - smooth) / scaling.factor + smooth);
  });
}
