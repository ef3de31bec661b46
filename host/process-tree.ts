/** A process and all that it started, as the kernel counts them in /proc. */
import { readdirSync, readFileSync } from 'node:fs';
import { setImmediate as turn } from 'node:timers/promises';
import {
  identityOf,
  isAlive,
  type ProcessIdentity,
  readProcessStat,
  readShownStat,
} from './process-identity.ts';

/** USER_HZ, in which /proc counts processor time: 100 on every architecture that Node runs on. */
const tick_ms = 10;
/** Processes looked at before others of this process get their turn. */
const batch = 64;

/**
 * Pids of a process, of its session, and of what either started, however it left the session. What has lost its parent
 * and its session is not found.
 */
export async function processTree(leader: number): Promise<number[]> {
  const pids = readdirSync('/proc')
    .filter((name) => /^[0-9]+$/.test(name))
    .map(Number);
  const children = new Map<number, number[]>();
  const found = new Set<number>();
  for (const [at, pid] of pids.entries()) {
    if (at % batch === batch - 1) await turn();
    const stat = readShownStat(pid);
    if (stat === undefined || stat.state === 'Z') continue;
    if (pid === leader || stat.session === leader) found.add(pid);
    children.set(stat.parent, [...(children.get(stat.parent) ?? []), pid]);
  }
  // A set grows while it is walked.
  for (const pid of found) for (const child of children.get(pid) ?? []) found.add(child);
  return [...found];
}

/** The same, as they can be told from later processes of their numbers. */
export async function identitiesOfTree(leader: number): Promise<ProcessIdentity[]> {
  const pids = await processTree(leader);
  return pids.flatMap((pid) => identityOf(pid) ?? []);
}

/** SIGKILL to those that still live. @returns these */
export function killAll(processes: readonly ProcessIdentity[]): ProcessIdentity[] {
  return processes.filter((each) => {
    if (!isAlive(each)) return false;
    try {
      process.kill(each.pid, 'SIGKILL');
    } catch (error) {
      // It ended in this moment, or is another user's since it changed who it is.
      if (!['ESRCH', 'EPERM'].includes((error as NodeJS.ErrnoException).code!)) throw error;
      return false;
    }
    return true;
  });
}

interface ProcessActivity {
  /** What it calls itself; a program may change it. */
  name: string;
  /** By SIGSTOP, or by its terminal; not by a debugger. */
  is_stopped: boolean;
  /** Processor time of all its threads, since it began. */
  cpu_ms: number;
}

/** @returns undefined where it has ended */
export function readActivity(pid: number): ProcessActivity | undefined {
  const stat = readProcessStat(pid);
  if (stat === undefined || stat.state === 'Z') return undefined;
  return { name: stat.name, is_stopped: stat.state === 'T', cpu_ms: stat.cpu_ticks * tick_ms };
}

/**
 * Bytes that a process has read with system calls, from wherever (`rchar` of proc_pid_io(5)); 0 where that may not be
 * read, or it has ended.
 */
export function readCharacters(pid: number): number {
  return Number(/^rchar: (\d+)$/m.exec(readIfAllowed(`/proc/${pid}/io`))?.[1] ?? 0);
}

/**
 * Memory of processes that they do not have from files, in bytes: what each has for itself, and what most of it shares
 * with others, once. What may not be read, or has ended, counts nothing.
 */
export function ownMemoryOf(pids: readonly number[]): number {
  let own_bytes = 0;
  let shared_bytes = 0;
  for (const pid of pids) {
    const status = readIfAllowed(`/proc/${pid}/status`);
    const bytes = (field: string): number =>
      1024 * Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1] ?? 0);
    own_bytes += bytes('RssAnon');
    shared_bytes = Math.max(shared_bytes, bytes('RssShmem'));
  }
  return own_bytes + shared_bytes;
}

/** Bytes of mapped files below a folder (or of that file) that are in a process's memory; 0 as above. */
export function residentOfFiles(pid: number, path: string): number {
  let isOne = false;
  let bytes = 0;
  for (const line of readIfAllowed(`/proc/${pid}/smaps`).split('\n')) {
    const mapped = /^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)$/.exec(line)?.[1];
    if (mapped !== undefined) isOne = mapped === path || mapped.startsWith(`${path}/`);
    else if (isOne && line.startsWith('Rss:')) bytes += 1024 * Number(/\d+/.exec(line)![0]);
  }
  return bytes;
}

function readIfAllowed(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ESRCH' || code === 'EACCES' || code === 'EPERM') return '';
    throw error;
  }
}
