import type { HyperParameters } from '../../spec/hyper-parameters.ts';
import type { GgufTensor } from './gguf-reader.ts';

const ofModel: ReadonlySet<string> = new Set([
  ...['token_embd.weight', 'output_norm.weight', 'output.weight', 'rope_freqs.weight'],
]);

const ofAttention = [
  ...['attn_norm.weight', 'attn_q.weight', 'attn_k.weight', 'attn_v.weight', 'attn_output.weight'],
  ...['attn_q.bias', 'attn_k.bias', 'attn_v.bias', 'attn_q_norm.weight', 'attn_k_norm.weight'],
];

const ofDense = ['ffn_norm.weight', 'ffn_gate.weight', 'ffn_up.weight', 'ffn_down.weight'];

const ofExperts = [
  ...['ffn_norm.weight', 'ffn_gate_inp.weight'],
  ...['ffn_gate_exps.weight', 'ffn_up_exps.weight', 'ffn_down_exps.weight'],
];

/**
 * Tensors that change nothing of an answer: frequencies of the rotary embedding as old converters stored them, which
 * follow from the metadata, and the head of a reranker, which stands beside that of the model.
 */
const withoutEffect = /^(blk\.\d+\.attn_rot_embd|cls(\.output)?)\.(weight|bias)$/;

/**
 * Tensors of a file that the native engine does not compute with, such as biases where its architectures have none. A
 * model without them says something else than it was trained to, so nobody may serve it here. libllama refuses files
 * with tensors that it does not take, too.
 */
export function uncomputedTensors(
  tensors: readonly GgufTensor[],
  { n_layer, experts }: Pick<HyperParameters, 'n_layer' | 'experts'>,
): string[] {
  const ofLayer = new Set([...ofAttention, ...(experts === undefined ? ofDense : ofExperts)]);
  const isComputed = (name: string): boolean => {
    const [, layer, part] = /^blk\.(\d+)\.(.+)$/.exec(name) ?? [];
    return part === undefined ? ofModel.has(name) : Number(layer) < n_layer && ofLayer.has(part);
  };
  return tensors.map(({ name }) => name).filter((name) => !isComputed(name) && !withoutEffect.test(name));
}
