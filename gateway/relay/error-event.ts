import { continuation, type MovedAnswer } from '../../spec/wire.ts';
import { chunkOf } from './journal/chunk.ts';
import { readMoved } from './moved-answer.ts';

const SPACE = 32;
const OPEN_BRACE = 123;
const letters = Buffer.from('"error"');

/** An error that an engine sends as an event of its stream. */
export interface StreamError {
  message: string;
  code: string;
  /** The replica failed, not the request: another may do better. */
  replica_failed: boolean;
  /** Where its replica has brought what there is of the answer. */
  moved?: MovedAnswer;
}

/** Reads the event [start, end) where it is an error event; cheap for any other. */
export function errorOf(bytes: Buffer, start: number, end: number): StreamError | undefined {
  // `data: {"error"`: chunks begin with other members.
  let at = start + 5;
  if (bytes[at] === SPACE) at++;
  if (bytes[at] !== OPEN_BRACE || bytes[at + 2] !== letters[1] || bytes[at + 3] !== letters[2])
    return undefined;
  if (at + 8 >= end || bytes.compare(letters, 0, letters.length, at + 1, at + 1 + letters.length) !== 0)
    return undefined;
  const error = chunkOf(bytes.toString('utf8', start, end))?.error as
    | { message?: unknown; type?: unknown; code?: unknown; [continuation.moved]?: unknown }
    | null
    | undefined;
  if (typeof error !== 'object' || error === null) return undefined;
  const { message, type, code } = error;
  const read: StreamError = {
    message: typeof message === 'string' ? message.slice(0, 500) : 'it gave no reason',
    code: typeof code === 'string' ? code.slice(0, 64) : 'upstream_error',
    replica_failed:
      (typeof code === 'number' && code >= 500) ||
      (typeof type === 'string' && /server_?error|internal/i.test(type)),
  };
  const moved = readMoved(error[continuation.moved]);
  if (moved) read.moved = moved;
  return read;
}
