import { readFile } from 'node:fs/promises';

/** State LISTEN in /proc/net/tcp (include/net/tcp_states.h). */
const listening = '0A';

/**
 * User ids that listen on a TCP port of this host, on whatever address; from the text of /proc/net/tcp or tcp6:
 * `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid …`, numbers in hexadecimal but the uid.
 */
export function parseListeners(text: string, port: number): number[] {
  const suffix = `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  const users: number[] = [];
  for (const line of text.split('\n').slice(1)) {
    const fields = line.trim().split(/\s+/);
    if (fields[3] === listening && fields[1]!.endsWith(suffix)) users.push(Number(fields[7]));
  }
  return users;
}

/** The user ids that listen on a port of this host now. */
export async function listenersOf(port: number): Promise<number[]> {
  const texts = await Promise.all(
    ['/proc/net/tcp', '/proc/net/tcp6'].map((path) =>
      readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT') return ''; // a host without IPv6
        throw error;
      }),
    ),
  );
  return texts.flatMap((text) => parseListeners(text, port));
}
