import { readFileSync } from 'node:fs';

/** `0A` of the kernel's tcp_states.h. */
const listening = '0A';

/** User ids of the processes that listen on a TCP port, from the text of /proc/net/tcp or tcp6 (proc_net_tcp). */
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

/** Users other than this process's that listen on the port, whatever the address. */
export function othersOnPort(port: number): number[] {
  const found = ['/proc/net/tcp', '/proc/net/tcp6'].flatMap((path) => {
    try {
      return listenersIn(readFileSync(path, 'utf8'), port);
    } catch (error) {
      // A kernel without IPv6.
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw error;
    }
  });
  return [...new Set(found)].filter((uid) => uid !== process.getuid!());
}
