/**
 * The reader of hyper-parameters from a GGUF header. Keys follow the GGUF specification
 * (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
 */
import { basename } from 'node:path';
import type { HyperParameters } from '../../spec/hyper-parameters.ts';
import { GgufMetadataReader } from './gguf-metadata-reader.ts';
import type { GgufFile, GgufTensor } from './gguf-reader.ts';

/** The deepest models have some hundred layers; a damaged count must not take memory. */
const layers_max = 65_536;

export interface GgufHyperParameters extends HyperParameters {
  /** Elements of a value head. */
  value_dim: number;
  /** Heads of queries, heads of keys and values, and feed-forward width of every layer. */
  layers: { n_head: number[]; n_head_kv: number[]; n_ff: number[] };
  /** Rank of the latent vector that latent attention (DeepSeek) keeps instead of keys and values; 0 elsewhere. */
  kv_lora_rank: number;
}

/**
 * @param tensors of all parts of the model
 * @throws HpcserveError E_MODEL_METADATA where a key that the architecture needs is absent or of another type
 */
export function readGgufHyperParameters(
  file: GgufFile,
  tensors: readonly GgufTensor[] = file.tensors,
): GgufHyperParameters {
  const keys = new GgufMetadataReader(file);
  const architecture = keys.text('general.architecture');
  const of = (name: string): string => `${architecture}.${name}`;
  const n_layer = keys.count(of('block_count'), undefined, layers_max);
  const n_embd = keys.count(of('embedding_length'));
  const heads = keys.perLayer(of('attention.head_count'), n_layer);
  const headsKv = keys.has(of('attention.head_count_kv'))
    ? keys.perLayer(of('attention.head_count_kv'), n_layer)
    : heads;
  const widths = keys.perLayer(of('feed_forward_length'), n_layer, 0);
  const n_head = Math.max(...heads);
  const n_ff = Math.max(...widths);
  const head_dim = keys.count(of('attention.key_length'), Math.floor(n_embd / Math.max(1, n_head)));
  const experts = keys.count(of('expert_count'), 0);
  const window = keys.count(of('attention.sliding_window'), 0);
  return {
    architecture,
    name: keys.text('general.name', basename(file.path, '.gguf')),
    n_layer,
    n_embd,
    n_head,
    n_head_kv: Math.max(...headsKv),
    head_dim,
    n_ff,
    n_vocab: vocabularySize(keys, tensors, architecture),
    n_ctx_train: keys.count(of('context_length')),
    experts:
      experts === 0
        ? undefined
        : {
            count: experts,
            used_per_token: keys.count(of('expert_used_count'), 0),
            n_ff: keys.count(of('expert_feed_forward_length'), n_ff),
          },
    sliding_window: window === 0 ? undefined : window,
    tied_embeddings: !tensors.some((tensor) => tensor.name === 'output.weight'),
    value_dim: keys.count(of('attention.value_length'), head_dim),
    layers: { n_head: heads, n_head_kv: headsKv, n_ff: widths },
    kv_lora_rank: keys.count(of('attention.kv_lora_rank'), 0),
  };
}

function vocabularySize(
  keys: GgufMetadataReader,
  tensors: readonly GgufTensor[],
  architecture: string,
): number {
  const listed = keys.length('tokenizer.ggml.tokens');
  if (listed > 0) return listed;
  const embedding = tensors.find((tensor) => tensor.name === 'token_embd.weight');
  return embedding?.shape[1] ?? keys.count(`${architecture}.vocab_size`, 0);
}
