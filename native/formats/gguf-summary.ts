/** The summary of a GGUF model, from the headers of its file or parts. */
import { nativeTensorTypes } from '../../spec/engine-contract.ts';
import {
  type Experts,
  type HyperParameters,
  isNativeArchitecture,
  nativeArchitectures,
} from '../../spec/hyper-parameters.ts';
import type { ModelFileSummary } from '../../spec/model-summary.ts';
import { uncomputedTensors } from './computed-tensors.ts';
import { readGgufHyperParameters } from './gguf-hyper-parameters.ts';
import { GgufMetadataReader } from './gguf-metadata-reader.ts';
import type { GgufFile, GgufTensor } from './gguf-reader.ts';
import { distributeWeights, tallyTypes } from './weight-tally.ts';

/** Throws E_MODEL_METADATA where a key that the architecture needs is absent. */
export function summarizeGguf(parts: readonly GgufFile[]): ModelFileSummary {
  const [first] = parts as [GgufFile, ...GgufFile[]];
  const tensors = parts.flatMap((part) => part.tensors);
  const { value_dim, layers, kv_lora_rank, ...hyper } = readGgufHyperParameters(first, tensors);
  const keys = new GgufMetadataReader(first);
  const of = (name: string): string => `${hyper.architecture}.${name}`;
  const elementsPerToken =
    kv_lora_rank > 0
      ? hyper.n_layer * (kv_lora_rank + keys.count(of('rope.dimension_count'), 0))
      : layers.n_head_kv.reduce((sum, count) => sum + count * (hyper.head_dim + value_dim), 0);
  const summary: UnjudgedSummary = {
    format: 'gguf',
    ...hyper,
    n_params: tensors.reduce((sum, tensor) => sum + tensor.n_elements, 0),
    n_params_active: activeParameters(tensors, hyper.experts),
    quantization: quantizationName(keys.count('general.file_type', -1), tensors),
    tensor_types: tallyTypes(tensors),
    file_bytes: parts.reduce((sum, part) => sum + part.file_bytes, 0),
    weight_bytes: tensors.reduce((sum, tensor) => sum + tensor.size_bytes, 0),
    weight_bytes_of: distributeWeights(tensors, hyper.n_layer, {
      layer: /^blk\.(\d+)\./,
      output: /^output(_norm)?\./,
    }),
    kv_bytes_per_token: 2 * elementsPerToken,
    has_chat_template: keys.has('tokenizer.chat_template'),
    has_tokenizer: keys.has('tokenizer.ggml.model') && keys.length('tokenizer.ggml.tokens') > 0,
  };
  const hindrance =
    wholeModelHindrance(summary, parts.length) ??
    mathHindrance(keys.text(of('rope.scaling.type'), 'linear'), hyper, value_dim, tensors);
  return { ...summary, supported_by_native: hindrance ?? true };
}

type UnjudgedSummary = Omit<ModelFileSummary, 'supported_by_native'>;

/** Why the native engine cannot serve such a file; undefined where it can. */
function wholeModelHindrance(summary: UnjudgedSummary, parts: number): string | undefined {
  if (!isNativeArchitecture(summary.architecture)) {
    return `the native engine computes ${nativeArchitectures.join(', ')}, not ${summary.architecture}`;
  }
  const foreign = Object.keys(summary.tensor_types).filter(
    (type) => !(nativeTensorTypes as readonly string[]).includes(type),
  );
  if (foreign.length > 0) {
    return `the native engine computes with ${nativeTensorTypes.join(', ')}; this file has ${foreign.join(', ')} too`;
  }
  if (parts > 1)
    return 'the native engine reads single files; join the parts with `llama-gguf-split --merge`';
  if (!summary.has_tokenizer) return 'the file has no tokenizer';
  if (summary.sliding_window !== undefined) return 'the native engine has no sliding-window attention';
  return undefined;
}

/** Of an architecture that is computed, the variants that are not. */
function mathHindrance(
  ropeScaling: string,
  hyper: HyperParameters,
  valueElements: number,
  tensors: readonly GgufTensor[],
): string | undefined {
  if (!['none', 'linear', 'yarn'].includes(ropeScaling)) {
    return `the native engine has no rotary scaling of the type ${ropeScaling}`;
  }
  if (hyper.head_dim !== valueElements) {
    return `the native engine needs keys and values of one size, not ${hyper.head_dim} and ${valueElements}`;
  }
  if (!tensors.some((tensor) => tensor.name === 'token_embd.weight'))
    return 'the file has no embedding matrix';
  const [uncomputed, ...others] = uncomputedTensors(tensors, hyper);
  if (uncomputed !== undefined) {
    const more = others.length === 0 ? '' : ` and ${others.length} more tensors of the file`;
    return `the native engine does not compute with ${uncomputed}${more}`;
  }
  return undefined;
}

/** Tensors of experts (`…_exps.weight`, shape [.., .., n_expert]) count by the share that a token uses. */
function activeParameters(tensors: readonly GgufTensor[], experts: Experts | undefined): number {
  return tensors.reduce((sum, { name, n_elements }) => {
    const shared = experts === undefined || !/_exps\./.test(name);
    return sum + (shared ? n_elements : (n_elements / experts.count) * experts.used_per_token);
  }, 0);
}

/** `llama_ftype` numbers (llama.h) as people write them. */
const fileTypeNames: Readonly<Record<number, string>> = {
  0: 'F32',
  1: 'F16',
  2: 'Q4_0',
  3: 'Q4_1',
  7: 'Q8_0',
  8: 'Q5_0',
  9: 'Q5_1',
  10: 'Q2_K',
  11: 'Q3_K_S',
  12: 'Q3_K_M',
  13: 'Q3_K_L',
  14: 'Q4_K_S',
  15: 'Q4_K_M',
  16: 'Q5_K_S',
  17: 'Q5_K_M',
  18: 'Q6_K',
  19: 'IQ2_XXS',
  20: 'IQ2_XS',
  21: 'Q2_K_S',
  22: 'IQ3_XS',
  23: 'IQ3_XXS',
  24: 'IQ1_S',
  25: 'IQ4_NL',
  26: 'IQ3_S',
  27: 'IQ3_M',
  28: 'IQ2_S',
  29: 'IQ2_M',
  30: 'IQ4_XS',
  31: 'IQ1_M',
  32: 'BF16',
  36: 'TQ1_0',
  37: 'TQ2_0',
  38: 'MXFP4',
};

/** The stated file type; where it is absent, the type that holds most bytes. */
function quantizationName(fileType: number, tensors: readonly GgufTensor[]): string {
  const stated = fileTypeNames[fileType];
  if (stated !== undefined) return stated;
  const types = Object.entries(tallyTypes(tensors)).sort(([, a], [, b]) => b.bytes - a.bytes);
  return types[0]?.[0] ?? 'unknown';
}
