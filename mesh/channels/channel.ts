import { ProtocolError, payload_bytes_max } from './frame.ts';
import type { ChannelBytes } from './frame-writer.ts';
import { UnreadBytes } from './unread-bytes.ts';

/**
 * So many bytes of a channel may be on their way, or wait unread, in each direction. Higher: faster over long ways (a
 * channel carries so much a round trip); lower: less memory for readers that are slow.
 */
export const window_bytes = 128 * 1024;
/** Credit is given back in pieces of this size, not for every frame. */
const credit_bytes_min = window_bytes / 4;

/** Who uses one end of a channel. Nothing more is called once `closed` was. */
export interface ChannelEvents {
  /** @param bytes stay as they are; they may be part of many more */
  data(bytes: Buffer): void;
  /** The other side has said all. */
  ended(): void;
  /** What was held back has been sent: more may be written. */
  drained(): void;
  /** The channel is over: both sides have ended it, one has given it up, or its connection is gone (`error`). */
  closed(error: Error | undefined): void;
}

/** What a channel needs of the connection that carries it. */
export interface ChannelCarrier {
  /** The peer is so far behind that what is to be sent has to wait. */
  readonly isFull: boolean;
  sendData(channel: number, piece: ChannelBytes): void;
  sendDataOf(channel: number, pieces: readonly ChannelBytes[], length: number): void;
  sendEnd(channel: number): void;
  sendReset(channel: number, reason: string): void;
  sendCredit(channel: number, bytes: number): void;
  /** The channel has bytes that could not be sent; it is asked again when the connection has room. */
  wait(channel: Channel): void;
  forget(channel: Channel): void;
}

/** One end of one channel: bytes in both directions, each held back by what the other side has read. */
export class Channel {
  readonly id: number;
  readonly #carrier: ChannelCarrier;
  #events: ChannelEvents | undefined;
  /** So many bytes may be sent. */
  #credit = window_bytes;
  #unsent: Buffer[] = [];
  readonly #unread = new UnreadBytes();
  /** Read, and not given back as credit yet. */
  #read_bytes = 0;
  #paused = false;
  /** Its reader is being given bytes, and may do anything to the channel meanwhile. */
  #handing = false;
  #ending = false;
  #endSent = false;
  #endReceived = false;
  /** The end was told to who reads. */
  #endTold = false;
  #over = false;

  constructor(id: number, carrier: ChannelCarrier) {
    this.id = id;
    this.#carrier = carrier;
  }

  /** Until then nothing may arrive. */
  listen(events: ChannelEvents): void {
    this.#events = events;
  }

  get over(): boolean {
    return this.#over;
  }

  /**
   * @param bytes must stay as they are until they are sent
   * @returns false: they are kept until the other side has read more; write again when `drained` was called
   */
  write(bytes: ChannelBytes): boolean {
    if (this.#over || this.#ending || bytes.length === 0 || this.sendNow(bytes)) return true;
    this.#unsent.push(bytesOf(bytes));
    this.#carrier.wait(this);
    return false;
  }

  /**
   * Sends bytes before it returns: they may be others behind it.
   * @returns false: nothing of them is sent, or kept
   */
  sendNow(bytes: ChannelBytes): boolean {
    if (this.#over || this.#ending || !this.#fits(bytes.length)) return false;
    this.#credit -= bytes.length;
    this.#carrier.sendData(this.id, bytes);
    return true;
  }

  /** Writes several pieces, which travel together. */
  writeAll(pieces: readonly ChannelBytes[]): boolean {
    let length = 0;
    for (const piece of pieces) length += piece.length;
    if (this.#over || this.#ending || length === 0) return true;
    if (!this.#fits(length)) return this.write(Buffer.concat(pieces.map(bytesOf), length));
    this.#credit -= length;
    this.#carrier.sendDataOf(this.id, pieces, length);
    return true;
  }

  /**
   * Sends one frame of what waits, where the connection has room for it.
   * @returns whether more could follow
   */
  sendSome(): boolean {
    const [first] = this.#unsent;
    const room = Math.min(this.#credit, payload_bytes_max);
    // Credit that comes makes the channel wait anew.
    if (!first || room === 0) return false;
    const part = first.length <= room ? first : first.subarray(0, room);
    this.#credit -= part.length;
    if (part === first) this.#unsent.shift();
    else this.#unsent[0] = first.subarray(part.length);
    this.#carrier.sendData(this.id, part);
    if (this.#unsent.length > 0) return true;
    this.#finishSending();
    this.#events?.drained();
    return false;
  }

  /** Says that all has been said. */
  end(): void {
    if (this.#over || this.#ending) return;
    this.#ending = true;
    this.#finishSending();
  }

  pause(): void {
    this.#paused = true;
  }

  resume(): void {
    this.#paused = false;
    // Who resumes while he reads is given the rest behind that.
    if (this.#handing) return;
    while (!this.#paused && !this.#over && this.#unread.length > 0) this.#hand(this.#unread.take());
    this.#tellEnd();
  }

  /** Gives the channel up, for both sides; nobody on this one hears of it again. */
  reset(reason = ''): void {
    if (this.#over) return;
    this.#carrier.sendReset(this.id, reason);
    this.#events = undefined;
    this.#close(undefined);
  }

  /**
   * Bytes of the other side.
   * @throws ProtocolError where it sent more than it may, or after its end
   */
  received(bytes: Buffer): void {
    if (this.#endReceived) throw new ProtocolError('bytes came behind the end of the channel');
    if (bytes.length === 0) return;
    if (this.#unread.length + this.#read_bytes + bytes.length > window_bytes)
      throw new ProtocolError('more bytes came on the channel than were asked for');
    if (this.#paused) this.#unread.add(bytes);
    else this.#hand(bytes);
  }

  receivedEnd(): void {
    this.#endReceived = true;
    this.#tellEnd();
  }

  /** @throws ProtocolError where it is more than was ever taken */
  receivedCredit(bytes: number): void {
    this.#credit += bytes;
    if (this.#credit > window_bytes) throw new ProtocolError('more credit came than was used');
    if (this.#unsent.length > 0) this.#carrier.wait(this);
  }

  /** The other side has given it up, or the connection is gone. */
  receivedReset(error: Error): void {
    if (!this.#endReceived || this.#endTold) {
      this.#close(error);
      return;
    }
    // All that it said is here, and is still read; what was to be said to it is of no use.
    this.#unsent = [];
    this.#ending = this.#endSent = true;
  }

  #fits(length: number): boolean {
    return (
      this.#unsent.length === 0 &&
      length <= this.#credit &&
      length <= payload_bytes_max &&
      !this.#carrier.isFull
    );
  }

  #hand(bytes: Buffer): void {
    this.#read_bytes += bytes.length;
    this.#handing = true;
    this.#events?.data(bytes);
    this.#handing = false;
    if (this.#over || this.#endReceived || this.#read_bytes < credit_bytes_min) return;
    this.#carrier.sendCredit(this.id, this.#read_bytes);
    this.#read_bytes = 0;
  }

  #finishSending(): void {
    if (!this.#ending || this.#endSent || this.#over || this.#unsent.length > 0) return;
    this.#endSent = true;
    this.#carrier.sendEnd(this.id);
    this.#closeWhereBothEnded();
  }

  #tellEnd(): void {
    if (!this.#endReceived || this.#endTold || this.#over || this.#unread.length > 0) return;
    this.#endTold = true;
    this.#events?.ended();
    this.#closeWhereBothEnded();
  }

  #closeWhereBothEnded(): void {
    if (this.#endSent && this.#endTold) this.#close(undefined);
  }

  #close(error: Error | undefined): void {
    if (this.#over) return;
    this.#over = true;
    this.#unsent = [];
    this.#unread.clear();
    this.#carrier.forget(this);
    const events = this.#events;
    this.#events = undefined;
    events?.closed(error);
  }
}

function bytesOf(piece: ChannelBytes): Buffer {
  return typeof piece === 'string' ? Buffer.from(piece, 'latin1') : piece;
}
