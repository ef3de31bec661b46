/**
 * Connections to a session through its peer: for gateways that cannot reach the session's own port. The bytes are the
 * TLS of the two ends, which no one between them can read. Back pressure goes all the way, so that a slow reader holds
 * the writer back instead of filling memory; and there is no limit of size or time.
 */
import { connect, type Socket } from 'node:net';
import { Duplex } from 'node:stream';
import type { Stream } from '@libp2p/interface';

export const tunnelProtocol = '/hpcserve/tunnel/1';
/** A tunnel begins with the id of the session it leads to. */
const head_bytes = 32;
const head_ms = 5000;
/** Bytes that may wait on a stream before the writer is held back. */
const unsent_bytes_max = 256 * 1024;

export interface TunnelTarget {
  host: string;
  port: number;
}

/** What a tunnel looks like to the one who opens it. */
export function openTunnel(stream: Stream, session_id: string): Duplex {
  const duplex = new StreamDuplex(stream);
  duplex.write(Buffer.from(session_id, 'latin1'));
  return duplex;
}

/** Leads a tunnel that comes in to the port of its session; one to a session that is not here ends. */
export function acceptTunnel(
  stream: Stream,
  targetOf: (session_id: string) => TunnelTarget | undefined,
): void {
  const duplex = new StreamDuplex(stream);
  duplex.on('error', () => duplex.destroy()); // a connection that breaks is nobody's failure
  const deadline = setTimeout(() => duplex.destroy(), head_ms);
  const onReadable = (): void => {
    const head = duplex.read(head_bytes) as Buffer | null;
    if (!head) return;
    clearTimeout(deadline);
    duplex.off('readable', onReadable);
    const target = targetOf(head.toString('latin1'));
    if (!target) {
      duplex.destroy();
      return;
    }
    join(duplex, connect({ ...target, allowHalfOpen: true }));
  };
  duplex.on('readable', onReadable);
  duplex.on('close', () => clearTimeout(deadline));
}

/**
 * What one of them says goes to the other until both are done. A session that has said all and closes its port is heard
 * to the end, however slowly that is read; where one breaks off, so does the other.
 */
function join(duplex: Duplex, socket: Socket): void {
  socket.setNoDelay(true);
  socket.on('error', () => undefined); // its `close` follows
  socket.on('close', () => {
    if (socket.readableEnded)
      duplex.resume(); // nobody hears it any more
    else duplex.destroy();
  });
  duplex.on('close', () => (duplex.readableEnded ? socket.destroySoon() : socket.destroy()));
  duplex.pipe(socket);
  socket.pipe(duplex);
}

/** A libp2p stream as one of Node's. */
class StreamDuplex extends Duplex {
  readonly #stream: Stream;
  /** Of a write that waits until what was written before is sent. */
  #waiting: ((error?: Error | null) => void) | undefined;

  constructor(stream: Stream) {
    super({ allowHalfOpen: true });
    this.#stream = stream;
    stream.inactivityTimeout = Number.MAX_SAFE_INTEGER;
    stream.addEventListener('message', ({ data }) => {
      const more = this.push(data instanceof Uint8Array ? data : data.subarray());
      // Who reads may have given it up in this very moment: a stream that is closed cannot be paused.
      if (!more && stream.readStatus === 'readable') stream.pause();
    });
    stream.addEventListener('end', () => this.push(null));
    stream.addEventListener('idle', () => this.#taken());
    stream.addEventListener('close', ({ error }) => {
      this.#taken();
      if (error) this.destroy(error);
    });
  }

  override _read(): void {
    if (this.#stream.readStatus === 'paused') this.#stream.resume();
  }

  override _write(chunk: Uint8Array, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    try {
      this.#stream.send(chunk);
    } catch (error) {
      done(error as Error);
      return;
    }
    // Its `drain` comes with every byte of new window, long before what waits is sent; `idle` when all of it is.
    if (this.#stream.writeBufferLength < unsent_bytes_max) done();
    else this.#waiting = done;
  }

  #taken(): void {
    const done = this.#waiting;
    this.#waiting = undefined;
    // Not within the event: a stream that is closed there would wait for another one.
    if (done) setImmediate(done);
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#stream.close().then(
      () => done(),
      () => done(new Error('the tunnel broke off')),
    );
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    if (this.#stream.status === 'open') this.#stream.abort(error ?? new Error('the tunnel was closed'));
    done(error);
  }
}
