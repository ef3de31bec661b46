import type { Duplex } from 'node:stream';
import { Channel, type ChannelCarrier, type ChannelEvents } from './channel.ts';
import { channel_max, FrameReader, FrameType, ProtocolError, reason_bytes_max } from './frame.ts';
import { type ChannelBytes, FrameWriter } from './frame-writer.ts';

/** Named in the TLS handshake (ALPN, RFC 7301): who does not know it speaks HTTP/1.1, one request at a time. */
export const channel_protocol = 'hpcserve-channels/1';
/**
 * Open at a time on one connection; for more, another connection is made. Lower: less memory for one peer (each may
 * have a window unread); higher: fewer connections where many streams flow.
 */
export const channels_max = 1024;

/**
 * One connection between two members of the mesh that carries many channels, each of which is as good as a connection
 * of its own: bytes in order, an end for each direction, and back pressure. The side that connected opens channels.
 *
 * What is no frame ends the connection; what breaks the rules of one channel ends that channel alone, and the other
 * side is told why.
 */
export class ChannelConnection implements ChannelCarrier {
  readonly #socket: Duplex;
  readonly #writer: FrameWriter;
  readonly #reader = new FrameReader((kind, channel, payload) => this.#frame(kind, channel, payload));
  readonly #channels = new Map<number, Channel>();
  /** Those with bytes that could not be sent, in the order in which it is their turn. */
  readonly #waiting = new Set<Channel>();
  #scheduled = false;
  readonly #onChannel: ((channel: Channel) => void) | undefined;
  /** The highest number so far. */
  #last = 0;
  #gone: Error | undefined;

  /**
   * @param socket connected and encrypted; what arrives on it goes to `read`
   * @param onChannel takes the channels that the other side opens, and must let each `listen`; absent: it may open none
   */
  constructor(socket: Duplex, onChannel?: (channel: Channel) => void) {
    this.#socket = socket;
    this.#onChannel = onChannel;
    this.#writer = new FrameWriter(
      socket,
      () => this.#lost(new Error('the peer reads nothing')),
      () => this.#channels.size === 1,
    );
    socket.on('drain', () => this.#sendWaiting());
    socket.on('error', (error) => this.#lost(error));
    socket.on('end', () => this.#lost(new Error('the connection was closed')));
    socket.on('close', () => this.#lost(new Error('the connection was closed')));
  }

  /** Whether another channel can be opened. */
  get hasRoom(): boolean {
    return !this.#gone && this.#channels.size < channels_max && this.#last < channel_max;
  }

  /** Channels that are open. */
  get size(): number {
    return this.#channels.size;
  }

  /** Channels that were opened since it is there. */
  get opened(): number {
    return this.#last;
  }

  /** @throws Error where the connection has no room */
  open(events: ChannelEvents): Channel {
    if (!this.hasRoom) throw this.#gone ?? new Error('the connection has as many channels as it may');
    const channel = new Channel(++this.#last, this);
    channel.listen(events);
    this.#channels.set(channel.id, channel);
    this.#writer.control(FrameType.open, channel.id);
    return channel;
  }

  /** @param bytes of the connection; they stay as they are */
  read(bytes: Buffer): void {
    if (this.#gone) return;
    try {
      this.#reader.push(bytes);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.#lost(error);
    }
  }

  /** Ends the connection; each channel that is open is told `error`. */
  destroy(error: Error): void {
    this.#lost(error);
  }

  /** Ends the connection behind what was said on it so far. */
  end(): void {
    if (this.#gone) return;
    this.#writer.flush();
    this.#socket.end();
    this.#abandon(new Error('the connection was closed'));
  }

  get isFull(): boolean {
    return this.#writer.isFull;
  }

  sendData(channel: number, piece: ChannelBytes): void {
    this.#writer.data(channel, piece);
  }

  sendDataOf(channel: number, pieces: readonly ChannelBytes[], length: number): void {
    this.#writer.dataOf(channel, pieces, length);
  }

  sendEnd(channel: number): void {
    this.#control(FrameType.end, channel);
  }

  sendReset(channel: number, reason: string): void {
    this.#control(FrameType.reset, channel, Buffer.from(reason).subarray(0, reason_bytes_max));
  }

  sendCredit(channel: number, bytes: number): void {
    const payload = Buffer.allocUnsafe(4);
    payload.writeUInt32BE(bytes);
    this.#control(FrameType.credit, channel, payload);
  }

  wait(channel: Channel): void {
    this.#waiting.add(channel);
    // Where the peer has room, its turn is as soon as whoever writes is done; else when the socket has drained.
    if (this.#scheduled || this.isFull) return;
    this.#scheduled = true;
    queueMicrotask(() => {
      this.#scheduled = false;
      this.#sendWaiting();
    });
  }

  forget(channel: Channel): void {
    this.#channels.delete(channel.id);
    this.#waiting.delete(channel);
  }

  #control(kind: FrameType, channel: number, payload?: Buffer): void {
    if (!this.#gone) this.#writer.control(kind, channel, payload);
  }

  /** A frame of each that waits, in turn, so that a long body holds up nobody. */
  #sendWaiting(): void {
    // One that is added again comes behind the others, in this same loop.
    for (const channel of this.#waiting) {
      if (this.#gone || this.isFull) return;
      this.#waiting.delete(channel);
      if (channel.sendSome()) this.#waiting.add(channel);
    }
  }

  #frame(kind: FrameType, id: number, payload: Buffer): void {
    if (this.#gone) return;
    if (kind === FrameType.open) {
      this.#opened(id);
      return;
    }
    const channel = this.#channels.get(id);
    if (channel) this.#ofChannel(channel, kind, payload);
    // One of a smaller number was given up a moment ago: such frames were on their way.
    else if ((id === 0 || id > this.#last) && kind !== FrameType.reset)
      this.sendReset(id, 'the channel was never opened');
  }

  /** The fault of one channel is not that of the others. */
  #ofChannel(channel: Channel, kind: FrameType, payload: Buffer): void {
    try {
      if (kind === FrameType.data) channel.received(payload);
      else if (kind === FrameType.end) channel.receivedEnd();
      else if (kind === FrameType.reset) channel.receivedReset(givenUp(payload));
      else if (payload.length === 4) channel.receivedCredit(payload.readUInt32BE(0));
      else throw new ProtocolError('credit has four bytes');
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.#fault(channel, error);
    }
  }

  #fault(channel: Channel, error: ProtocolError): void {
    this.sendReset(channel.id, error.message);
    channel.receivedReset(error);
  }

  #opened(id: number): void {
    const present = this.#channels.get(id);
    if (present) this.#fault(present, new ProtocolError('the channel was opened twice'));
    else if (!this.#onChannel) this.sendReset(id, 'this side takes no channels');
    else if (id <= this.#last) this.sendReset(id, 'the channel was opened twice, or after a later one');
    else {
      this.#last = id;
      if (this.#channels.size >= channels_max) {
        this.sendReset(id, 'the connection has as many channels as it may');
        return;
      }
      const channel = new Channel(id, this);
      this.#channels.set(id, channel);
      this.#onChannel(channel);
    }
  }

  #lost(error: Error): void {
    this.#socket.destroy();
    this.#abandon(error);
  }

  #abandon(error: Error): void {
    if (this.#gone) return;
    this.#gone = error;
    this.#waiting.clear();
    for (const channel of [...this.#channels.values()]) channel.receivedReset(error);
  }
}

function givenUp(reason: Buffer): Error {
  const why = reason.toString('utf8', 0, reason_bytes_max).replace(/[^\x20-\x7e]/g, '?');
  return new Error(
    why === '' ? 'the other side gave the channel up' : `the other side gave the channel up: ${why}`,
  );
}
