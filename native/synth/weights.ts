/**
 * Random weights that behave: activations keep their size from layer to layer, attention looks at few
 * positions rather than at the mean of all, and logits have a spread of about 3, so that greedy decoding
 * gives varied text and its best token leads clearly. Rows are independent (see random.ts).
 */
import { type GgmlTypeTraits, ggmlRowBytes, ggmlTypeByName } from '../formats/ggml-types.ts';
import { rowEncoders, type SynthTensorType } from './quantize.ts';
import { hashText, RandomStream } from './random.ts';
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
/** Of queries and keys: scores then spread by its square, and softmax looks at few positions. */
const attention_gain = 1.5;
/** Makes up for SiLU·up and for averaging values, each of which shrinks its input to about 0.6. */
const residual_gain = 1.7;
/** Rows of special tokens are this much smaller, so that greedy answers rarely end by chance. */
const quiet_factor = 0.25;

export function fillOf(plan: TensorPlan, shape: SynthShape, first_special: number): Fill {
  const fanIn = plan.shape[0]!;
  const normal = (mean: number, deviation: number, quiet_from_row = Number.MAX_SAFE_INTEGER): Fill => ({
    kind: 'normal',
    mean,
    deviation,
    quiet_from_row,
  });
  switch (plan.role) {
    case 'embedding':
      return shape.tied_embeddings
        ? normal(0, logit_deviation / Math.sqrt(fanIn), first_special)
        : normal(0, 0.5);
    case 'output':
      return normal(0, logit_deviation / Math.sqrt(fanIn), first_special);
    case 'norm':
    case 'head_norm':
      return normal(1, 0.1);
    case 'bias':
      return normal(0, 0.2);
    case 'query':
    case 'key':
      return normal(0, attention_gain / Math.sqrt(fanIn));
    case 'value':
    case 'gate':
    case 'up':
      return normal(0, 1 / Math.sqrt(fanIn));
    case 'router':
      return normal(0, 2 / Math.sqrt(fanIn));
    case 'attention_output':
    case 'down':
      return normal(0, residual_gain / Math.sqrt(fanIn));
    case 'rope_factors':
      return {
        kind: 'values',
        values: ropeFactors(shape.head_dim, shape.rope_freq_base, shape.rope_scaling!),
      };
  }
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
  const rowBytes = ggmlRowBytes(traits, task.row_elements);
  const encode = rowEncoders[task.type];
  const row = new Float32Array(task.row_elements);
  const key = hashText(task.name);
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
