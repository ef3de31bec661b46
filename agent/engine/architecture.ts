/** What the native engine needs of a model beyond its hyper-parameters: rotary embedding, norms, pooling. */
import { readGgufHyperParameters } from '../../native/formats/gguf-hyper-parameters.ts';
import { GgufMetadataReader } from '../../native/formats/gguf-metadata-reader.ts';
import type { GgufFile } from '../../native/formats/gguf-reader.ts';
import { RopeMode } from '../../native/ggml.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import {
  type HyperParameters,
  isNativeArchitecture,
  type NativeArchitecture,
  nativeArchitectures,
} from '../../spec/hyper-parameters.ts';

/** How an embedding is made from the rows of a prompt. */
export type Pooling = 'mean' | 'last' | 'first';

/** A model as the native engine computes it. `n_vocab` counts the rows of the embedding matrix, padding included. */
export interface Architecture extends HyperParameters {
  architecture: NativeArchitecture;
  rms_eps: number;
  rope: RopeParameters;
  pooling: Pooling;
}

export interface RopeParameters {
  mode: number;
  n_dims: number;
  freq_base: number;
  /** 1 / scaling factor; positions are multiplied by it. */
  freq_scale: number;
  n_ctx_orig: number;
  /** YaRN (https://arxiv.org/abs/2309.00071): 0 without it, 1 with it. */
  ext_factor: number;
  attn_factor: number;
  beta_fast: number;
  beta_slow: number;
}

/**
 * @param n_vocab rows of the embedding matrix.
 * @throws HpcserveError E_ENGINE_MODEL where the architecture is unknown or its sizes are impossible, E_MODEL_METADATA
 *   where a key is missing or of another type
 */
export function readArchitecture(file: GgufFile, n_vocab: number): Architecture {
  const keys = new GgufMetadataReader(file);
  const architecture = keys.text('general.architecture');
  if (!isNativeArchitecture(architecture))
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `${file.path} is of the architecture ${architecture}, which the native engine does not compute`,
      because: `it computes ${nativeArchitectures.join(', ')}`,
      try: 'serve it with a wrapped engine (vLLM, SGLang, llama.cpp server)',
    });
  const { value_dim, layers, kv_lora_rank, ...hyper } = readGgufHyperParameters(file);
  for (const [key, values] of Object.entries(layers)) refuseVaryingLayers(file.path, key, values);
  const model: Architecture = {
    ...hyper,
    architecture,
    n_vocab,
    rms_eps: keys.real(`${architecture}.attention.layer_norm_rms_epsilon`),
    rope: readRope(keys, file.path, hyper, architecture),
    pooling: readPooling(keys, architecture),
  };
  const wrong = contradictions(model, value_dim);
  if (wrong.length > 0)
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `the metadata of ${file.path} contradicts itself`,
      because: wrong,
    });
  return model;
}

function refuseVaryingLayers(path: string, key: string, values: readonly number[]): void {
  if (values.every((value) => value === values[0])) return;
  throw new HpcserveError('E_ENGINE_MODEL', {
    what: `${key} differs from layer to layer, which the native engine does not compute`,
    because: `${path}: an array of ${values.length} items`,
    try: 'serve the model with a wrapped engine',
  });
}

function contradictions(a: Architecture, value_dim: number): string[] {
  const wrong: string[] = [];
  const need = (holds: boolean, what: string) => {
    if (!holds) wrong.push(what);
  };
  const { experts } = a;
  need(a.n_layer > 0 && a.n_layer < 10_000, `block_count is ${a.n_layer}`);
  need(a.n_embd > 0 && a.n_head > 0 && a.head_dim > 0, 'a size is zero');
  need(a.n_head_kv > 0 && a.n_head % a.n_head_kv === 0, `${a.n_head} heads share ${a.n_head_kv} KV heads`);
  need(value_dim === a.head_dim, `keys have ${a.head_dim} elements and values ${value_dim}`);
  need(a.rope.n_dims <= a.head_dim && a.rope.n_dims % 2 === 0, `rope.dimension_count is ${a.rope.n_dims}`);
  need((experts?.n_ff ?? a.n_ff) > 0, 'feed_forward_length is 0');
  if (experts !== undefined)
    need(
      experts.used_per_token > 0 && experts.used_per_token <= experts.count,
      `${experts.used_per_token} of ${experts.count} experts are used`,
    );
  need(a.architecture !== 'qwen3moe' || experts !== undefined, 'expert_count is missing');
  return wrong;
}

function readRope(
  keys: GgufMetadataReader,
  path: string,
  { head_dim, n_ctx_train }: HyperParameters,
  name: NativeArchitecture,
): RopeParameters {
  // As libllama reads it: a factor of a file that names no type is one of linear scaling.
  const scaling = keys.text(`${name}.rope.scaling.type`, 'linear');
  const factor =
    scaling === 'none'
      ? 1
      : keys.real(`${name}.rope.scaling.factor`, keys.real(`${name}.rope.scale_linear`, 1));
  if (!['none', 'linear', 'yarn'].includes(scaling))
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `rotary scaling of the type ${scaling} is not computed by the native engine`,
      because: `${path}: ${name}.rope.scaling.type`,
      try: 'serve the model with a wrapped engine',
    });
  const freq_scale = factor > 0 ? 1 / factor : 1;
  return {
    mode: name === 'llama' ? RopeMode.norm : RopeMode.neox,
    n_dims: keys.count(`${name}.rope.dimension_count`, head_dim),
    freq_base: keys.real(`${name}.rope.freq_base`, 10_000),
    freq_scale,
    n_ctx_orig: keys.count(`${name}.rope.scaling.original_context_length`, n_ctx_train),
    ext_factor: scaling === 'yarn' ? 1 : 0,
    // ggml multiplies by YaRN's magnitude 1 + 0.1 ln(1/freq_scale) itself where ext_factor is set.
    attn_factor: keys.real(`${name}.rope.scaling.attn_factor`, 1),
    beta_fast: keys.real(`${name}.rope.scaling.yarn_beta_fast`, 32),
    beta_slow: keys.real(`${name}.rope.scaling.yarn_beta_slow`, 1),
  };
}

/** enum llama_pooling_type: 1 mean, 2 first token (CLS), 3 last token. Mean where the file says nothing. */
function readPooling(keys: GgufMetadataReader, name: NativeArchitecture): Pooling {
  const type = keys.count(`${name}.pooling_type`, 1);
  return type === 2 ? 'first' : type === 3 ? 'last' : 'mean';
}
