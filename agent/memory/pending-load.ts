/** A load as whoever begins it sees it: what is wanted, what is missing, and how it ends. */

export interface WantedTensor {
  /** Its fingerprints, the strongest first: any of them finds it. */
  keys: readonly string[];
  /** In the pool. */
  bytes: number;
}

export interface WantedModel {
  /** Name under which its requests are counted. */
  model: string;
  /** α of Equation 2. */
  latency_sensitivity: number;
  /** In the order of the file. */
  tensors: readonly WantedTensor[];
}

/** What one load did. */
export interface LoadOutcome {
  reused_bytes: number;
  missing_bytes: number;
  evicted_bytes: number;
  moved_bytes: number;
  plan_ms: number;
  move_ms: number;
}

/** Tensors of a model in the pool, for as long as an instance uses them. */
export interface TensorLease {
  /** Offset in the pool of each wanted tensor. */
  readonly offsets: readonly number[];
  /** The tensors stay where they are, for whoever wants them next. */
  release(): void;
}

/** Room for a model whose missing tensors are to be loaded now. Ends with one of `commit`, `abort`, `abandon`. */
export interface PendingLoad {
  readonly offsets: readonly number[];
  /** Indices of the wanted tensors that are not in the pool. */
  readonly missing: readonly number[];
  readonly outcome: LoadOutcome;
  /**
   * Every missing tensor is in its place.
   * @param elapsed_ms what loading them took
   */
  commit(elapsed_ms: number): TensorLease;
  /** Nothing of it is of use, and nobody writes to it any more. */
  abort(): void;
  /**
   * As `abort`, but somebody may still write to it: its regions are not used before that is over.
   * @returns to be called once it is
   */
  abandon(): () => void;
}
