import type { BodyPieces } from '../body-edits.ts';
import type { ParsedRequest } from '../request-body.ts';
import type { TokenUsage } from '../usage.ts';

/** What to send to another replica so that it goes on with a stream. */
export interface ContinuedRequest {
  body: BodyPieces;
  /**
   * Makes the events of the new replica those of the old stream; absent where they already are. An empty answer drops
   * one.
   */
  rewrite?: EventRewriter;
}

export type EventRewriter = (bytes: Buffer, start: number, end: number) => Buffer;

/** What a client has been sent of one stream, as far as another replica must know it to go on. */
export interface StreamJournal {
  /**
   * Takes note of the event [start, end), which goes to the client. Returns where in it a part begins that is
   * meant for the gateway alone and ends at `cut_end`; −1 where there is none.
   */
  take(bytes: Buffer, start: number, end: number): number;
  readonly cut_end: number;
  /** Whether a replica with this engine and precision can go on. */
  accepts(engine: string | undefined, precision: string): boolean;
  /** The request with which to go on, or why that is impossible. */
  continued(parsed: ParsedRequest): ContinuedRequest | string;
  /** Tokens that the client has, as far as known. */
  readonly progress: TokenUsage | undefined;
  /** Gives its memory back. Nothing may be called afterwards. */
  release(): void;
}
