import type { Socket } from 'node:net';
import { ClientServers } from '../client-servers.ts';
import type { HeldName } from '../holder/messages.ts';
import { refuseConnection } from '../refuse-connection.ts';

/** Between two looks for connections on which nothing is under way, while a worker drains. */
const look_ms = 50;

/** Where a worker answers: on connections that the primary accepted. It listens nowhere. */
export class WorkerPort extends ClientServers {
  readonly #open = new Set<Socket>();
  #onEmpty: (() => void) | undefined;
  readonly #onEnd: () => void;
  readonly #tls: boolean;

  /** @param onEnd of each connection */
  constructor(onEnd: () => void, ...options: ConstructorParameters<typeof ClientServers>) {
    super(...options);
    this.#onEnd = onEnd;
    this.#tls = options[2] !== undefined;
    const { port } = this.servers;
    port.on('clientError', (error, client) => refuseConnection(error, client as Socket));
    // Node's servers look after the time that requests take from when they listen.
    for (const server of Object.values(this.servers)) server.emit('listening');
  }

  /** Answers on a connection from now on. */
  take(name: HeldName, socket: Socket): void {
    const server = this.servers[name];
    this.#open.add(socket);
    socket.once('close', () => this.#ended(socket));
    // A client may have said all before it is answered; over TLS the end is the end, as with servers that listen.
    socket.allowHalfOpen = name !== 'port' || !this.#tls;
    server.emit('connection', socket);
  }

  /** Waits until every answer has ended, or cuts them off after `drain_ms`. */
  async drain(drain_ms: number): Promise<void> {
    if (this.#open.size === 0) return;
    const empty = new Promise<void>((resolve) => {
      this.#onEmpty = resolve;
    });
    this.closeIdle();
    const idle = setInterval(() => this.closeIdle(), look_ms);
    const limit = setTimeout(() => {
      for (const socket of this.#open) socket.destroy();
    }, drain_ms);
    await empty;
    clearInterval(idle);
    clearTimeout(limit);
  }

  #ended(socket: Socket): void {
    this.#open.delete(socket);
    this.#onEnd();
    if (this.#open.size === 0) this.#onEmpty?.();
  }
}
