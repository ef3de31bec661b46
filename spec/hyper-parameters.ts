/**
 * The sizes that make a model what it is, declared here and nowhere else. Each format of files has one reader that
 * gives them; every room takes this type and puts beside it what only it needs.
 *
 *   GGUF header ──── native/formats/gguf-hyper-parameters.ts ──┬── agent/engine: Architecture (+ rotary embedding,
 * norms)
 *                                                              └── native/formats: ModelFileSummary (+ bytes, tensors)
 *   config.json ──── spec/hugging-face-config.ts ──┬── native/formats/hf-folder.ts: ModelFileSummary
 *                                                  └── solver/catalog: ModelShape (+ precision, shared experts,
 * windows)
 *   a table ──┬── solver/catalog/known-models.ts: ModelShape
 *             └── native/synth/presets.ts: SynthShape (+ rotary base)
 *
 * Names are those of llama.cpp's `llama_hparams` (`n_layer`, `n_embd`, …); `head_dim` is Hugging Face's word.
 *
 *   here                  GGUF key                      config.json
 *   n_layer               block_count                   num_hidden_layers
 *   n_embd                embedding_length              hidden_size
 *   n_head                attention.head_count          num_attention_heads
 *   n_head_kv             attention.head_count_kv       num_key_value_heads
 *   head_dim              attention.key_length          head_dim
 *   n_ff                  feed_forward_length           intermediate_size
 *   n_vocab               tokenizer.ggml.tokens         vocab_size
 *   n_ctx_train           context_length                max_position_embeddings
 *   experts.count         expert_count                  num_experts, num_local_experts, n_routed_experts
 *   .used_per_token       expert_used_count             num_experts_per_tok
 *   .n_ff                 expert_feed_forward_length    moe_intermediate_size
 *   sliding_window        attention.sliding_window      sliding_window
 */
import { z } from 'zod';

const count = z.int().min(0);

const expertsSchema = z.strictObject({
  count,
  used_per_token: count,
  /** Feed-forward width of one expert. */
  n_ff: count,
});
export type Experts = z.infer<typeof expertsSchema>;

export const hyperParametersSchema = z.strictObject({
  /** GGUF's `general.architecture`, or `model_type` of config.json: llama, qwen2, qwen3moe, … */
  architecture: z.string(),
  /** Name in the metadata; the file's or folder's name where there is none. */
  name: z.string(),
  n_layer: count,
  n_embd: count,
  n_head: count,
  /** The largest of all layers. */
  n_head_kv: count,
  /** Elements of a key head; n_head × head_dim may differ from n_embd (Qwen3). */
  head_dim: count,
  /** Width of the feed-forward part; of the dense layers where there are experts too. */
  n_ff: count,
  n_vocab: count,
  /** Longest context in training; 0 where nothing is said of it. */
  n_ctx_train: count,
  /** Absent of dense models. */
  experts: expertsSchema.optional(),
  /** Attention window of (some) layers, in tokens. */
  sliding_window: count.optional(),
  /** The embedding serves as output matrix too. */
  tied_embeddings: z.boolean(),
});
export type HyperParameters = z.infer<typeof hyperParametersSchema>;

/** Architectures the native engine computes, by their GGUF names. */
export const nativeArchitectures = ['llama', 'qwen2', 'qwen3', 'qwen3moe'] as const;
export type NativeArchitecture = (typeof nativeArchitectures)[number];

export function isNativeArchitecture(name: string): name is NativeArchitecture {
  return (nativeArchitectures as readonly string[]).includes(name);
}
