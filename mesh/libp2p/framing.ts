import type { Stream } from '@libp2p/interface';

const header_bytes = 4;

export function framed(message: Uint8Array): Uint8Array {
  const frame = new Uint8Array(header_bytes + message.length);
  new DataView(frame.buffer).setUint32(0, message.length);
  frame.set(message, header_bytes);
  return frame;
}

/**
 * Reads length-prefixed messages off a stream until it ends. One that is longer than `bytes_max` ends the stream.
 *
 * @param onOversized told of a message that is too long
 */
export function readFrames(
  stream: Stream,
  bytes_max: number,
  onMessage: (message: Uint8Array) => void,
  onOversized: () => void,
): void {
  let rest = Buffer.alloc(0);
  stream.addEventListener('message', ({ data }) => {
    rest = Buffer.concat([rest, data instanceof Uint8Array ? data : data.subarray()]);
    while (rest.length >= header_bytes) {
      const length = rest.readUInt32BE(0);
      if (length > bytes_max) {
        onOversized();
        stream.abort(new Error(`a message of ${length} bytes is too long`));
        return;
      }
      if (rest.length < header_bytes + length) return;
      onMessage(new Uint8Array(rest.subarray(header_bytes, header_bytes + length)));
      rest = rest.subarray(header_bytes + length);
    }
  });
}
