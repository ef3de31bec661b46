/** Finding, waiting for and ending the processes of a private cluster, by /proc. */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';

export interface FoundProcess {
  pid: number;
  command: string;
}

/** Set in the environment of every daemon we start; slurmstepd inherits it. */
export const daemonMarker = 'HPCSERVE_CLUSTER_DAEMON';

/** Daemons (and step daemons) of the cluster in `base`. */
export function daemonProcesses(base: string): FoundProcess[] {
  return processesWhere((environment) => environment.get(daemonMarker) === base);
}

/** Processes that jobs of the cluster with this slurm.conf started, even those that left their job's process group. */
export function jobProcesses(slurmConf: string): FoundProcess[] {
  return processesWhere(
    (environment) => environment.get('SLURM_CONF') === slurmConf && environment.has('SLURM_JOB_ID'),
  );
}

function processesWhere(matches: (environment: Map<string, string>) => boolean): FoundProcess[] {
  const found: FoundProcess[] = [];
  for (const name of readdirSync('/proc')) {
    const pid = Number(name);
    if (!Number.isInteger(pid) || pid === process.pid) continue;
    try {
      const environment = new Map(
        readFileSync(`/proc/${pid}/environ`, 'utf8')
          .split('\0')
          .filter((entry) => entry.includes('='))
          .map((entry): [string, string] => {
            const at = entry.indexOf('=');
            return [entry.slice(0, at), entry.slice(at + 1)];
          }),
      );
      if (!matches(environment) || isZombie(pid)) continue;
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').join(' ').trim();
      found.push({ pid, command });
    } catch (error) {
      // Gone meanwhile, or another user's: not ours then.
      if (!isGone(error)) throw error;
    }
  }
  return found;
}

/** Whether a process with this id lives (a zombie does not). */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EPERM') return false;
  }
  return !isZombie(pid);
}

function isZombie(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).startsWith('Z');
  } catch (error) {
    if (isGone(error)) return true;
    throw error;
  }
}

function isGone(error: unknown): boolean {
  return ['ENOENT', 'ESRCH', 'EACCES', 'EPERM'].includes((error as NodeJS.ErrnoException).code ?? '');
}

/** Sends `first` to each, waits, and kills what is left. Returns those that had to be killed. */
export async function endProcesses(
  pids: readonly number[],
  first: NodeJS.Signals,
  patience_ms: number,
): Promise<number[]> {
  for (const pid of pids) signal(pid, first);
  if (await waitUntil(() => pids.every((pid) => !isAlive(pid)), patience_ms)) return [];
  const stubborn = pids.filter(isAlive);
  for (const pid of stubborn) signal(pid, 'SIGKILL');
  await waitUntil(() => stubborn.every((pid) => !isAlive(pid)), 5_000);
  return stubborn;
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/** Takes away what is mounted in a folder, the innermost first: slurmd leaves its private folders mounted. */
export function unmountBelow(folder: string): void {
  const mounted = readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .map((line) => line.split(' ')[4] ?? '')
    .filter((path) => path.startsWith(`${folder}/`));
  for (const path of mounted.reverse()) execFileSync('umount', ['--lazy', path]);
}

/** Asks for `condition` again and again until it holds (true) or `timeout_ms` have passed (false). */
export async function waitUntil(
  condition: () => boolean | Promise<boolean>,
  timeout_ms: number,
  interval_ms = 25,
): Promise<boolean> {
  const deadline = Date.now() + timeout_ms;
  for (;;) {
    if (await condition()) return true;
    if (Date.now() > deadline) return false;
    await delay(interval_ms);
  }
}
