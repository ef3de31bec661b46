/** Measured iterations of one model on one device. */

export interface PrefillSample {
  /** Tokens of one prompt, computed in one iteration. */
  tokens: number;
  ms: number;
}

export interface DecodeSample {
  batch: number;
  /** Average length of the batch's sequences, prompt and answer. */
  tokens: number;
  ms: number;
}

export interface ProfileSamples {
  prefill: PrefillSample[];
  decode: DecodeSample[];
}
