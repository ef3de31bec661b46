/**
 * Bytes over TLS 1.3, both sides pinned to keys that they told each other over the mesh. It is what is left where
 * others may listen on the network; the event loop encrypts and copies.
 */

import type { Socket } from 'node:net';
import { createServer, type Server, type TLSSocket } from 'node:tls';
import {
  peerPublicKey,
  pinnedConnectAt,
  type SessionIdentity,
  sessionTlsServerOptions,
  UnauthenticatedSockets,
} from '../../../mesh/index.ts';
import type { MemoryPiece, TransferMemory } from '../../../native/fabric/memory.ts';
import { crc32c, type Patience } from '../../../native/fabric/mover.ts';
import { memoryAt } from '../../../native/ggml.ts';
import { meeting_ms } from '../limits.ts';
import type { Frame, SourceEnd, TargetEnd } from './way.ts';

/** Written at once. Lower: others have the event loop sooner; higher: fewer turns. */
const chunk_bytes = 256 * 1024;
/** Connections that have shown no key yet. */
const strangers_max = 16;

function viewOf(memory: TransferMemory, { offset, bytes }: MemoryPiece): Uint8Array {
  if (offset < 0 || bytes < 1 || offset + bytes > memory.bytes)
    throw new RangeError(`bytes ${offset} to ${offset + bytes} lie outside the memory`);
  return memoryAt(memory.address + BigInt(offset), bytes);
}

/** The end that sends. */
export class TlsSource implements SourceEnd {
  readonly way = 'tcp';
  readonly description = 'tcp, encrypted';
  readonly #memory: TransferMemory;
  readonly #socket: TLSSocket;
  #failure: Error | undefined;
  #turn: Promise<unknown> = Promise.resolve();

  private constructor(memory: TransferMemory, socket: TLSSocket) {
    this.#memory = memory;
    this.#socket = socket;
    socket.on('error', (error) => this.#fail(error));
    socket.on('close', () => this.#fail(new Error('the peer has closed the connection')));
    socket.on('timeout', () => socket.destroy(new Error('the peer is silent')));
    socket.resume();
  }

  /** @throws HpcserveError E_MESH_PINNING; Error: nobody answers there */
  static async connect(
    memory: TransferMemory,
    own: SessionIdentity,
    { host, port, session_id, key }: { host: string; port: number; session_id: string; key: string },
  ): Promise<TlsSource> {
    const socket = await pinnedConnectAt({ host, port }, { session_id, public_key: key }, own, meeting_ms);
    return new TlsSource(memory, socket);
  }

  /** Frames one after the other, as they were asked for. */
  send(frame: Frame, _places: unknown, patience: Patience): Promise<number> {
    const sent = this.#turn.then(() => this.#write(frame, patience));
    this.#turn = sent.catch(() => undefined);
    return sent;
  }

  async close(): Promise<void> {
    this.#socket.destroy();
    await this.#turn;
  }

  async #write({ header, pieces }: Frame, { silence_ms, limit_ms }: Patience): Promise<number> {
    const deadline_ms = performance.now() + limit_ms;
    this.#socket.setTimeout(silence_ms);
    let checksum = 0;
    let open = this.#socket.write(header);
    for (const piece of pieces)
      for (let at = 0; at < piece.bytes; at += chunk_bytes) {
        if (!open) await this.#drained();
        if (performance.now() > deadline_ms) throw new Error(`not done within ${Math.round(limit_ms)} ms`);
        if (this.#failure) throw this.#failure;
        const bytes = Math.min(chunk_bytes, piece.bytes - at);
        const view = viewOf(this.#memory, { offset: piece.offset + at, bytes });
        checksum = crc32c(view, checksum);
        open = this.#socket.write(view);
      }
    if (!open) await this.#drained();
    this.#socket.setTimeout(0);
    return checksum;
  }

  #drained(): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#failure) reject(this.#failure);
      const drained = (): void => {
        this.#socket.off('close', closed);
        resolve();
      };
      const closed = (): void => {
        this.#socket.off('drain', drained);
        reject(this.#failure ?? new Error('the connection was closed'));
      };
      this.#socket.once('drain', drained);
      this.#socket.once('close', closed);
    });
  }

  #fail(error: Error): void {
    this.#failure ??= error;
  }
}

/** Runs that are on their way over one connection, in order. */
class Reception {
  readonly #memory: TransferMemory;
  readonly #frames: readonly Frame[];
  readonly #checksums: number[] = [];
  readonly result: Promise<number[]>;
  #settle!: { resolve: (sums: number[]) => void; reject: (error: Error) => void };
  readonly #header: Uint8Array[] = [];
  #header_bytes = 0;
  #piece = 0;
  #done = 0;
  #checksum = 0;

  constructor(memory: TransferMemory, frames: readonly Frame[]) {
    this.#memory = memory;
    this.#frames = frames;
    this.result = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
  }

  fail(error: Error): void {
    this.#settle.reject(error);
  }

  /** @throws Error: what came is not what was expected */
  take(bytes: Buffer): void {
    let rest: Uint8Array = bytes;
    while (rest.length > 0) {
      const frame = this.#frames[this.#checksums.length];
      if (!frame) throw new Error('more came than was expected');
      rest =
        this.#header_bytes < frame.header.length ? this.#takeHeader(frame, rest) : this.#place(frame, rest);
    }
  }

  #takeHeader({ header }: Frame, bytes: Uint8Array): Uint8Array {
    const taken = bytes.subarray(0, header.length - this.#header_bytes);
    this.#header.push(Uint8Array.from(taken));
    this.#header_bytes += taken.length;
    if (
      this.#header_bytes === header.length &&
      Buffer.compare(Buffer.concat(this.#header.splice(0)), header) !== 0
    )
      throw new Error('another run came than was expected');
    return bytes.subarray(taken.length);
  }

  #place({ pieces }: Frame, bytes: Uint8Array): Uint8Array {
    const piece = pieces[this.#piece]!;
    const taken = bytes.subarray(0, piece.bytes - this.#done);
    viewOf(this.#memory, { offset: piece.offset + this.#done, bytes: taken.length }).set(taken);
    this.#checksum = crc32c(taken, this.#checksum);
    this.#done += taken.length;
    if (this.#done === piece.bytes) [this.#piece, this.#done] = [this.#piece + 1, 0];
    if (this.#piece === pieces.length) {
      this.#checksums.push(this.#checksum);
      [this.#piece, this.#checksum, this.#header_bytes] = [0, 0, 0];
      if (this.#checksums.length === this.#frames.length) this.#settle.resolve(this.#checksums);
    }
    return bytes.subarray(taken.length);
  }
}

/** Listens for one peer, for as long as meeting may take. */
export class TlsTarget implements TargetEnd {
  readonly tellsPlaces = false;
  readonly description = 'tcp, encrypted';
  readonly #memory: TransferMemory;
  readonly #server: Server;
  readonly #strangers = new UnauthenticatedSockets();
  readonly #met: Promise<TLSSocket>;
  #socket: TLSSocket | undefined;
  #reception: Reception | undefined;

  private constructor(memory: TransferMemory, own: SessionIdentity, key: string) {
    this.#memory = memory;
    const options = sessionTlsServerOptions((id) => (id === own.session_id ? own : undefined));
    this.#server = createServer({ ...options, handshakeTimeout: meeting_ms });
    this.#server.on('connection', (socket: Socket) => {
      this.#strangers.add(socket);
      if (this.#strangers.size > strangers_max) this.#strangers.endOldest();
    });
    this.#met = new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`nobody came within ${meeting_ms} ms`)), meeting_ms);
      this.#server.once('close', () => reject(new Error('it was closed')));
      this.#server.on('secureConnection', (socket: TLSSocket) => {
        socket.on('error', () => socket.destroy());
        const shown = peerPublicKey(socket);
        if (!shown || Buffer.from(shown).toString('base64') !== key) {
          socket.destroy();
          return;
        }
        clearTimeout(late);
        this.#strangers.prove(socket);
        this.#take(socket);
        resolve(socket);
      });
    });
    // Whoever connects after that is nobody that is waited for.
    const ended = (): void => {
      this.#server.close();
      this.#strangers.endAll();
    };
    this.#met.then(ended, ended);
  }

  /** @throws Error: no port is free */
  static async listen(
    memory: TransferMemory,
    own: SessionIdentity,
    { host, ports, key }: { host: string; ports: readonly number[]; key: string },
  ): Promise<TlsTarget> {
    const target = new TlsTarget(memory, own, key);
    let failure: Error | undefined;
    for (const port of ports) {
      failure = await target.#listen(host, port);
      if (!failure) return target;
    }
    await target.close();
    throw failure ?? new Error('no port may be listened on');
  }

  get port(): number {
    const address = this.#server.address();
    return address && typeof address === 'object' ? address.port : 0;
  }

  async connected(): Promise<void> {
    this.#socket = await this.#met;
  }

  expect(
    frames: readonly Frame[],
    { silence_ms }: Patience,
    failed: (error: Error) => void,
  ): () => Promise<number[]> {
    const socket = this.#socket;
    if (!socket || socket.destroyed) throw new Error('the peer is not connected');
    const reception = new Reception(this.#memory, frames);
    this.#reception = reception;
    socket.setTimeout(silence_ms);
    const over = (): void => {
      socket.setTimeout(0);
      if (this.#reception === reception) this.#reception = undefined;
    };
    reception.result.then(over, (error: Error) => {
      over();
      failed(error);
    });
    return () => reception.result;
  }

  async close(): Promise<void> {
    this.#reception?.fail(new Error('it was closed'));
    this.#socket?.destroy();
    if (this.#server.listening) this.#server.close();
    this.#strangers.endAll();
  }

  #take(socket: TLSSocket): void {
    socket.on('data', (bytes: Buffer) => {
      try {
        if (!this.#reception) throw new Error('bytes came that nobody expects');
        this.#reception.take(bytes);
      } catch (error) {
        this.#reception?.fail(error as Error);
        socket.destroy();
      }
    });
    socket.on('timeout', () => this.#reception?.fail(new Error('the peer is silent')));
    socket.on('close', () => this.#reception?.fail(new Error('the peer has closed the connection')));
  }

  #listen(host: string, port: number): Promise<Error | undefined> {
    return new Promise((resolve) => {
      this.#server.once('error', resolve);
      this.#server.listen({ host, port }, () => {
        this.#server.off('error', resolve);
        resolve(undefined);
      });
    });
  }
}
