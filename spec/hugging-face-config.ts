/**
 * The reader of a Hugging Face `config.json`. Keys are named as in `transformers`, with the older spellings of GPT-2,
 * Falcon, MPT and ChatGLM; of models that also see or hear, the text part is used.
 */
import type { Experts, HyperParameters } from './hyper-parameters.ts';

/** The keys of the language model, those of nested parts merged in. */
export type ConfigKeys = Readonly<Record<string, unknown>>;

export interface HuggingFaceConfig {
  keys: ConfigKeys;
  /** `tied_embeddings` is absent where the config leaves it to the code of the family. */
  sizes: Omit<HyperParameters, 'tied_embeddings'> & Partial<Pick<HyperParameters, 'tied_embeddings'>>;
}

/** Not a mapping, or without a positive whole number for these keys. */
export type UnreadableConfig = { wrong: 'no object' } | { wrong: 'keys'; missing: string[] };

export function readHuggingFaceConfig(config: unknown, name: string): HuggingFaceConfig | UnreadableConfig {
  if (typeof config !== 'object' || config === null || Array.isArray(config)) return { wrong: 'no object' };
  const outer = config as ConfigKeys;
  const keys: ConfigKeys = {
    ...outer,
    ...configPart(outer, 'llm_config'),
    ...configPart(outer, 'text_config'),
  };
  const missing: string[] = [];
  const need = (...names: string[]): number => {
    const value = configNumber(keys, ...names);
    if (value === undefined) missing.push(names[0]!);
    return value ?? 1;
  };
  const n_layer = need('num_hidden_layers', 'n_layer', 'num_layers', 'n_layers');
  const n_embd = need('hidden_size', 'n_embd', 'd_model');
  const n_head = need('num_attention_heads', 'n_head', 'num_heads', 'n_heads');
  const n_vocab = need('vocab_size', 'padded_vocab_size');
  if (missing.length > 0) return { wrong: 'keys', missing };
  const tied = keys.tie_word_embeddings;
  return {
    keys,
    sizes: {
      architecture: String(keys.model_type ?? ''),
      name,
      n_layer,
      n_embd,
      n_head,
      n_head_kv: keyValueHeads(keys, n_head),
      head_dim: configNumber(keys, 'head_dim', 'kv_channels') ?? Math.floor(n_embd / n_head),
      n_ff: feedForward(keys, n_embd),
      n_vocab,
      n_ctx_train: trainedContext(keys),
      experts: expertsOf(keys),
      sliding_window:
        keys.use_sliding_window === false
          ? undefined
          : configNumber(keys, 'sliding_window', 'attention_chunk_size'),
      tied_embeddings: typeof tied === 'boolean' ? tied : undefined,
    },
  };
}

/** The spellings that vLLM knows; 0 where there is none of them. */
function trainedContext(keys: ConfigKeys): number {
  return (
    configNumber(
      keys,
      'max_position_embeddings',
      'n_positions',
      'max_seq_len',
      'seq_length',
      'model_max_length',
      'max_sequence_length',
      'max_seq_length',
      'seq_len',
    ) ?? 0
  );
}

/** One for multi-query attention (Falcon 7B, StarCoder); Falcon's later architecture has groups. */
function keyValueHeads(keys: ConfigKeys, n_head: number): number {
  if (keys.multi_query === true && keys.new_decoder_architecture !== true) return 1;
  return (
    configNumber(keys, 'multi_query_group_num', 'num_key_value_heads', 'num_kv_heads', 'n_head_kv') ??
    configNumber(configPart(keys, 'attn_config'), 'kv_n_heads') ??
    n_head
  );
}

function feedForward(keys: ConfigKeys, n_embd: number): number {
  return (
    configNumber(
      keys,
      'intermediate_size_mlp',
      'intermediate_size',
      'n_inner',
      'ffn_dim',
      'ffn_hidden_size',
    ) ?? (configNumber(keys, 'expansion_ratio') ?? 4) * n_embd
  );
}

function expertsOf(keys: ConfigKeys): Experts | undefined {
  const nested = configPart(keys, 'ffn_config');
  const count =
    configNumber(keys, 'num_experts', 'num_local_experts', 'n_routed_experts', 'moe_num_experts') ??
    configNumber(nested, 'moe_num_experts');
  if (count === undefined || count < 2) return undefined;
  return {
    count,
    used_per_token:
      configNumber(
        keys,
        'num_experts_per_tok',
        'num_experts_per_token',
        'experts_per_token',
        'moe_topk',
        'moe_k',
      ) ??
      configNumber(nested, 'moe_top_k') ??
      1,
    n_ff:
      configNumber(keys, 'moe_intermediate_size', 'intermediate_size') ??
      configNumber(nested, 'ffn_hidden_size') ??
      0,
  };
}

/** A mapping inside the config; empty where there is none. */
export function configPart(keys: ConfigKeys, name: string): ConfigKeys {
  const value = keys[name];
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as ConfigKeys) : {};
}

/** The first of these keys that is a positive whole number. */
export function configNumber(keys: ConfigKeys, ...names: string[]): number | undefined {
  for (const name of names) {
    const value = keys[name];
    if (typeof value === 'number' && Number.isSafeInteger(value) && value > 0) return value;
  }
  return undefined;
}
