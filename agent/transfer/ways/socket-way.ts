/** Bytes over a TCP connection that is not encrypted, by sendfile or as ordinary writes, on native threads. */
import { randomBytes } from 'node:crypto';
import type { TransferMemory } from '../../../native/fabric/memory.ts';
import {
  closeSocket,
  type Listener,
  listenOn,
  Mover,
  type Patience,
  shutdownSocket,
  ticket_bytes,
} from '../../../native/fabric/mover.ts';
import { meeting_ms } from '../limits.ts';
import type { Way } from '../messages.ts';
import type { Frame, SourceEnd, TargetEnd } from './way.ts';

/** The end that sends; its thread sends one run after the other. */
export class SocketSource implements SourceEnd {
  readonly way: Way;
  readonly #mover: Mover;
  readonly #socket: number;
  #closing: Promise<void> | undefined;

  private constructor(way: Way, mover: Mover, socket: number) {
    this.way = way;
    this.#mover = mover;
    this.#socket = socket;
  }

  /** @throws MoveFailure */
  static async connect(
    way: Way,
    memory: TransferMemory,
    { host, port, shown, expected }: { host: string; port: number; shown: Buffer; expected: Buffer },
  ): Promise<SocketSource> {
    const mover = new Mover(memory);
    try {
      const socket = await mover.connect(host, port, shown, expected, meeting_ms);
      return new SocketSource(way, mover, socket);
    } catch (error) {
      await mover.close();
      throw error;
    }
  }

  get description(): string {
    return this.way === 'sendfile' ? 'sendfile' : 'tcp, not encrypted';
  }

  async send({ header, pieces }: Frame, _places: unknown, patience: Patience): Promise<number> {
    const how = { sendfile: this.way === 'sendfile', checksum: true };
    return (await this.#mover.send(this.#socket, header, pieces, patience, how)).checksum;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    shutdownSocket(this.#socket);
    await this.#mover.close();
    closeSocket(this.#socket);
  }
}

/** Listens for one peer, for as long as meeting may take. */
export class SocketTarget implements TargetEnd {
  readonly port: number;
  /** What the peer has to show, and is shown. */
  readonly answer = randomBytes(ticket_bytes);
  readonly tellsPlaces = false;
  readonly description: string;
  readonly #mover: Mover;
  readonly #accepted: Promise<number>;
  #socket: number | undefined;
  #closing: Promise<void> | undefined;

  /** @throws MoveFailure: no port is free */
  constructor(
    memory: TransferMemory,
    { way, host, ports, expected }: { way: Way; host: string; ports: readonly number[]; expected: Buffer },
  ) {
    this.description = way === 'sendfile' ? 'sendfile' : 'tcp, not encrypted';
    const listener = listenOnAny(host, ports);
    this.port = listener.port;
    this.#mover = new Mover(memory);
    this.#accepted = this.#mover
      .accept(listener.socket, expected, this.answer, meeting_ms)
      .finally(() => closeSocket(listener.socket));
    // Nobody may come to ask.
    this.#accepted.catch(() => undefined);
  }

  async connected(): Promise<void> {
    this.#socket = await this.#accepted;
  }

  expect(
    frames: readonly Frame[],
    patience: Patience,
    failed: (error: Error) => void,
  ): () => Promise<number[]> {
    const socket = this.#socket;
    if (socket === undefined) throw new Error('nobody has connected');
    const received = Promise.all(
      frames.map(async ({ header, pieces }) => {
        const came = await this.#mover.receive(socket, header, pieces, patience);
        return came.checksum;
      }),
    );
    received.catch(failed);
    return () => received;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    if (this.#socket !== undefined) shutdownSocket(this.#socket);
    await this.#mover.close();
    // It may have been accepted by somebody who did not wait for it.
    const socket = this.#socket ?? (await this.#accepted.catch(() => undefined));
    if (socket !== undefined) closeSocket(socket);
  }
}

/**
 * @param ports [0]: any that is free
 * @throws MoveFailure: none is
 */
function listenOnAny(host: string, ports: readonly number[]): Listener {
  let failure: unknown = new Error('no port may be listened on');
  for (const port of ports)
    try {
      return listenOn(host, port);
    } catch (error) {
      failure = error;
    }
  throw failure;
}
