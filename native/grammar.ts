import { HpcserveError } from '../spec/errors/error.ts';
import { addressOf } from './ggml.ts';
import { type Llama, loadLlama } from './llama.ts';
import type { Pointer } from './signature.ts';
import type { Vocabulary } from './vocabulary.ts';

/** sizeof(llama_token_data): id i32, logit f32, p f32. */
const token_data_bytes = 12;
/** sizeof(llama_token_data_array): data, size, selected, sorted. */
const array_bytes = 32;

/**
 * Constrains sampling to a GBNF grammar, by libllama's grammar sampler. libllama aborts the process when a
 * token is accepted that the grammar does not allow, so every token is asked for before it is accepted.
 */
export class Grammar {
  readonly #llama: Llama;
  readonly #vocabulary: Vocabulary;
  #sampler: Pointer | undefined;
  #candidates: DataView | undefined;

  private constructor(llama: Llama, vocabulary: Vocabulary, sampler: Pointer) {
    this.#llama = llama;
    this.#vocabulary = vocabulary;
    this.#sampler = sampler;
  }

  /**
   * @param grammar GBNF text.
   * @param root name of the start rule.
   * @throws HpcserveError E_NATIVE_GRAMMAR where it does not parse
   */
  static parse(vocabulary: Vocabulary, grammar: string, root = 'root', folder?: string): Grammar {
    const llama = loadLlama(folder);
    const sampler = llama.llama_sampler_init_grammar(vocabulary.address, grammar, root);
    if (!sampler)
      throw new HpcserveError('E_NATIVE_GRAMMAR', {
        what: 'the grammar does not parse',
        because: `libllama refused a grammar of ${grammar.length} characters with start rule ${root}`,
      });
    return new Grammar(llama, vocabulary, sampler);
  }

  /** Sets the logits of all tokens that the grammar does not allow next to -Infinity; shape [n_vocab]. */
  apply(logits: Float32Array): void {
    const count = Math.min(logits.length, this.#vocabulary.n_tokens);
    this.#candidates ??= new DataView(new ArrayBuffer(this.#vocabulary.n_tokens * token_data_bytes));
    const candidates = this.#candidates;
    for (let token = 0; token < count; token++) {
      candidates.setInt32(token * token_data_bytes, token, true);
      candidates.setFloat32(token * token_data_bytes + 4, logits[token]!, true);
    }
    this.#filter(candidates, count);
    for (let index = 0; index < count; index++) {
      const token = candidates.getInt32(index * token_data_bytes, true);
      logits[token] = candidates.getFloat32(index * token_data_bytes + 4, true);
    }
    logits.fill(Number.NEGATIVE_INFINITY, count);
  }

  /** Whether the grammar allows this token next: much cheaper than `apply`, try it on the likeliest first. */
  allows(token: number): boolean {
    const candidate = new DataView(new ArrayBuffer(token_data_bytes));
    candidate.setInt32(0, token, true);
    candidate.setFloat32(4, 1, true);
    this.#filter(candidate, 1);
    return candidate.getFloat32(4, true) !== Number.NEGATIVE_INFINITY;
  }

  #filter(candidates: DataView, count: number): void {
    const array = new DataView(new ArrayBuffer(array_bytes));
    array.setBigUint64(0, addressOf(candidates), true);
    array.setBigUint64(8, BigInt(count), true);
    array.setBigInt64(16, -1n, true);
    this.#llama.llama_sampler_apply(this.#live(), array);
  }

  /**
   * Moves on by one token.
   * @throws HpcserveError E_NATIVE_GRAMMAR where the grammar does not allow it
   */
  accept(token: number): void {
    if (!this.allows(token))
      throw new HpcserveError('E_NATIVE_GRAMMAR', {
        what: `token ${token} (${JSON.stringify(this.#vocabulary.text(token))}) is not allowed by the grammar here`,
      });
    this.#llama.llama_sampler_accept(this.#live(), token);
  }

  /** A second one in the same state. */
  clone(): Grammar {
    const copy = this.#llama.llama_sampler_clone(this.#live());
    if (!copy) throw new HpcserveError('E_NATIVE_GRAMMAR', { what: 'the grammar could not be copied' });
    return new Grammar(this.#llama, this.#vocabulary, copy);
  }

  /** Back to the start rule. */
  reset(): void {
    this.#llama.llama_sampler_reset(this.#live());
  }

  close(): void {
    if (this.#sampler) this.#llama.llama_sampler_free(this.#sampler);
    this.#sampler = undefined;
  }

  #live(): Pointer {
    if (!this.#sampler) throw new HpcserveError('E_NATIVE_GRAMMAR', { what: 'the grammar was closed' });
    return this.#sampler;
  }
}
