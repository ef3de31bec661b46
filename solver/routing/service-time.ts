/**
 * How many times its own duration a request takes from when it is sent to a replica until its end. With n requests
 * there before it, at a replica that computes c at once, each for D, it waits (n + 1 − c) · D / c for its place
 * (Little's law, as `expectedWait` has it) and is computed for D.
 *
 * @param ahead n, requests that the replica computes or has waiting
 * @param max_sequences c
 */
export function durationsTaken(ahead: number, max_sequences: number): number {
  return 1 + Math.max(0, ahead + 1 - max_sequences) / max_sequences;
}
