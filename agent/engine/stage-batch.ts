/** What goes into a stage and what leaves it. */

/** Consecutive tokens of one sequence, and where its keys and values lie. */
export interface BatchSegment {
  /** Tokens of the sequence that are in the cache already; the position of the first row. */
  past_tokens: number;
  rows: number;
  /** Blocks of the sequence in order, enough for past_tokens + rows. */
  blocks: ArrayLike<number>;
  /** Which rows leave the last operator. */
  output: 'none' | 'last' | 'all';
  /** Whether its output rows get logits; the others leave as hidden states only. */
  logits: boolean;
}

export interface StageBatch {
  segments: readonly BatchSegment[];
  /** Shape [rows]; for a stage that begins with the embedding. */
  tokens?: Int32Array;
  /** Shape [rows, n_embd]; for any other stage. */
  hidden?: Float32Array;
  /** For a stage that begins with experts. */
  mixture?: MixtureRows;
  /** Measures what each operator takes: on devices other than CPUs it is computed twice. */
  measured?: boolean;
}

/** What goes from a router to the experts of its layer. */
export interface MixtureRows {
  /** Shape [rows, n_embd]: the rows that experts multiply. */
  normed: Float32Array;
  /** Shape [rows, used_per_token]: what a row takes of each of its experts. */
  shares: Float32Array;
  /** Shape [rows, used_per_token]: experts, or where their matrices lie among those of the stage. */
  chosen: Int32Array;
}

export interface Routing extends MixtureRows {
  /** Those of `hidden`, padding left out. */
  rows: number;
  /** They are the batch's output rows. */
  narrowed: boolean;
  /** What a later layer's router would choose. */
  guess?: Int32Array;
}

/** Views of the stage's own memory: valid until its next batch. */
export interface StageResult {
  /** Of a whole model: the first logits row of each segment, counted in `logits`; −1 where it has none. */
  first_row: Int32Array;
  /** Shape [logit rows, n_vocab]. */
  logits: Float32Array;
  /**
   * Shape [output rows, n_embd]: normed output rows of a last stage (segments with logits first), else all rows; of a
   * stage that ends behind the last router, the output rows where each segment outputs one at most.
   */
  hidden: Float32Array;
  /** Of a stage that ends behind a router, for the rows of `hidden`. */
  routing?: Routing;
  /** Of a measured batch, by the stage's operators; absent where it computed less than all, or they are no parts. */
  operators_s?: readonly number[];
}
