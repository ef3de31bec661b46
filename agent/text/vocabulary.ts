/** What text handling needs to know of a model's vocabulary. `agent/device-worker/model-text.ts` fills it from libllama. */
export interface Vocabulary {
  readonly n_tokens: number;
  /** −1 where the vocabulary has none. */
  readonly bos: number;
  readonly eos: number;
  /** Whether the model expects a beginning-of-sequence token that its chat template may not write. */
  readonly add_bos: boolean;
  /** Every token that ends a generation (end of text, end of turn, …). */
  readonly end_of_generation: ReadonlySet<number>;
  /**
   * @param add_special adds beginning- and end-of-sequence tokens as the model's metadata asks
   * @param parse_special reads `<|im_start|>` and the like as the tokens they name
   */
  tokenize(text: string, options: { add_special: boolean; parse_special: boolean }): Int32Array;
  /** Bytes of a token; one token may hold a part of a character. @param special whether control tokens have their text or none */
  bytesOf(token: number, special: boolean): Uint8Array;
  /** The text of tokens from the start of a sequence, as llama.cpp writes it: without the space that some tokenizers put first. */
  detokenize(tokens: readonly number[], special: boolean): string;
}
