/**
 * Bindings to libllama 0.5: what the tokenizer, the grammar sampler and the reference context share.
 * Signatures and struct layouts follow llama.h; the layouts are checked at load against the defaults
 * that the library itself fills in.
 */
import koffi from 'koffi';
import { HpcserveError } from '../spec/errors/error.ts';
import { errorLog } from './error-log.ts';
import { type Ggml, loadGgml } from './ggml.ts';
import { supportedVersions } from './libraries.ts';
import { type Bound, bind, type Pointer, type SignatureTable, type StructType } from './signature.ts';

/** enum llama_load_mode. */
export const LoadMode = { auto: -1, none: 0, mmap: 1 } as const;

/** enum llama_flash_attn_type. */
export const FlashAttention = { auto: -1, disabled: 0, enabled: 1 } as const;

export interface ModelParams {
  devices: Pointer | null;
  tensor_buft_overrides: Pointer | null;
  n_gpu_layers: number;
  split_mode: number;
  load_mode: number;
  lazy_mode: number;
  main_gpu: number;
  tensor_split: Pointer | null;
  progress_callback: Pointer | null;
  progress_callback_user_data: Pointer | null;
  kv_overrides: Pointer | null;
  vocab_only: boolean;
  check_tensors: boolean;
  use_extra_bufts: boolean;
  no_host: boolean;
  no_alloc: boolean;
  load_mtp: boolean;
}

const modelParams: StructType<ModelParams> = {
  koffi: koffi.struct({
    devices: 'void *',
    tensor_buft_overrides: 'void *',
    n_gpu_layers: 'int32_t',
    split_mode: 'int32_t',
    load_mode: 'int32_t',
    lazy_mode: 'int32_t',
    main_gpu: 'int32_t',
    tensor_split: 'void *',
    progress_callback: 'void *',
    progress_callback_user_data: 'void *',
    kv_overrides: 'void *',
    vocab_only: 'bool',
    check_tensors: 'bool',
    use_extra_bufts: 'bool',
    no_host: 'bool',
    no_alloc: 'bool',
    load_mtp: 'bool',
  }),
};

export interface ContextParams {
  n_ctx: number;
  n_batch: number;
  n_ubatch: number;
  n_seq_max: number;
  n_rs_seq: number;
  n_outputs_max: number;
  n_outputs_max_per_seq: number;
  n_threads: number;
  n_threads_batch: number;
  ctx_type: number;
  rope_scaling_type: number;
  pooling_type: number;
  attention_type: number;
  flash_attn_type: number;
  rope_freq_base: number;
  rope_freq_scale: number;
  yarn_ext_factor: number;
  yarn_attn_factor: number;
  yarn_beta_fast: number;
  yarn_beta_slow: number;
  yarn_orig_ctx: number;
  defrag_thold: number;
  cb_eval: Pointer | null;
  cb_eval_user_data: Pointer | null;
  type_k: number;
  type_v: number;
  abort_callback: Pointer | null;
  abort_callback_data: Pointer | null;
  embeddings: boolean;
  offload_kqv: boolean;
  no_perf: boolean;
  op_offload: boolean;
  swa_full: boolean;
  kv_unified: boolean;
  samplers: Pointer | null;
  n_samplers: number;
  ctx_other: Pointer | null;
}

const contextParams: StructType<ContextParams> = {
  koffi: koffi.struct({
    n_ctx: 'uint32_t',
    n_batch: 'uint32_t',
    n_ubatch: 'uint32_t',
    n_seq_max: 'uint32_t',
    n_rs_seq: 'uint32_t',
    n_outputs_max: 'uint32_t',
    n_outputs_max_per_seq: 'uint32_t',
    n_threads: 'int32_t',
    n_threads_batch: 'int32_t',
    ctx_type: 'int32_t',
    rope_scaling_type: 'int32_t',
    pooling_type: 'int32_t',
    attention_type: 'int32_t',
    flash_attn_type: 'int32_t',
    rope_freq_base: 'float',
    rope_freq_scale: 'float',
    yarn_ext_factor: 'float',
    yarn_attn_factor: 'float',
    yarn_beta_fast: 'float',
    yarn_beta_slow: 'float',
    yarn_orig_ctx: 'uint32_t',
    defrag_thold: 'float',
    cb_eval: 'void *',
    cb_eval_user_data: 'void *',
    type_k: 'int32_t',
    type_v: 'int32_t',
    abort_callback: 'void *',
    abort_callback_data: 'void *',
    embeddings: 'bool',
    offload_kqv: 'bool',
    no_perf: 'bool',
    op_offload: 'bool',
    swa_full: 'bool',
    kv_unified: 'bool',
    samplers: 'void *',
    n_samplers: 'size_t',
    ctx_other: 'void *',
  }),
};

export interface Batch {
  n_tokens: number;
  token: Pointer | null;
  embd: Pointer | null;
  pos: Pointer | null;
  n_seq_id: Pointer | null;
  seq_id: Pointer | null;
  logits: Pointer | null;
}

const batch: StructType<Batch> = {
  koffi: koffi.struct({
    n_tokens: 'int32_t',
    token: 'void *',
    embd: 'void *',
    pos: 'void *',
    n_seq_id: 'void *',
    seq_id: 'void *',
    logits: 'void *',
  }),
};

const llamaTable = {
  llama_version: ['str'],
  llama_log_set: ['void', 'ptr', 'ptr'],
  llama_backend_init: ['void'],
  llama_model_default_params: [modelParams],
  llama_model_load_from_file: ['ptr', 'str', modelParams],
  llama_model_free: ['void', 'ptr'],
  llama_model_get_vocab: ['ptr', 'ptr'],
  llama_model_chat_template: ['str', 'ptr', 'str'],
  llama_model_n_embd: ['i32', 'ptr'],
  llama_model_meta_val_str: ['i32', 'ptr', 'str', 'ptr', 'usize'],
  llama_context_default_params: [contextParams],
  llama_init_from_model: ['ptr', 'ptr', contextParams],
  llama_free: ['void', 'ptr'],
  llama_n_ctx: ['u32', 'ptr'],
  llama_decode: ['i32', 'ptr', batch],
  llama_synchronize: ['void', 'ptr'],
  llama_get_logits_ith: ['ptr', 'ptr', 'i32'],
  llama_get_embeddings_seq: ['ptr', 'ptr', 'i32'],
  llama_get_memory: ['ptr', 'ptr'],
  llama_memory_clear: ['void', 'ptr', 'bool'],
  llama_memory_seq_rm: ['bool', 'ptr', 'i32', 'i32', 'i32'],
  llama_memory_seq_cp: ['void', 'ptr', 'i32', 'i32', 'i32', 'i32'],
  llama_attach_threadpool: ['void', 'ptr', 'ptr', 'ptr'],
  llama_vocab_n_tokens: ['i32', 'ptr'],
  llama_vocab_type: ['i32', 'ptr'],
  llama_vocab_get_text: ['str', 'ptr', 'i32'],
  llama_vocab_get_attr: ['i32', 'ptr', 'i32'],
  llama_vocab_is_eog: ['bool', 'ptr', 'i32'],
  llama_vocab_is_control: ['bool', 'ptr', 'i32'],
  llama_vocab_bos: ['i32', 'ptr'],
  llama_vocab_eos: ['i32', 'ptr'],
  llama_vocab_eot: ['i32', 'ptr'],
  llama_vocab_nl: ['i32', 'ptr'],
  llama_vocab_pad: ['i32', 'ptr'],
  llama_vocab_get_add_bos: ['bool', 'ptr'],
  llama_vocab_get_add_eos: ['bool', 'ptr'],
  llama_tokenize: ['i32', 'ptr', 'ptr', 'i32', 'ptr', 'i32', 'bool', 'bool'],
  llama_token_to_piece: ['i32', 'ptr', 'i32', 'ptr', 'i32', 'i32', 'bool'],
  llama_sampler_init_grammar: ['ptr', 'ptr', 'str', 'str'],
  llama_sampler_apply: ['void', 'ptr', 'ptr'],
  llama_sampler_accept: ['void', 'ptr', 'i32'],
  llama_sampler_clone: ['ptr', 'ptr'],
  llama_sampler_reset: ['void', 'ptr'],
  llama_sampler_free: ['void', 'ptr'],
} as const satisfies SignatureTable;

export interface Llama extends Bound<typeof llamaTable> {
  readonly ggml: Ggml;
  readonly version: string;
}

const loaded = new Map<string, Llama>();

/**
 * Loads libllama (and ggml below it), once per folder and thread.
 * @throws HpcserveError E_NATIVE_LIBRARY, E_NATIVE_VERSION
 */
export function loadLlama(folder?: string): Llama {
  const ggml = loadGgml(folder);
  const known = loaded.get(ggml.libraries.folder);
  if (known) return known;
  const library = koffi.load(ggml.libraries.llama, { global: true });
  const bound = bind(library, llamaTable);
  const version = bound.llama_version() ?? 'unknown';
  if (!version.startsWith(`${supportedVersions.libllama}.`))
    throw new HpcserveError('E_NATIVE_VERSION', {
      what: `${ggml.libraries.llama} is libllama ${version}, and the bindings are for ${supportedVersions.libllama}`,
    });
  checkDefaults(bound);
  const llama = { ...bound, ggml, version };
  if (ggml.silence) {
    llama.llama_log_set(ggml.silence, null);
    // That was ggml's log, too.
    ggml.ggml_log_set(errorLog() ?? ggml.silence, null);
  }
  llama.llama_backend_init();
  loaded.set(ggml.libraries.folder, llama);
  return llama;
}

/** The defaults are known values at known offsets: a field that moved shows here, not as a crash. */
function checkDefaults(bound: Bound<typeof llamaTable>): void {
  const model = bound.llama_model_default_params();
  const context = bound.llama_context_default_params();
  const right =
    model.n_gpu_layers === -1 &&
    model.split_mode === 1 &&
    model.load_mode === LoadMode.auto &&
    model.use_extra_bufts &&
    !model.vocab_only &&
    context.n_ctx === 512 &&
    context.n_batch === 2048 &&
    context.flash_attn_type === FlashAttention.auto &&
    context.yarn_beta_slow === -1 &&
    context.type_k === 1 &&
    context.type_v === 1 &&
    context.offload_kqv &&
    !context.kv_unified;
  if (!right)
    throw new HpcserveError('E_NATIVE_VERSION', {
      what: 'the parameter structs of libllama are laid out differently than the bindings expect',
    });
}
