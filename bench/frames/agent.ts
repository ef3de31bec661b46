/**
 * Child process of the bench: an agent between a stage and one on another node. What comes to its unix socket goes on
 * over TLS with pinned keys, and what comes by TLS to the stage of its own node.
 */

import type { AddressInfo } from 'node:net';
import { createConnection, createServer as createUnixServer, type Socket } from 'node:net';
import { createServer, type TLSSocket } from 'node:tls';
import { pinnedConnectAt, SessionIdentity, sessionTlsServerOptions } from '../../mesh/index.ts';

/** How the other one reaches it. */
export interface AgentPlace {
  port: number;
  session_id: string;
  public_key: string;
}

/** Where stages of its node find it, and where it finds the one that it passes frames to. */
export interface AgentWays {
  listen: string;
  stage: string;
  other: AgentPlace;
}

const own = await SessionIdentity.create();
let ways: AgentWays | undefined;

function join(a: Socket | TLSSocket, b: Socket | TLSSocket): void {
  for (const [from, to] of [
    [a, b],
    [b, a],
  ] as const) {
    from.on('error', () => from.destroy());
    from.once('close', () => to.destroy());
    from.pipe(to);
  }
}

const server = createServer({ ...sessionTlsServerOptions(() => own), noDelay: true }, (socket) => {
  const stage = createConnection(ways!.stage);
  join(socket, stage);
});
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address() as AddressInfo;
  const public_key = Buffer.from(own.public_key).toString('base64');
  process.send!({ port, session_id: own.session_id, public_key } satisfies AgentPlace);
});

process.on('message', (message: AgentWays | 'cpu') => {
  if (message === 'cpu') {
    process.send!(process.cpuUsage());
    return;
  }
  ways = message;
  const { port, session_id, public_key } = message.other;
  createUnixServer({ pauseOnConnect: true }, (socket) => {
    socket.on('error', () => socket.destroy());
    pinnedConnectAt({ host: '127.0.0.1', port }, { session_id, public_key }, own, 5000).then(
      (way) => join(way, socket),
      () => socket.destroy(),
    );
  }).listen(message.listen);
});
