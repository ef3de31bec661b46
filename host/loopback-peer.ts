/**
 * Whose process is at the other end of a connection over loopback, as the kernel says it: the row of that end in
 * /proc/net/tcp or tcp6. Whoever listens on the same port of another address (127.0.0.2, ::1) is no matter.
 */
import { readFile } from 'node:fs/promises';
import { endianness } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';

/** 127.0.0.1 as the tables write it, in the order of the machine's bytes; in that of IPv6 as the end of ::ffff:127.0.0.1. */
const localhost = endianness() === 'LE' ? '0100007F' : '7F000001';
const mapped = endianness() === 'LE' ? '0000000000000000FFFF0000' : '00000000000000000000FFFF';

/** Pause between two looks at a connection that nobody has accepted yet; it grows to the second. */
const look_ms = [1, 50] as const;

/**
 * The user at the other end of a connection from 127.0.0.1:`client_port` to 127.0.0.1:`server_port`; undefined as long as
 * no process has accepted it, and the kernel names nobody. From the text of /proc/net/tcp or tcp6:
 * `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …`, numbers in hexadecimal
 * but the last three.
 */
export function parsePeer(text: string, server_port: number, client_port: number): number | undefined {
  const [server, client] = [server_port, client_port].map(
    (port) => `${localhost}:${port.toString(16).toUpperCase().padStart(4, '0')}`,
  ) as [string, string];
  // Most of the table is of others: its lines are looked for, not taken apart.
  for (const [local, remote] of [
    [server, client],
    [mapped + server, mapped + client],
  ] as const) {
    const at = text.indexOf(`: ${local} ${remote} `);
    if (at < 0) continue;
    const fields = text.slice(at + 2, text.indexOf('\n', at)).split(/\s+/);
    const [uid, inode] = [fields[6], fields[8]];
    if (uid !== undefined && inode !== undefined && inode !== '0') return Number(uid);
  }
  return undefined;
}

/**
 * The same of the connections of this host now, once a process has accepted it.
 * @param signal gives up: the connection is gone
 */
export async function peerOf(server_port: number, client_port: number, signal: AbortSignal): Promise<number> {
  for (let pause_ms: number = look_ms[0]; ; pause_ms = Math.min(2 * pause_ms, look_ms[1])) {
    for (const text of await tables()) {
      const uid = parsePeer(text, server_port, client_port);
      if (uid !== undefined) return uid;
    }
    await delay(pause_ms, undefined, { signal });
  }
}

let reading: Promise<string[]> | undefined;

/** Both tables; those who ask while they wait to be read share what is read after they asked. */
function tables(): Promise<string[]> {
  reading ??= Promise.resolve().then(() => {
    const read = Promise.all(['/proc/net/tcp', '/proc/net/tcp6'].map(readTable));
    reading = undefined;
    return read;
  });
  return reading;
}

async function readTable(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return ''; // a host without IPv6
    throw error;
  }
}
