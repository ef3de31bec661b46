/** The summary of a GGUF model, from the headers of its file or parts. */
import { basename } from 'node:path';
import { nativeTensorTypes } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type ModelFileSummary, nativeArchitectures } from '../../spec/model-summary.ts';
import type { GgufFile, GgufTensor } from './gguf-reader.ts';
import { distributeWeights, tallyTypes } from './weight-tally.ts';

/** The deepest models have some hundred layers; a damaged count must not take memory. */
const layers_max = 65_536;

/** Throws E_MODEL_METADATA where a key that the architecture needs is absent. */
export function summarizeGguf(parts: readonly GgufFile[]): ModelFileSummary {
  const keys = new KeyReader(parts[0]!);
  const tensors = parts.flatMap((part) => part.tensors);
  const architecture = keys.text('general.architecture');
  const of = (name: string): string => `${architecture}.${name}`;
  const n_layer = keys.number(of('block_count'), undefined, layers_max);
  const n_embd = keys.number(of('embedding_length'));
  const heads = keys.perLayer(of('attention.head_count'), n_layer);
  const n_head = Math.max(...heads);
  const headsKv = keys.has(of('attention.head_count_kv'))
    ? keys.perLayer(of('attention.head_count_kv'), n_layer)
    : heads;
  const head_dim = keys.number(of('attention.key_length'), Math.floor(n_embd / Math.max(1, n_head)));
  const value_dim = keys.number(of('attention.value_length'), head_dim);
  const latent = keys.number(of('attention.kv_lora_rank'), 0);
  const elementsPerToken =
    latent > 0
      ? n_layer * (latent + keys.number(of('rope.dimension_count'), 0))
      : headsKv.reduce((sum, count) => sum + count * (head_dim + value_dim), 0);
  const n_expert = keys.number(of('expert_count'), 0);
  const used = keys.number(of('expert_used_count'), 0);
  const n_ff = Math.max(...keys.perLayer(of('feed_forward_length'), n_layer, 0));
  const sliding_window = keys.number(of('attention.sliding_window'), 0);
  const n_params = tensors.reduce((sum, tensor) => sum + tensor.n_elements, 0);
  const has_tokenizer = keys.has('tokenizer.ggml.model') && keys.length('tokenizer.ggml.tokens') > 0;
  const summary: UnjudgedSummary = {
    format: 'gguf',
    architecture,
    name: keys.text('general.name', basename(parts[0]!.path, '.gguf')),
    n_params,
    n_params_active: activeParameters(tensors, n_expert, used),
    n_layer,
    n_embd,
    n_head,
    n_head_kv: Math.max(...headsKv),
    head_dim,
    n_ff,
    n_vocab: vocabularySize(keys, tensors, architecture),
    n_ctx_train: keys.number(of('context_length')),
    ...(n_expert > 0
      ? {
          experts: {
            count: n_expert,
            used_per_token: used,
            n_ff: keys.number(of('expert_feed_forward_length'), n_ff),
          },
        }
      : {}),
    ...(sliding_window > 0 ? { sliding_window } : {}),
    tied_embeddings: !tensors.some((tensor) => tensor.name === 'output.weight'),
    quantization: quantizationName(keys.number('general.file_type', -1), tensors),
    tensor_types: tallyTypes(tensors),
    file_bytes: parts.reduce((sum, part) => sum + part.file_bytes, 0),
    weight_bytes: tensors.reduce((sum, tensor) => sum + tensor.size_bytes, 0),
    weight_bytes_of: distributeWeights(tensors, n_layer, {
      layer: /^blk\.(\d+)\./,
      output: /^output(_norm)?\./,
    }),
    kv_bytes_per_token: 2 * elementsPerToken,
    has_chat_template: keys.has('tokenizer.chat_template'),
    has_tokenizer,
  };
  const hindrance =
    wholeModelHindrance(summary, parts.length) ??
    mathHindrance(keys.text(of('rope.scaling.type'), 'none'), head_dim, value_dim, tensors);
  return { ...summary, supported_by_native: hindrance ?? true };
}

type UnjudgedSummary = Omit<ModelFileSummary, 'supported_by_native'>;

/** Why the native engine cannot serve such a file; undefined where it can. */
function wholeModelHindrance(summary: UnjudgedSummary, parts: number): string | undefined {
  if (!(nativeArchitectures as readonly string[]).includes(summary.architecture)) {
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
  keyElements: number,
  valueElements: number,
  tensors: readonly GgufTensor[],
): string | undefined {
  if (!['none', 'linear', 'yarn'].includes(ropeScaling)) {
    return `the native engine has no rotary scaling of the type ${ropeScaling}`;
  }
  if (keyElements !== valueElements) {
    return `the native engine needs keys and values of one size, not ${keyElements} and ${valueElements}`;
  }
  if (!tensors.some((tensor) => tensor.name === 'token_embd.weight'))
    return 'the file has no embedding matrix';
  return undefined;
}

/** Tensors of experts (`…_exps.weight`, shape [.., .., n_expert]) count by the share that a token uses. */
function activeParameters(tensors: readonly GgufTensor[], n_expert: number, used: number): number {
  return tensors.reduce((sum, tensor) => {
    const ofExperts = n_expert > 0 && /_exps\./.test(tensor.name);
    return sum + (ofExperts ? (tensor.n_elements / n_expert) * used : tensor.n_elements);
  }, 0);
}

function vocabularySize(keys: KeyReader, tensors: readonly GgufTensor[], architecture: string): number {
  const listed = keys.length('tokenizer.ggml.tokens');
  if (listed > 0) return listed;
  const embedding = tensors.find((tensor) => tensor.name === 'token_embd.weight');
  return embedding?.shape[1] ?? keys.number(`${architecture}.vocab_size`, 0);
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

/** Metadata with typed access; what is absent and has no default is an error that names the key. */
class KeyReader {
  readonly #file: GgufFile;

  constructor(file: GgufFile) {
    this.#file = file;
  }

  has(key: string): boolean {
    return this.#file.metadata.has(key);
  }

  length(key: string): number {
    const entry = this.#file.metadata.get(key);
    return entry?.type === 'array' ? entry.length : 0;
  }

  text(key: string, absent?: string): string {
    const entry = this.#file.metadata.get(key);
    if (entry === undefined && absent !== undefined) return absent;
    if (entry?.type !== 'string') throw this.#wrong(key, 'a string');
    return String(entry.value);
  }

  /** A non-negative integer. */
  number(key: string, absent?: number, most = Number.MAX_SAFE_INTEGER): number {
    const entry = this.#file.metadata.get(key);
    if (entry === undefined && absent !== undefined) return absent;
    const value = entry === undefined || entry.type === 'array' ? undefined : entry.value;
    if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 0 || value > most) {
      throw this.#wrong(
        key,
        most < Number.MAX_SAFE_INTEGER ? `a whole number up to ${most}` : 'a whole number',
      );
    }
    return value;
  }

  /** One number for all layers, or an array of one a layer. */
  perLayer(key: string, layers: number, absent?: number): number[] {
    const entry = this.#file.metadata.get(key);
    if (entry?.type !== 'array') return new Array<number>(layers).fill(this.number(key, absent));
    if (entry.length !== layers || entry.values?.some((value) => typeof value !== 'number')) {
      throw this.#wrong(key, `a number, or an array of ${layers} numbers`);
    }
    return (entry.values ?? []).map(Number);
  }

  #wrong(key: string, expected: string): HpcserveError {
    return new HpcserveError('E_MODEL_METADATA', {
      what: `${this.#file.path} does not describe its model`,
      because: `the key "${key}" is ${this.has(key) ? 'not' : 'absent; it must be'} ${expected}`,
      details: { path: this.#file.path, key },
    });
  }
}
