/**
 * What the headers of a model's files say: enough to plan memory, to choose an engine and to refuse early.
 * Made without reading weights; see `native/formats/`.
 */
export interface ModelFileSummary {
  format: 'gguf' | 'safetensors';
  /** GGUF's `general.architecture`, or `model_type` of config.json: llama, qwen2, qwen3moe, … */
  architecture: string;
  /** Name in the metadata; the file's or folder's name where there is none. */
  name: string;
  n_params: number;
  /** Parameters that one token uses: fewer than n_params where there are experts. */
  n_params_active: number;
  n_layer: number;
  n_embd: number;
  n_head: number;
  /** The largest of all layers. */
  n_head_kv: number;
  /** Elements of a key head. */
  head_dim: number;
  /** Width of the feed-forward part; of the dense layers where there are experts too. */
  n_ff: number;
  n_vocab: number;
  n_ctx_train: number;
  experts?: { count: number; used_per_token: number; n_ff: number };
  /** Attention window of (some) layers, in tokens. */
  sliding_window?: number;
  /** The embedding serves as output matrix too. */
  tied_embeddings: boolean;
  /** Short name of the weights' precision: Q4_0, Q4_K_M, BF16, fp8, awq-4bit, … */
  quantization: string;
  /** Tensors by storage type. */
  tensor_types: Record<string, { tensors: number; bytes: number }>;
  /** All files of the model together. */
  file_bytes: number;
  /** Tensor data without headers and padding. */
  weight_bytes: number;
  /** Where the weights lie: for stages that hold a range of layers. `layers` has n_layer entries. */
  weight_bytes_of: { embedding: number; layers: number[]; output: number };
  /** One token's keys and values over all layers, at 16 bits each; sliding windows are not deducted. */
  kv_bytes_per_token: number;
  has_chat_template: boolean;
  has_tokenizer: boolean;
  /** True, or the reason why the native engine cannot serve it. */
  supported_by_native: true | string;
}

/** Architectures the native engine computes, by their GGUF names. */
export const nativeArchitectures = ['llama', 'qwen2', 'qwen3', 'qwen3moe'] as const;
