import { HpcserveError } from '../spec/errors/error.ts';
import { addressOf, memoryAt } from './ggml.ts';
import { FlashAttention, type Llama, LoadMode, loadLlama } from './llama.ts';
import type { Pointer } from './signature.ts';

export interface LlamaContextOptions {
  model_path: string;
  threads: number;
  /** Tokens of all sequences together. */
  n_ctx: number;
  n_seq_max: number;
  n_batch?: number;
  n_ubatch?: number;
  flash_attention?: keyof typeof FlashAttention;
  /** enum ggml_type of the KV cache; F16 where absent. */
  kv_type?: number;
  /** Layers that libllama computes on the devices of the libraries, the head counted; 0 where absent. */
  gpu_layers?: number;
  /** Give mean-pooled embeddings instead of logits. */
  embeddings?: boolean;
  folder?: string;
}

/** Tokens of a batch, one entry each. */
export interface ReferenceToken {
  token: number;
  position: number;
  sequence: number;
  /** Whether this row's logits are wanted. */
  output: boolean;
}

/** sizeof(struct ggml_threadpool_params). */
const threadpool_params_bytes = 528;
/** enum llama_pooling_type. */
const meanPooling = 1;

/**
 * A model and a context of libllama itself: the reference that tests and benches compare the native engine
 * with. It runs as its users run it: repacked weights, flash attention chosen by the library, and one
 * thread pool that lives as long as the context.
 */
export class LlamaContext {
  readonly n_vocab: number;
  readonly n_embd: number;
  readonly #llama: Llama;
  readonly #model: Pointer;
  readonly #context: Pointer;
  readonly #threadpool: Pointer;
  /** Memory of the batch that libllama reads. */
  #batch: readonly ArrayBufferView[] = [];

  /** @throws HpcserveError E_NATIVE_REFERENCE, E_NATIVE_LIBRARY, E_NATIVE_VERSION */
  constructor(options: LlamaContextOptions) {
    const llama = loadLlama(options.folder);
    this.#llama = llama;
    const refuse = (what: string): never => {
      throw new HpcserveError('E_NATIVE_REFERENCE', { what });
    };
    const model = llama.llama_model_load_from_file(options.model_path, {
      ...llama.llama_model_default_params(),
      n_gpu_layers: options.gpu_layers ?? 0,
      load_mode: LoadMode.auto,
    });
    this.#model = model ?? refuse(`libllama does not load ${options.model_path}`);
    const context = llama.llama_init_from_model(this.#model, {
      ...llama.llama_context_default_params(),
      n_ctx: options.n_ctx,
      n_batch: options.n_batch ?? 2048,
      n_ubatch: options.n_ubatch ?? 512,
      n_seq_max: options.n_seq_max,
      n_threads: options.threads,
      n_threads_batch: options.threads,
      flash_attn_type: FlashAttention[options.flash_attention ?? 'auto'],
      ...(options.kv_type !== undefined && { type_k: options.kv_type, type_v: options.kv_type }),
      ...(options.embeddings && { embeddings: true, pooling_type: meanPooling }),
    });
    this.#context = context ?? refuse(`libllama makes no context of ${options.n_ctx} tokens`);
    const params = new Uint8Array(threadpool_params_bytes);
    llama.ggml.ggml_threadpool_params_init(params, options.threads);
    this.#threadpool = llama.ggml.cpu.ggml_threadpool_new(params)!;
    llama.llama_attach_threadpool(this.#context, this.#threadpool, this.#threadpool);
    this.n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(this.#model)!);
    this.n_embd = llama.llama_model_n_embd(this.#model);
  }

  /** @throws HpcserveError E_NATIVE_REFERENCE */
  decode(tokens: readonly ReferenceToken[]): void {
    const ids = Int32Array.from(tokens, ({ token }) => token);
    const positions = Int32Array.from(tokens, ({ position }) => position);
    const counts = new Int32Array(tokens.length).fill(1);
    const sequences = Int32Array.from(tokens, ({ sequence }) => sequence);
    const first = addressOf(sequences);
    const lists = BigUint64Array.from(tokens, (_, index) => first + BigInt(4 * index));
    const outputs = Int8Array.from(tokens, ({ output }) => Number(output));
    // The library is given bare addresses: without this the arrays could be collected before it reads them.
    this.#batch = [ids, positions, counts, sequences, lists, outputs];
    const status = this.#llama.llama_decode(this.#context, {
      n_tokens: tokens.length,
      token: addressOf(ids),
      embd: null,
      pos: addressOf(positions),
      n_seq_id: addressOf(counts),
      seq_id: addressOf(lists),
      logits: addressOf(outputs),
    });
    if (status !== 0)
      throw new HpcserveError('E_NATIVE_REFERENCE', {
        what: `llama_decode of ${tokens.length} tokens gave status ${status}`,
        details: { arrays: this.#batch.length },
      });
  }

  /** Logits of the row at `index` of the last batch, shape [n_vocab]; a copy. */
  logits(index: number): Float32Array {
    const address = this.#llama.llama_get_logits_ith(this.#context, index);
    if (!address) throw new HpcserveError('E_NATIVE_REFERENCE', { what: `no logits of the row ${index}` });
    return new Float32Array(memoryAt(address, this.n_vocab * 4).slice().buffer);
  }

  /** Pooled embedding of a sequence of the last batch, shape [n_embd]; a copy. */
  embedding(sequence: number): Float32Array {
    const address = this.#llama.llama_get_embeddings_seq(this.#context, sequence);
    if (!address) throw new HpcserveError('E_NATIVE_REFERENCE', { what: `no embedding of ${sequence}` });
    return new Float32Array(memoryAt(address, this.n_embd * 4).slice().buffer);
  }

  /** Forgets all sequences. */
  clear(): void {
    this.#llama.llama_memory_clear(this.#llama.llama_get_memory(this.#context), false);
  }

  /** Forgets a sequence's tokens from a position on. */
  truncate(sequence: number, position: number): void {
    this.#llama.llama_memory_seq_rm(this.#llama.llama_get_memory(this.#context), sequence, position, -1);
  }

  /** Gives another sequence the keys and values of a whole one: a copy, since each has memory of its own. */
  copySequence(from: number, to: number): void {
    this.#llama.llama_memory_seq_cp(this.#llama.llama_get_memory(this.#context), from, to, -1, -1);
  }

  close(): void {
    this.#llama.llama_free(this.#context);
    this.#llama.llama_model_free(this.#model);
    this.#llama.ggml.cpu.ggml_threadpool_free(this.#threadpool);
  }
}
