import { ServerResponse } from 'node:http';

const CR = 13;
const LF = 10;

/** A connection that need not be written to as a stream. */
export interface DirectConnection {
  /**
   * Sends bytes before it returns, where nothing waits before them; then the same memory may be filled again.
   * @returns false: it has sent nothing, and they are to be written
   */
  sendNow(bytes: Buffer): boolean;
}

/** Larger ones are few, and copying them costs more than it saves. */
const small_bytes_max = 16 * 1024;
/** Of a chunk, beside what it carries: its size in hexadecimal digits, and two line ends. */
const chunkFraming_bytes_max = 8 + 4;

/** What is sent now, and done with when that returns. */
const chunk = Buffer.allocUnsafe(small_bytes_max + chunkFraming_bytes_max);

/**
 * Writes events of an answer. Of a small piece Node makes four writes (its size, a line end, itself, a line end), a
 * turn of corking and a gathering system call; where nothing else is on its way there, the same bytes (a chunk,
 * RFC 9112 §7.1) go as one write.
 *
 * @param begun something of the body was written before: the head is with the socket
 * @param lent the bytes are valid during this call only
 * @returns false where whoever asked is behind; the response then says when it has drained
 */
export function writeEvents(
  response: { write(bytes: Buffer): boolean },
  bytes: Buffer,
  begun: boolean,
  lent = false,
): boolean {
  if (
    begun &&
    bytes.length <= small_bytes_max &&
    response instanceof ServerResponse &&
    response.chunkedEncoding
  ) {
    const { socket } = response;
    if (socket?.writable && socket.writableLength === 0) {
      if (isDirect(socket) && socket.sendNow(chunk.subarray(0, writeChunk(chunk, bytes)))) return true;
      // What the kernel does not take at once makes the next write, by the response, wait.
      socket.write(chunkOf(bytes));
      return true;
    }
  }
  return response.write(lent ? Buffer.from(bytes) : bytes);
}

function isDirect(socket: object): socket is DirectConnection {
  return 'sendNow' in socket;
}

function chunkOf(bytes: Buffer): Buffer {
  const own = Buffer.allocUnsafe(bytes.length + chunkFraming_bytes_max);
  return own.subarray(0, writeChunk(own, bytes));
}

/**
 * Writes bytes as one chunk (RFC 9112 §7.1).
 * @param into has room for them and `chunkFraming_bytes_max` more
 * @returns the length of the chunk
 */
function writeChunk(into: Buffer, bytes: Buffer): number {
  let at = into.write(bytes.length.toString(16), 0, 'latin1');
  into[at++] = CR;
  into[at++] = LF;
  into.set(bytes, at);
  at += bytes.length;
  into[at++] = CR;
  into[at++] = LF;
  return at;
}
