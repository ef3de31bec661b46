import type { Socket } from 'node:net';

/**
 * Connections of which nobody has shown yet that he may be there, oldest first. Who holds such connections open keeps
 * nobody out where the oldest ends for a new one: who belongs shows so within moments. Nothing is counted by address,
 * since tunnels and proxies share one.
 */
export class UnauthenticatedSockets {
  /** By remote address and port, which a TLS connection has in common with the TCP connection below it. */
  readonly #sockets = new Map<string, Socket>();

  get size(): number {
    return this.#sockets.size;
  }

  /** A connection that came in, before anything is read from it. */
  add(socket: Socket): void {
    const name = remoteName(socket);
    this.#sockets.set(name, socket);
    socket.once('close', () => {
      if (this.#sockets.get(name) === socket) this.#sockets.delete(name);
    });
  }

  /** It has shown that it belongs here. */
  prove(socket: Socket): void {
    this.#sockets.delete(remoteName(socket));
  }

  /** @returns the one that ended, if there was one */
  endOldest(): Socket | undefined {
    const [oldest] = this.#sockets;
    if (!oldest) return undefined;
    const [name, socket] = oldest;
    this.#sockets.delete(name);
    return socket.destroy();
  }

  endAll(): void {
    while (this.endOldest());
  }
}

function remoteName({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress} ${remotePort}`;
}
