import { ServerResponse } from 'node:http';

const CR = 13;
const LF = 10;
/** Larger ones are few, and copying them costs more than it saves. */
const bytes_max = 16 * 1024;

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
  if (begun && bytes.length <= bytes_max && response instanceof ServerResponse && response.chunkedEncoding) {
    const { socket } = response;
    if (socket?.writable && socket.writableLength === 0) {
      // What the kernel does not take at once makes the next write, by the response, wait.
      socket.write(chunkOf(bytes));
      return true;
    }
  }
  return response.write(lent ? Buffer.from(bytes) : bytes);
}

function chunkOf(bytes: Buffer): Buffer {
  const size = bytes.length.toString(16);
  const chunk = Buffer.allocUnsafe(size.length + bytes.length + 4);
  let at = chunk.write(size, 0, 'latin1');
  chunk[at++] = CR;
  chunk[at++] = LF;
  chunk.set(bytes, at);
  at += bytes.length;
  chunk[at++] = CR;
  chunk[at] = LF;
  return chunk;
}
