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

  closeIdle(): void {}

  closeAll(): void {}
}
