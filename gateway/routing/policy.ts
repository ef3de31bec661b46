/** What a policy knows of one replica that serves the model asked for. */
export interface Candidate {
  readonly session_id: string;
  /** Sequences in computation, and requests waiting, as the replica last said. */
  readonly running: number;
  readonly waiting: number;
  /** Most sequences the replica computes at once. */
  readonly max_sequences: number;
  /** Requests this gateway sent to it minus answers it had from it since the replica last said so. */
  readonly unreported: number;
}

/** Decides who answers. A pure function of what it is given: no clock, no randomness but the seed. */
export interface RoutingPolicy {
  /** Requests that may wait at one replica beyond those it computes. */
  readonly queue_length: number;
  /**
   * The candidate to send a request to; undefined where all are full or excluded.
   *
   * @param excluded candidates that were tried already, by session id
   * @param seed any 32-bit integer: the same one chooses the same way
   */
  choose<T extends Candidate>(
    candidates: readonly T[],
    excluded: readonly string[],
    seed: number,
  ): T | undefined;
}
