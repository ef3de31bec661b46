/** Ports for programs that are told where to listen, and do so a while later. */
import { randomInt } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:net';

/** Below are those of well-known services. */
const port_min = 10_000;
/** Few of these ports are taken at a time. */
const attempts_max = 100;

/**
 * A port of loopback on which nobody listens. It is none that the system hands out by itself: until it is bound, a
 * connection or a server of another suite may be given one of those.
 */
export async function freePort(): Promise<number> {
  const range = readFileSync('/proc/sys/net/ipv4/ip_local_port_range', 'utf8');
  const handedOut_min = Number(range.split('\t')[0]);
  if (handedOut_min <= port_min)
    throw new Error(`no port from ${port_min} on is kept from connections: ip_local_port_range is ${range}`);
  for (let attempt = 0; attempt < attempts_max; attempt++) {
    const port = randomInt(port_min, handedOut_min);
    if (await canListen(port)) return port;
  }
  throw new Error(`${attempts_max} ports between ${port_min} and ${handedOut_min} are taken`);
}

/** As many, all of them different. */
export async function freePorts(count: number): Promise<number[]> {
  const ports = new Set<number>();
  while (ports.size < count) ports.add(await freePort());
  return [...ports];
}

function canListen(port: number): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(false);
      else reject(error);
    });
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
