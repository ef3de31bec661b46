import type { Duplex } from 'node:stream';
import { FrameType, head_bytes, payload_bytes_max, writeHead } from './frame.ts';

/** Frames are put together here until they are sent. Higher: fewer buffers; lower: less memory while it is quiet. */
const buffer_bytes = 32 * 1024;
/** So much may wait for a peer that does not read before those who have more to send are held back. */
const unsent_bytes_max = 256 * 1024;
/** A peer that makes this side say so much about channels (resets, credit) and does not read it is not worth more. */
const overrun_bytes = 4 * 1024 * 1024;

/** Bytes, or a text whose characters are bytes (latin1). */
export type ChannelBytes = Buffer | string;

/**
 * Sends the frames of one turn of the event loop together: what all sequences of a batch have to say becomes one record
 * of TLS and one system call. Nothing waits longer than until the turn is over.
 */
export class FrameWriter {
  readonly #socket: Duplex;
  readonly #onOverrun: () => void;
  readonly #isAlone: () => boolean;
  readonly #flushScheduled = (): void => {
    this.#scheduled = false;
    this.flush();
  };
  #buffer: Buffer = Buffer.alloc(0);
  /** Of the buffer, bytes [from, to) are to be sent. */
  #from = 0;
  #to = 0;
  #scheduled = false;

  /**
   * @param onOverrun called where more waits than a peer that reads ever causes
   * @param isAlone whether there is one channel: then nobody else has anything to say in this turn, and it is over for
   * it when whoever writes is done
   */
  constructor(socket: Duplex, onOverrun: () => void, isAlone: () => boolean) {
    this.#socket = socket;
    this.#onOverrun = onOverrun;
    this.#isAlone = isAlone;
  }

  /** Whether the peer is so far behind that nothing but small frames should be added. */
  get isFull(): boolean {
    return this.#unsent_bytes >= unsent_bytes_max;
  }

  get #unsent_bytes(): number {
    return this.#socket.writableLength + this.#to - this.#from;
  }

  /** A frame with bytes of a channel; they are copied. */
  data(channel: number, piece: ChannelBytes): void {
    this.#begin(FrameType.data, channel, piece.length);
    this.#add(piece);
  }

  /** The same, where they come in several pieces of `length` bytes together. */
  dataOf(channel: number, pieces: readonly ChannelBytes[], length: number): void {
    this.#begin(FrameType.data, channel, length);
    for (const piece of pieces) this.#add(piece);
  }

  /** A frame about a channel, without bytes of it. */
  control(kind: FrameType, channel: number, payload?: Buffer): void {
    this.#begin(kind, channel, payload?.length ?? 0);
    if (payload) this.#add(payload);
    if (this.#unsent_bytes > overrun_bytes) this.#onOverrun();
  }

  #begin(kind: FrameType, channel: number, length: number): void {
    if (length > payload_bytes_max) throw new RangeError(`a frame cannot hold ${length} bytes`);
    if (this.#buffer.length - this.#to < head_bytes + length) this.#grow();
    writeHead(this.#buffer, this.#to, kind, channel, length);
    this.#to += head_bytes;
    if (this.#scheduled) return;
    this.#scheduled = true;
    if (this.#isAlone()) queueMicrotask(this.#flushScheduled);
    else setImmediate(this.#flushScheduled);
  }

  #add(piece: ChannelBytes): void {
    if (typeof piece === 'string') this.#buffer.write(piece, this.#to, piece.length, 'latin1');
    else this.#buffer.set(piece, this.#to);
    this.#to += piece.length;
  }

  /** Hands over what was put together so far. */
  flush(): void {
    if (this.#from === this.#to) return;
    const part = this.#buffer.subarray(this.#from, this.#to);
    this.#from = this.#to;
    if (this.#socket.writable) this.#socket.write(part);
  }

  /** What was handed over stays as it is: the rest of the buffer is filled next, then another one is taken. */
  #grow(): void {
    this.flush();
    this.#buffer = Buffer.allocUnsafeSlow(buffer_bytes);
    this.#from = this.#to = 0;
  }
}
