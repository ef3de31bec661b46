import type { RefusedRequest } from '../../spec/device-view.ts';
import type { BegunAnswer, MovedAnswer } from '../../spec/wire.ts';
import type { StreamError } from './error-event.ts';
import type { JsonRelay } from './json-relay.ts';
import type { ReplicaError } from './replica-error.ts';
import type { AttemptFailure, ReplicaRefusal } from './replica-refusal.ts';

/**
 * How one attempt with one replica ended. An attempt says exactly one of these, and nothing after it; what follows is
 * for the request to decide. One that the request itself cancels, because its client has gone, says nothing.
 *
 * | the client has     | the answer is whole       | the replica failed                        |
 * |--------------------|---------------------------|-------------------------------------------|
 * | nothing            | `answered`, `refused`     | `lost`: may be asked elsewhere            |
 * | a part of a stream | `streamed`,`stream_error`,| `broken_stream`: may go on elsewhere;     |
 * |                    | `part_streamed`           | `unreadable_stream`: must not             |
 * | a part of JSON     | `answered`                | `broken_answer`: the connection ends      |
 */
export type AttemptResult =
  /** An answer that is no stream is whole; what is held of it waits for the ledger. */
  | { kind: 'answered'; status: number; answer: JsonRelay }
  /** The stream has its ending. */
  | { kind: 'streamed' }
  /** What has come was a part of the stream, by its request or as it turned out: the rest is asked for anew. */
  | { kind: 'part_streamed'; reason: Error }
  /** The engine said in an event what is wrong, and ended its stream with that; the client has the event. */
  | { kind: 'stream_error'; error: StreamError }
  /** The replica answered with an error that is held: another may do better, else it passes as it came. */
  | {
      kind: 'refused';
      refusal: ReplicaRefusal;
      error: ReplicaError;
      /** It was asked to answer at once, and its batch had no place. */
      full: boolean;
      /** What a native replica says that it cannot take now. */
      refused?: RefusedRequest | undefined;
      /** Where the replica has brought what there is of the answer. */
      moved?: MovedAnswer | undefined;
      /** What there is of it, where it was to come whole. */
      begun?: BegunAnswer | undefined;
    }
  /** It could not answer, and nothing of it has reached the client. */
  | { kind: 'lost'; failure: AttemptFailure; reason: Error }
  /** The stream broke after some of it has reached the client, or another replica did not go on with it. */
  | { kind: 'broken_stream'; failure: AttemptFailure; reason: Error; moved?: MovedAnswer | undefined }
  /** The same, where what the replica sent could not be read. */
  | { kind: 'unreadable_stream'; reason: Error }
  /** A large answer that is no stream broke after some of it has reached the client. */
  | { kind: 'broken_answer'; reason: Error };
