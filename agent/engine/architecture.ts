/**
 * What a GGUF file says about its model: sizes, rotary embedding, norms, experts. Keys follow the GGUF
 * specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
 */
import type { GgufFile } from '../../native/formats/gguf-reader.ts';
import type { GgufPlain } from '../../native/formats/gguf-values.ts';
import { RopeMode } from '../../native/ggml.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

/** Architectures that the native engine computes, by their GGUF names. */
export const nativeArchitectures = ['llama', 'qwen2', 'qwen3', 'qwen3moe'] as const;
export type ArchitectureName = (typeof nativeArchitectures)[number];

/** How an embedding is made from the rows of a prompt. */
export type Pooling = 'mean' | 'last' | 'first';

export interface Architecture {
  name: ArchitectureName;
  model_name: string;
  n_vocab: number;
  n_layer: number;
  n_embd: number;
  n_head: number;
  n_head_kv: number;
  /** Elements per head; n_head × head_dim may differ from n_embd (Qwen3). */
  head_dim: number;
  /** Feed-forward width of a dense layer, or of one expert. */
  n_ff: number;
  n_ctx_train: number;
  rms_eps: number;
  rope: RopeParameters;
  /** 0 for dense models. */
  n_expert: number;
  n_expert_used: number;
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
 * @throws HpcserveError E_ENGINE_MODEL where the architecture is unknown or a key is missing or impossible
 */
export function readArchitecture(file: GgufFile, n_vocab: number): Architecture {
  const keys = new MetadataReader(file);
  const name = keys.text('general.architecture');
  if (!isNative(name))
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `${file.path} is of the architecture ${name}, which the native engine does not compute`,
      because: `it computes ${nativeArchitectures.join(', ')}`,
      try: 'serve it with a wrapped engine (vLLM, SGLang, llama.cpp server)',
    });
  const n_embd = keys.count(`${name}.embedding_length`);
  const n_head = keys.count(`${name}.attention.head_count`);
  const head_dim = keys.count(`${name}.attention.key_length`, Math.floor(n_embd / n_head));
  const value_dim = keys.count(`${name}.attention.value_length`, head_dim);
  const n_expert = keys.count(`${name}.expert_count`, 0);
  const n_ff =
    n_expert > 0
      ? keys.count(`${name}.expert_feed_forward_length`, keys.count(`${name}.feed_forward_length`, 0))
      : keys.count(`${name}.feed_forward_length`);
  const n_ctx_train = keys.count(`${name}.context_length`);
  const architecture: Architecture = {
    name,
    model_name: keys.text('general.name', name),
    n_vocab,
    n_layer: keys.count(`${name}.block_count`),
    n_embd,
    n_head,
    n_head_kv: keys.count(`${name}.attention.head_count_kv`, n_head),
    head_dim,
    n_ff,
    n_ctx_train,
    rms_eps: keys.real(`${name}.attention.layer_norm_rms_epsilon`),
    rope: readRope(keys, name, head_dim, n_ctx_train),
    n_expert,
    n_expert_used: keys.count(`${name}.expert_used_count`, 0),
    pooling: readPooling(keys, name),
  };
  const wrong = contradictions(architecture, value_dim);
  if (wrong.length > 0)
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `the metadata of ${file.path} contradicts itself`,
      because: wrong,
    });
  return architecture;
}

function isNative(name: string): name is ArchitectureName {
  return (nativeArchitectures as readonly string[]).includes(name);
}

function contradictions(a: Architecture, value_dim: number): string[] {
  const wrong: string[] = [];
  const need = (holds: boolean, what: string) => {
    if (!holds) wrong.push(what);
  };
  need(a.n_layer > 0 && a.n_layer < 10_000, `block_count is ${a.n_layer}`);
  need(a.n_embd > 0 && a.n_head > 0 && a.head_dim > 0, 'a size is zero');
  need(a.n_head_kv > 0 && a.n_head % a.n_head_kv === 0, `${a.n_head} heads share ${a.n_head_kv} KV heads`);
  need(value_dim === a.head_dim, `keys have ${a.head_dim} elements and values ${value_dim}`);
  need(a.rope.n_dims <= a.head_dim && a.rope.n_dims % 2 === 0, `rope.dimension_count is ${a.rope.n_dims}`);
  need(a.n_ff > 0, 'feed_forward_length is 0');
  if (a.n_expert > 0)
    need(
      a.n_expert_used > 0 && a.n_expert_used <= a.n_expert,
      `${a.n_expert_used} of ${a.n_expert} experts are used`,
    );
  need(a.name !== 'qwen3moe' || a.n_expert > 0, 'expert_count is missing');
  return wrong;
}

function readRope(
  keys: MetadataReader,
  name: ArchitectureName,
  head_dim: number,
  n_ctx_train: number,
): RopeParameters {
  const scaling = keys.text(`${name}.rope.scaling.type`, 'none');
  const factor =
    scaling === 'none'
      ? 1
      : keys.real(`${name}.rope.scaling.factor`, keys.real(`${name}.rope.scale_linear`, 1));
  if (!['none', 'linear', 'yarn'].includes(scaling))
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `rotary scaling of the type ${scaling} is not computed by the native engine`,
      because: `${keys.path}: ${name}.rope.scaling.type`,
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
function readPooling(keys: MetadataReader, name: ArchitectureName): Pooling {
  const type = keys.count(`${name}.pooling_type`, 1);
  return type === 2 ? 'first' : type === 3 ? 'last' : 'mean';
}

/** Typed look-ups in GGUF metadata; a wrong type or a missing key is an error that names key and file. */
class MetadataReader {
  readonly path: string;
  readonly #file: GgufFile;

  constructor(file: GgufFile) {
    this.#file = file;
    this.path = file.path;
  }

  text(key: string, fallback?: string): string {
    const value = this.#scalar(key) ?? fallback;
    return typeof value === 'string' ? value : this.#fail(key, value, 'a text');
  }

  count(key: string, fallback?: number): number {
    const value = this.#scalar(key) ?? fallback;
    if (typeof value === 'number' && Number.isInteger(value) && value >= 0) return value;
    return this.#fail(key, value, 'a whole number');
  }

  real(key: string, fallback?: number): number {
    const value = this.#scalar(key) ?? fallback;
    if (typeof value === 'number' && Number.isFinite(value)) return value;
    return this.#fail(key, value, 'a number');
  }

  /** Per-layer arrays whose items are all equal count as the scalar. */
  #scalar(key: string): GgufPlain | undefined {
    const value = this.#file.metadata.get(key);
    if (value === undefined) return undefined;
    if (value.type !== 'array') return value.value;
    const [first, ...others] = value.values ?? [];
    if (first !== undefined && typeof first !== 'object' && others.every((item) => item === first))
      return first;
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `${key} differs from layer to layer, which the native engine does not compute`,
      because: `${this.path}: an array of ${value.length} items`,
      try: 'serve the model with a wrapped engine',
    });
  }

  #fail(key: string, value: unknown, wanted: string): never {
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `${this.path} has no usable ${key}`,
      because: value === undefined ? 'the key is missing' : `it is ${String(value)}, and must be ${wanted}`,
    });
  }
}
