/**
 * Frames of the connection that carries many channels:
 *
 *     kind, 1 byte │ length of the payload, 3 bytes │ channel, 4 bytes │ payload
 *
 * Big-endian. Channels are numbered upwards from 1 by the side that opened the connection, and no number is used twice.
 */
export const FrameType = {
  /** A new channel. No payload. */
  open: 1,
  /** Bytes of a channel. */
  data: 2,
  /** Whoever sends it has said all that it says on this channel. No payload. */
  end: 3,
  /** The channel is given up by both sides. The payload says why, in UTF-8; it may be empty. */
  reset: 4,
  /** So many bytes more may be sent on this channel (4 bytes): as many have been read. */
  credit: 5,
} as const;
export type FrameType = (typeof FrameType)[keyof typeof FrameType];

/** A member of the mesh broke the rules of frames or of a channel. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError';
}

export const head_bytes = 8;
/** Lower: other channels wait less behind a long body; higher: fewer heads. */
export const payload_bytes_max = 16 * 1024;
/** Of why a channel was given up, so much is sent. */
export const reason_bytes_max = 200;
/** Four bytes. */
export const channel_max = 0xffff_ffff;

export function writeHead(to: Buffer, at: number, kind: FrameType, channel: number, length: number): void {
  to.writeUInt32BE(kind * 0x1000000 + length, at);
  to.writeUInt32BE(channel, at + 4);
}

/** @param payload part of the bytes that were read */
export type OnFrame = (kind: FrameType, channel: number, payload: Buffer) => void;

const kinds_max = FrameType.credit;
const empty = Buffer.alloc(0);

/** Takes frames out of bytes that come in pieces of any size. */
export class FrameReader {
  readonly #onFrame: OnFrame;
  /** The beginning of a frame; never longer than one. */
  #rest: Buffer = empty;

  constructor(onFrame: OnFrame) {
    this.#onFrame = onFrame;
  }

  /**
   * @param chunk stays as it is
   * @throws ProtocolError where the bytes are no frames
   */
  push(chunk: Buffer): void {
    let bytes = chunk;
    if (this.#rest.length > 0) {
      bytes = Buffer.concat([this.#rest, chunk]);
      this.#rest = empty;
    }
    let at = 0;
    while (bytes.length - at >= head_bytes) {
      const first = bytes.readUInt32BE(at);
      const length = first & 0xffffff;
      const kind = first >>> 24;
      if (kind < FrameType.open || kind > kinds_max)
        throw new ProtocolError(`there is no frame of kind ${kind}`);
      if (length > payload_bytes_max) throw new ProtocolError(`a frame of ${length} bytes is too long`);
      const end = at + head_bytes + length;
      if (end > bytes.length) break;
      this.#onFrame(kind as FrameType, bytes.readUInt32BE(at + 4), bytes.subarray(at + head_bytes, end));
      at = end;
    }
    if (at < bytes.length) this.#rest = bytes.subarray(at);
  }
}
