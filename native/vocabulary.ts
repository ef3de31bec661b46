/**
 * The tokenizer of a GGUF model, by libllama. A model is opened with its vocabulary only: no weights are
 * read. The vocabulary may be used from any thread of the process through its address.
 */
import { HpcserveError } from '../spec/errors/error.ts';
import { type Llama, loadLlama } from './llama.ts';
import type { Pointer } from './signature.ts';

export interface TokenizeOptions {
  /** Add the tokens that the model expects at the start or end (BOS, EOS), as its metadata says. Default true. */
  add_special?: boolean;
  /** Turn the text of control tokens (`<|im_start|>`) into these tokens. Never for text of a user. Default false. */
  parse_special?: boolean;
}

/** llama_vocab_* tokens that do not exist are -1 in C and undefined here. */
export class Vocabulary {
  /** Address of the llama_vocab; give it to `Vocabulary.fromAddress` in another thread. */
  readonly address: Pointer;
  readonly n_tokens: number;
  /** The first token of a prompt, where the model has one. */
  readonly bos: number | undefined;
  readonly eos: number | undefined;
  readonly eot: number | undefined;
  readonly add_bos: boolean;
  readonly add_eos: boolean;
  /** Jinja chat template of the file; absent where it has none, and in a vocabulary made from an address. */
  readonly chat_template: string | undefined;
  /** The file's template for requests with tools, where it has one of its own for them. */
  readonly tool_template: string | undefined;
  readonly #llama: Llama;
  #model: Pointer | undefined;
  #endTokens: ReadonlySet<number> | undefined;
  #pieceBuffer = new Uint8Array(256);

  private constructor(llama: Llama, address: Pointer, model?: Pointer) {
    this.#llama = llama;
    this.#model = model;
    this.address = address;
    this.n_tokens = llama.llama_vocab_n_tokens(address);
    this.bos = present(llama.llama_vocab_bos(address));
    this.eos = present(llama.llama_vocab_eos(address));
    this.eot = present(llama.llama_vocab_eot(address));
    this.add_bos = llama.llama_vocab_get_add_bos(address);
    this.add_eos = llama.llama_vocab_get_add_eos(address);
    const template = (name: string | null) =>
      model ? (llama.llama_model_chat_template(model, name) ?? undefined) : undefined;
    this.chat_template = template(null);
    this.tool_template = template('tool_use');
  }

  /**
   * Reads the tokenizer of a GGUF file; close it when done.
   * @throws HpcserveError E_NATIVE_TOKENIZER where libllama refuses the file, E_NATIVE_LIBRARY, E_NATIVE_VERSION
   */
  static open(path: string, folder?: string): Vocabulary {
    const llama = loadLlama(folder);
    const params = llama.llama_model_default_params();
    const model = llama.llama_model_load_from_file(path, { ...params, vocab_only: true, n_gpu_layers: 0 });
    if (!model)
      throw new HpcserveError('E_NATIVE_TOKENIZER', { what: `libllama reads no tokenizer from ${path}` });
    const address = llama.llama_model_get_vocab(model);
    if (!address || llama.llama_vocab_n_tokens(address) === 0) {
      llama.llama_model_free(model);
      throw new HpcserveError('E_NATIVE_TOKENIZER', { what: `${path} holds no tokenizer` });
    }
    return new Vocabulary(llama, address, model);
  }

  /** The vocabulary that another thread of this process opened and keeps open as long as this one is used. */
  static fromAddress(address: Pointer, folder?: string): Vocabulary {
    return new Vocabulary(loadLlama(folder), address);
  }

  /** Token ids of a text, shape [n]. */
  tokenize(text: string, options: TokenizeOptions = {}): Int32Array {
    const bytes = Buffer.from(text, 'utf8');
    const special = options.add_special ?? true;
    const parse = options.parse_special ?? false;
    let tokens = new Int32Array(bytes.length + 8);
    let count = this.#tokenize(bytes, tokens, special, parse);
    if (count < 0) {
      tokens = new Int32Array(-count);
      count = this.#tokenize(bytes, tokens, special, parse);
    }
    return tokens.slice(0, count);
  }

  #tokenize(bytes: Uint8Array, tokens: Int32Array, special: boolean, parse: boolean): number {
    return this.#llama.llama_tokenize(
      this.address,
      bytes,
      bytes.length,
      tokens,
      tokens.length,
      special,
      parse,
    );
  }

  /**
   * The bytes that a token stands for: possibly a part of a UTF-8 character, so join bytes before decoding.
   * @param special whether control tokens give their text (else nothing).
   */
  piece(token: number, special = false): Uint8Array {
    let written = this.#piece(token, special);
    if (written < 0) {
      this.#pieceBuffer = new Uint8Array(-written);
      written = this.#piece(token, special);
    }
    return this.#pieceBuffer.slice(0, Math.max(0, written));
  }

  #piece(token: number, special: boolean): number {
    const buffer = this.#pieceBuffer;
    return this.#llama.llama_token_to_piece(this.address, token, buffer, buffer.length, 0, special);
  }

  /** The text of many tokens; bytes that are no UTF-8 become U+FFFD. */
  detokenize(tokens: Iterable<number>, special = false): string {
    const pieces = Array.from(tokens, (token) => this.piece(token, special));
    return Buffer.concat(pieces).toString('utf8');
  }

  /** The token as the file spells it, for instance `Ġthe`. */
  text(token: number): string {
    return this.#llama.llama_vocab_get_text(this.address, token) ?? '';
  }

  isEndOfGeneration(token: number): boolean {
    return this.#llama.llama_vocab_is_eog(this.address, token);
  }

  isControl(token: number): boolean {
    return this.#llama.llama_vocab_is_control(this.address, token);
  }

  /** Every token that ends a generation (EOS, EOT, and what else the file or libllama names). */
  get endTokens(): ReadonlySet<number> {
    if (!this.#endTokens) {
      const found = new Set<number>();
      for (let token = 0; token < this.n_tokens; token++) if (this.isEndOfGeneration(token)) found.add(token);
      this.#endTokens = found;
    }
    return this.#endTokens;
  }

  /** Frees the model behind an opened vocabulary; nothing that uses it may run any more. */
  close(): void {
    if (this.#model) this.#llama.llama_model_free(this.#model);
    this.#model = undefined;
  }
}

function present(token: number): number | undefined {
  return token < 0 ? undefined : token;
}
