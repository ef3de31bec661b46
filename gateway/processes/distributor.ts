import { createServer, type Server, type Socket } from 'node:net';
import type { Accepting } from '../client-servers.ts';
import type { HeldName } from '../holder/messages.ts';

/** Takes a connection of which nothing was read. */
export type GiveConnection = (name: HeldName, socket: Socket) => void;

/** Accepts what comes in, and gives it away unread: workers answer, and end it. */
export class Distributor implements Accepting {
  readonly servers: Readonly<Record<HeldName, Server>>;

  constructor(give: GiveConnection) {
    const settings = { pauseOnConnect: true, noDelay: true };
    this.servers = {
      port: createServer(settings, (socket) => give('port', socket)),
      socket: createServer(settings, (socket) => give('socket', socket)),
    };
  }

  /**
   * Waits for no connection: workers end what they were given. Node would never say that a server is closed where every
   * process has exited that was given one of its connections: it waits for their replies, and none is left to reply.
   */
  async stopAccepting(): Promise<void> {
    for (const server of Object.values(this.servers)) if (server.listening) server.close();
  }

  closeIdle(): void {}

  closeAll(): void {}
}
