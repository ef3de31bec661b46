import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { HpcserveError } from '../spec/errors/error.ts';
import type { GatewayLog } from './log.ts';

/** Ports tried above a wanted one that is taken, before any free one will do. */
const nextPorts = 50;

export interface WantedAddress {
  host: string;
  /** Chosen by the user: nothing else will do. 0: none chosen. */
  port: number;
  /** The port of the last run, 0 where there was none: clients know it. */
  previous: number;
}

/** Listens where it is wanted, and returns the port. Throws E_GATEWAY_PORT. */
export async function listen(server: Server, wanted: WantedAddress, log: GatewayLog): Promise<number> {
  if (wanted.port !== 0) {
    await listenOn(server, wanted.host, wanted.port);
    return wanted.port;
  }
  if (wanted.previous !== 0) {
    for (let port = wanted.previous; port <= Math.min(65535, wanted.previous + nextPorts); port++) {
      try {
        await listenOn(server, wanted.host, port);
        if (port !== wanted.previous) {
          log.warn(
            { wanted: wanted.previous, port },
            'the port of the last run is taken: clients must use the new URL',
          );
        }
        return port;
      } catch (error) {
        if (!(error instanceof HpcserveError) || error.details.errno !== 'EADDRINUSE') throw error;
      }
    }
  }
  await listenOn(server, wanted.host, 0);
  return (server.address() as AddressInfo).port;
}

function listenOn(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const failed = (error: NodeJS.ErrnoException): void => {
      reject(
        new HpcserveError('E_GATEWAY_PORT', {
          what: `cannot listen on ${host}:${port}`,
          because: error.code === 'EADDRINUSE' ? 'another process listens there' : error.message,
          details: { errno: error.code },
          cause: error,
        }),
      );
    };
    server.once('error', failed);
    server.listen({ host, port, backlog: 1024 }, () => {
      server.off('error', failed);
      resolve();
    });
  });
}
