import type { AddressInfo, ListenOptions, Server } from 'node:net';
import { othersOnPort } from '../host/tcp-table.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { TakenPort } from '../spec/state-layout.ts';
import type { GatewayLog } from './log.ts';

/** Ports tried above a wanted one that is taken, before any free one will do. */
const next_ports_max = 50;
/** Connections that may wait until they are accepted, also while no gateway runs; the kernel has a bound of its own. */
const backlog = 1024;

export interface WantedAddress {
  host: string;
  /** Chosen by the user: nothing else will do. 0: none chosen. */
  port: number;
  /** The port of the last run, 0 where there was none: clients know it. */
  previous: number;
}

export interface Listening {
  port: number;
  /** The port of the last run was another user's. */
  taken?: TakenPort | undefined;
}

/**
 * Listens where it is wanted. Throws E_GATEWAY_PORT, with `TakenPort` in its details where another user has the port.
 */
export async function listen(server: Server, wanted: WantedAddress, log: GatewayLog): Promise<Listening> {
  if (wanted.port !== 0) {
    await listenOn(server, wanted.host, wanted.port);
    return { port: wanted.port };
  }
  let taken: TakenPort | undefined;
  if (wanted.previous !== 0) {
    for (let port = wanted.previous; port <= Math.min(65535, wanted.previous + next_ports_max); port++) {
      try {
        await listenOn(server, wanted.host, port);
        if (port !== wanted.previous) {
          log.warn(
            { wanted: wanted.previous, port },
            'the port of the last run is taken: clients must use the new URL',
          );
        }
        return { port, taken };
      } catch (error) {
        if (!(error instanceof HpcserveError) || error.details.errno !== 'EADDRINUSE') throw error;
        if (port === wanted.previous) taken = error.details.taken as TakenPort | undefined;
      }
    }
  }
  await listenOn(server, wanted.host, 0);
  return { port: (server.address() as AddressInfo).port, taken };
}

function listenOn(server: Server, host: string, port: number): Promise<void> {
  return startListening(server, { host, port }, `${host}:${port}`, port);
}

/** Listens by any way that Node knows. @throws HpcserveError E_GATEWAY_PORT */
export function startListening(
  server: Server,
  way: Pick<ListenOptions, 'host' | 'port' | 'path'> | { fd: number },
  name: string,
  port?: number,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const failed = (error: NodeJS.ErrnoException): void => {
      const [uid] = error.code === 'EADDRINUSE' && port !== undefined ? othersOnPort(port) : [];
      const taken =
        uid === undefined ? undefined : ({ port: port!, uid, found_at_ms: Date.now() } satisfies TakenPort);
      reject(
        new HpcserveError('E_GATEWAY_PORT', {
          what: `cannot listen on ${name}`,
          because:
            error.code === 'EADDRINUSE'
              ? `another process listens there${taken ? `, of the user with id ${taken.uid}` : ''}`
              : error.message,
          details: { errno: error.code, taken },
          cause: error,
        }),
      );
    };
    server.once('error', failed);
    // Not among the options: with a descriptor Node takes it from nowhere else.
    server.listen(way, backlog, () => {
      server.off('error', failed);
      resolve();
    });
  });
}
