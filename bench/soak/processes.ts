/** The processes of a deployment that must outlive the soak: their memory, and whether each is still the same. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

export interface OwnProcess {
  pid: number;
  /** Since boot, in ticks: with the pid it tells a process from one that took its number. */
  started_ticks: number;
  /** `gateway`, `agent`, `device-worker`, `keeper`. */
  what: string;
}

const programs: readonly [pattern: RegExp, what: string][] = [
  [/dist\/gateway\/main\.js/, 'gateway'],
  [/dist\/agent\/device-worker\/main\.js/, 'device-worker'],
  [/dist\/agent\/main\.js/, 'agent'],
  [/dist\/control\/keeper\/main\.js/, 'keeper'],
];

/**
 * Programs of ours whose arguments name a folder, and what they started.
 * @param folder home of the user whose deployment is meant
 */
export function ownProcesses(folder: string): OwnProcess[] {
  const all = readdirSync('/proc').flatMap((name): (OwnProcess & { parent: number; command: string })[] => {
    if (!/^\d+$/.test(name)) return [];
    try {
      const command = readFileSync(`/proc/${name}/cmdline`, 'utf8').replaceAll('\0', ' ');
      const what = programs.find(([pattern]) => pattern.test(command))?.[1];
      // Shells and steps around a program name it as well.
      if (what === undefined || !/^\S*node /.test(command)) return [];
      const parent = Number(/^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${name}/status`, 'utf8'))![1]);
      return [{ pid: Number(name), started_ticks: startedTicks(name), what, parent, command }];
    } catch {
      return []; // It ended while it was looked at.
    }
  });
  const named = new Set(all.filter(({ command }) => command.includes(folder)).map(({ pid }) => pid));
  return all
    .filter(({ pid, parent }) => named.has(pid) || named.has(parent))
    .map(({ pid, started_ticks, what }) => ({ pid, started_ticks, what }));
}

function startedTicks(pid: string): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]);
}

export function isAlive({ pid, started_ticks }: OwnProcess): boolean {
  try {
    return startedTicks(String(pid)) === started_ticks;
  } catch {
    return false;
  }
}

/** Proportional set size, bytes. @throws where the process is gone */
export function pss_bytes({ pid }: OwnProcess): number {
  const rollup = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  return 1024 * Number(/^Pss:\s+(\d+)/m.exec(rollup)![1]);
}

/** Addresses of TCP on which these processes listen, of this host's network namespace. */
export function listeningPorts(processes: readonly OwnProcess[]): { host: string; port: number }[] {
  const inodes = new Set(processes.flatMap(({ pid }) => socketInodes(pid)));
  const rows = readFileSync('/proc/net/tcp', 'utf8').trim().split('\n').slice(1);
  return rows.flatMap((row) => {
    const [, local, , state, , , , , , inode] = row.trim().split(/\s+/);
    if (state !== '0A' || !inodes.has(inode!)) return [];
    return [{ host: '127.0.0.1', port: Number.parseInt(local!.split(':')[1]!, 16) }];
  });
}

function socketInodes(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((descriptor) => {
    try {
      return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${descriptor}`))?.[1] ?? [];
    } catch {
      return []; // It was closed meanwhile.
    }
  });
}
