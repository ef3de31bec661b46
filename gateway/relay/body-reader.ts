import type { IncomingMessage } from 'node:http';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type BodyHold, smallBody_bytes } from '../body-memory.ts';

type Done = (error: HpcserveError | undefined, body: Buffer) => void;

const empty = Buffer.alloc(0);

/** The length that a request announces; undefined where it comes in chunks. */
export function announcedBytes({ headers }: IncomingMessage): number | undefined {
  const declared = headers['content-length'];
  return declared === undefined
    ? headers['transfer-encoding'] === undefined
      ? 0
      : undefined
    : Number(declared);
}

/**
 * Reads a request's body whole, once there is memory for it: for what is announced before the first byte, for chunks
 * as they come. Not called back where the client goes away.
 *
 * @param hold the errors of its memory, and E_REQUEST_TOO_LARGE
 */
export function readBody(request: IncomingMessage, hold: BodyHold, bytes_max: number, done: Done): void {
  const announced = announcedBytes(request);
  if (announced !== undefined && announced > bytes_max) {
    done(tooManyBytes(announced, bytes_max), empty);
    return;
  }
  hold.need(announced ?? smallBody_bytes, (refusal) => {
    if (refusal) done(refusal, empty);
    else if (announced === undefined) readChunks(request, hold, bytes_max, done);
    else readAnnounced(request, announced, done);
  });
}

/** Node's parser gives exactly as many bytes as were announced. */
function readAnnounced(request: IncomingMessage, length: number, done: Done): void {
  let body: Buffer = empty;
  let read = 0;
  request.on('data', (chunk: Buffer) => {
    if (read === 0) {
      // By far the most come in one piece. Memory of others is the process's own only where it is written to.
      body = chunk.length === length ? chunk : Buffer.allocUnsafeSlow(length);
    }
    if (body !== chunk) chunk.copy(body, read);
    read += chunk.length;
  });
  request.on('end', () => done(undefined, body));
}

function readChunks(request: IncomingMessage, hold: BodyHold, bytes_max: number, done: Done): void {
  let body: Buffer = empty;
  let read = 0;
  let over = false;
  const fail = (error: HpcserveError): void => {
    over = true;
    body = empty;
    done(error, empty);
  };
  request.on('data', (chunk: Buffer) => {
    if (over) return;
    const length = read + chunk.length;
    if (length > bytes_max) {
      fail(tooManyBytes(length, bytes_max));
      return;
    }
    const take = (): void => {
      if (length > body.length) {
        const larger = Buffer.allocUnsafeSlow(Math.min(bytes_max, Math.max(smallBody_bytes, 2 * length)));
        body.copy(larger, 0, 0, read);
        body = larger;
      }
      chunk.copy(body, read);
      read = length;
    };
    let paused = false;
    hold.need(Math.max(smallBody_bytes, length), (refusal) => {
      if (refusal) fail(refusal);
      else take();
      if (paused) request.resume();
    });
    if (!over && read < length) {
      paused = true;
      request.pause();
    }
  });
  request.on('end', () => {
    if (!over) done(undefined, body.subarray(0, read));
  });
}

export function tooManyBytes(bytes: number, bytes_max: number): HpcserveError {
  return new HpcserveError('E_REQUEST_TOO_LARGE', {
    what: `the body of the request has ${bytes} bytes or more`,
    because: `at most ${bytes_max} bytes of it are read`,
  });
}
