import type { BodyPieces } from '../body-edits.ts';
import type { ParsedRequest } from '../request-body.ts';
import type { TokenUsage } from '../usage.ts';

/** What to send to another replica so that it goes on with a stream. */
export interface ContinuedRequest {
  body: BodyPieces;
  /** Where it is sent to; absent: the path of the request itself. */
  path?: string;
  /**
   * Makes the events of the new replica those of the old stream; absent where they already are. An empty answer drops
   * one.
   */
  rewrite?: EventRewriter;
}

export interface EventRewriter {
  /** @throws OtherAnswer; any other Error where the stream cannot go on with what the replica sends */
  (bytes: Buffer, start: number, end: number): Buffer;
  /** Of the events so far: the replica was asked for a part only, and the stream goes on behind its ending. */
  more?(): boolean;
}

/** Who goes on with a stream, as far as that matters for what it is sent. */
export interface ContinuingReplica {
  engine: string;
  precision: string;
  context_tokens: number;
  /**
   * The text of tokens, special ones included.
   * @throws SpellError
   */
  detokenize(ids: readonly number[]): Promise<string>;
}

/** A replica gave another answer than it was asked for; the stream goes on in a way that does not need that. */
export class OtherAnswer extends Error {
  override readonly name = 'OtherAnswer';
}

/** A replica did not say what text tokens are. */
export class SpellError extends Error {
  override readonly name = 'SpellError';
}

/** What a client has been sent of one stream, as far as another replica must know it to go on. */
export interface StreamJournal {
  /**
   * Takes note of the event [start, end) as it came. Takes what is meant for the gateway alone out of it in place, by
   * moving what stands before. Returns where it begins now; `end` where nothing of it is left. Absent: see `take`.
   */
  see?(bytes: Buffer, start: number, end: number): number;
  /**
   * Takes note of the event [start, end), which goes to the client. Returns where in it a part begins that is
   * meant for the gateway alone and ends at `cut_end`; −1 where there is none.
   */
  take(bytes: Buffer, start: number, end: number): number;
  readonly cut_end: number;
  /** Whether a replica with this engine and precision can go on. */
  accepts(engine: string | undefined, precision: string): boolean;
  /**
   * The request with which this replica goes on, or why that is impossible.
   * @param kv what keys and values of the answer are called there, where they have been brought to it
   */
  continued(
    parsed: ParsedRequest,
    replica: ContinuingReplica,
    kv?: string,
  ): Promise<ContinuedRequest | string>;
  /** Tokens that the client has, as far as known. */
  readonly progress: TokenUsage | undefined;
  /** Gives its memory back. Nothing may be called afterwards. */
  release(): void;
}
