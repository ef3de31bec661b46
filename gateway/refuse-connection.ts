import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { HpcserveError } from '../spec/errors/error.ts';
import { limits } from '../spec/wire.ts';
import { rawErrorAnswer } from './http-error.ts';

/** Answers on a connection whose bytes never became a request, and ends it. */
export function refuseConnection(error: Error & { code?: string }, socket: Socket): void {
  if (!socket.writable || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  // An answer may be half sent already on this connection: a second one would be garbage inside it.
  const busy = (socket as Socket & { _httpMessage?: ServerResponse | null })._httpMessage;
  if (busy?.headersSent) {
    socket.destroy();
    return;
  }
  const [known, phrase] = connectionError(error);
  socket.end(rawErrorAnswer(known, phrase), () => socket.destroy());
}

function connectionError(error: Error & { code?: string }): [HpcserveError, string] {
  switch (error.code) {
    case 'HPE_HEADER_OVERFLOW':
      return [
        new HpcserveError('E_REQUEST_HEADERS', {
          what: `the header of the request is larger than ${limits.header_bytes} bytes`,
        }),
        'Request Header Fields Too Large',
      ];
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return [
        new HpcserveError('E_REQUEST_TIMEOUT', { what: 'the request did not arrive in time' }),
        'Request Timeout',
      ];
    default:
      return [
        new HpcserveError('E_REQUEST_MALFORMED', {
          what: 'what arrived is not an HTTP request',
          because: error.message,
        }),
        'Bad Request',
      ];
  }
}
