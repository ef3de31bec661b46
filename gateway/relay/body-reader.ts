import type { IncomingMessage } from 'node:http';
import { HpcserveError } from '../../spec/errors/error.ts';
import { limits } from '../../spec/wire.ts';

/** Reads a request's body whole; the error is E_REQUEST_TOO_LARGE. Not called back where the client goes away. */
export function readBody(
  request: IncomingMessage,
  done: (error: HpcserveError | undefined, body: Buffer) => void,
): void {
  const declared = request.headers['content-length'];
  if (declared !== undefined && Number(declared) > limits.body_bytes) {
    done(tooLarge(Number(declared)), empty);
    return;
  }
  let first: Buffer | undefined;
  let more: Buffer[] | undefined;
  let length = 0;
  let over = false;
  request.on('data', (chunk: Buffer) => {
    if (over) return;
    length += chunk.length;
    if (length > limits.body_bytes) {
      over = true;
      more = undefined;
      done(tooLarge(length), empty);
    } else if (first === undefined) first = chunk;
    else if (more === undefined) more = [first, chunk];
    else more.push(chunk);
  });
  request.on('end', () => {
    if (!over) done(undefined, more === undefined ? (first ?? empty) : Buffer.concat(more, length));
  });
}

const empty = Buffer.alloc(0);

function tooLarge(bytes: number): HpcserveError {
  return new HpcserveError('E_REQUEST_TOO_LARGE', {
    what: `the body of the request has ${bytes} bytes or more`,
    because: `the gateway reads at most ${limits.body_bytes} bytes`,
  });
}
