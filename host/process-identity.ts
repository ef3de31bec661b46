/**
 * Processes by pid and start time, so that a pid that was used again is never taken for the old process.
 * From /proc (proc_pid_stat(5)); the local site runs on Linux.
 */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

export interface ProcessIdentity {
  pid: number;
  /** Field 22 of /proc/PID/stat: clock ticks between boot and start. */
  start_ticks: number;
  /** /proc/sys/kernel/random/boot_id: start ticks count from a boot. */
  boot_id: string;
}

interface ProcessStat {
  /** Of its program, as it may have changed it; at most 15 characters. */
  name: string;
  state: string;
  parent: number;
  session: number;
  start_ticks: number;
  /** In user and in kernel mode, all threads. */
  cpu_ticks: number;
}

/** @returns undefined where there is no such process. */
export function readProcessStat(pid: number): ProcessStat | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ESRCH') return undefined;
    throw error;
  }
  // The second field is the command in parentheses and may itself hold spaces and parentheses.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return {
    name: text.slice(text.indexOf('(') + 1, text.lastIndexOf(')')),
    state: fields[0]!,
    parent: Number(fields[1]),
    session: Number(fields[3]),
    start_ticks: Number(fields[19]),
    cpu_ticks: Number(fields[11]) + Number(fields[12]),
  };
}

/** The same of any process; undefined also where nodes hide it (hidepid of proc(5)), as they do those of others. */
export function readShownStat(pid: number): ProcessStat | undefined {
  try {
    return readProcessStat(pid);
  } catch (error) {
    if (['EPERM', 'EACCES'].includes((error as NodeJS.ErrnoException).code!)) return undefined;
    throw error;
  }
}

export function bootId(): string {
  return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
}

/** The numbers of processes count within it (pid_namespaces(7)); containers of one host may have different ones. */
export function pidNamespace(): string {
  return readlinkSync('/proc/self/ns/pid');
}

/** @returns undefined where the process is gone already. */
export function identityOf(pid: number): ProcessIdentity | undefined {
  const stat = readProcessStat(pid);
  return stat && { pid, start_ticks: stat.start_ticks, boot_id: bootId() };
}

/** Whether this very process still runs; a zombie does not. */
export function isAlive(identity: ProcessIdentity): boolean {
  if (identity.boot_id !== bootId()) return false;
  const stat = readProcessStat(identity.pid);
  return stat !== undefined && stat.state !== 'Z' && stat.start_ticks === identity.start_ticks;
}

/** Pids of all living processes of a session (setsid(2)), the leader included. */
export function processesOfSession(session: number): number[] {
  return allPids().filter((pid) => {
    const stat = readShownStat(pid);
    return stat !== undefined && stat.session === session && stat.state !== 'Z';
  });
}

/** Living children of a process. */
export function childrenOf(parent: number): number[] {
  return allPids().filter((pid) => {
    const stat = readShownStat(pid);
    return stat !== undefined && stat.parent === parent && stat.state !== 'Z';
  });
}

/** Pids with a command-line argument that `matches`; processes of others that may not be read are left out. */
export function processesWithArgument(matches: (argument: string) => boolean): number[] {
  return allPids().filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').some(matches);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (['ENOENT', 'ESRCH', 'EACCES', 'EPERM'].includes(code!)) return false;
      throw error;
    }
  });
}

function allPids(): number[] {
  return readdirSync('/proc')
    .filter((name) => /^[0-9]+$/.test(name))
    .map(Number);
}

/** Sends a signal; a process that is gone already is no error. */
export function signalProcess(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}
