import { Duplex } from 'node:stream';
import type { DirectConnection } from '../../host/write-events.ts';
import type { Channel } from './channel.ts';
import type { ChannelBytes } from './frame-writer.ts';

interface Write {
  chunk: ChannelBytes;
  encoding: BufferEncoding;
}

/** A channel as a stream of Node's, which a server of HTTP takes for a connection. */
export class ChannelSocket extends Duplex implements DirectConnection {
  readonly #channel: Channel;
  /** The session that the connection was made to, as TLS names it. */
  readonly servername: string;
  #written: (() => void) | undefined;

  constructor(channel: Channel, servername: string) {
    super({ allowHalfOpen: true, autoDestroy: true, decodeStrings: false });
    this.#channel = channel;
    this.servername = servername;
    channel.listen({
      data: (bytes) => {
        if (!this.push(bytes)) channel.pause();
      },
      ended: () => this.push(null),
      drained: () => this.#sent(),
      closed: (error) => {
        // Where both sides have said all, what was not read yet still is.
        if (error) this.destroy();
        this.#sent();
      },
    });
  }

  /** Of small pieces, what a stream does about each costs more than the channel does. */
  sendNow(bytes: Buffer): boolean {
    return this.writable && this.writableLength === 0 && this.#channel.sendNow(bytes);
  }

  override _read(): void {
    this.#channel.resume();
  }

  override _write(chunk: ChannelBytes, encoding: BufferEncoding, done: () => void): void {
    this.#afterwards(this.#channel.write(pieceOf({ chunk, encoding })), done);
  }

  /** Of an event, HTTP writes its size, itself and its end, and all at once. */
  override _writev(chunks: Write[], done: () => void): void {
    this.#afterwards(this.#channel.writeAll(chunks.map(pieceOf)), done);
  }

  override _final(done: () => void): void {
    this.#channel.end();
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#channel.reset();
    done(error);
  }

  #afterwards(sent: boolean, done: () => void): void {
    if (sent) done();
    else this.#written = done;
  }

  #sent(): void {
    const done = this.#written;
    this.#written = undefined;
    done?.();
  }
}

/** A text whose characters are not bytes becomes bytes. */
function pieceOf({ chunk, encoding }: Write): ChannelBytes {
  if (typeof chunk !== 'string' || encoding === 'latin1' || encoding === 'binary') return chunk;
  return Buffer.from(chunk, encoding);
}
