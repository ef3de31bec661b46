/**
 * The TCP sockets of this host as the kernel lists them, in /proc/net/tcp and tcp6 (proc_net_tcp):
 * `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …`, numbers in hexadecimal
 * but the last three. So a process learns whose process it speaks with, and who has a port that it wants.
 */
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { endianness } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';

const tables = ['/proc/net/tcp', '/proc/net/tcp6'];
/** `0A` of the kernel's tcp_states.h. */
const listening = '0A';

/**
 * 127.0.0.1 as the tables write it, in the order of the machine's bytes; in that of IPv6 as the end of
 * ::ffff:127.0.0.1.
 */
const localhost = endianness() === 'LE' ? '0100007F' : '7F000001';
const mapped = endianness() === 'LE' ? '0000000000000000FFFF0000' : '00000000000000000000FFFF';

/** Pause between two looks at a connection that nobody has accepted yet; it grows to the second. */
const look_ms = [1, 50] as const;

/** Users other than this process's that listen on the port, whatever the address. */
export function othersOnPort(port: number): number[] {
  const found = tables.flatMap((path) => {
    try {
      return listenersIn(readFileSync(path, 'utf8'), port);
    } catch (error) {
      return noTable(error, []);
    }
  });
  return [...new Set(found)].filter((uid) => uid !== process.getuid!());
}

/** User ids of the processes that listen on a port. */
function listenersIn(table: string, port: number): number[] {
  return table
    .split('\n')
    .slice(1)
    .flatMap((line) => {
      const fields = line.trim().split(/\s+/);
      const [, local = '', , state] = fields;
      return state === listening && Number.parseInt(local.split(':')[1] ?? '', 16) === port
        ? [Number(fields[7])]
        : [];
    });
}

/**
 * The user at the other end of a connection from 127.0.0.1:`client_port` to 127.0.0.1:`server_port`, by the row of that
 * end. Undefined as long as no process has accepted it, and the kernel names nobody. Whoever listens on the same port
 * of another address (127.0.0.2, ::1) is no matter.
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
    for (const text of await readTables()) {
      const uid = parsePeer(text, server_port, client_port);
      if (uid !== undefined) return uid;
    }
    await delay(pause_ms, undefined, { signal });
  }
}

let reading: Promise<string[]> | undefined;

/** Both tables; those who ask while they wait to be read share what is read after they asked. */
function readTables(): Promise<string[]> {
  reading ??= Promise.resolve().then(() => {
    const read = Promise.all(
      tables.map((path) => readFile(path, 'utf8').catch((error: unknown) => noTable(error, ''))),
    );
    reading = undefined;
    return read;
  });
  return reading;
}

/** A kernel without IPv6 has one table. */
function noTable<T>(error: unknown, none: T): T {
  if ((error as NodeJS.ErrnoException).code === 'ENOENT') return none;
  throw error;
}
