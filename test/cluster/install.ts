/**
 * Makes sure that Slurm's programs are on this machine: as root on Debian by installing them, else by saying what is
 * missing.
 */
import { execFile } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

const neededPrograms = [
  'slurmctld',
  'slurmd',
  'munged',
  'sbatch',
  'squeue',
  'sinfo',
  'scontrol',
  'scancel',
  'srun',
  'setpriv',
];
const debianPackages = ['slurmctld', 'slurmd', 'slurm-client', 'munge', 'util-linux'];

/** PATH with the folders where daemons live, which an ordinary user's PATH often lacks. */
export function pathWithSbin(path = process.env.PATH ?? ''): string {
  const parts = path.split(delimiter).filter((part) => part !== '');
  for (const extra of ['/usr/local/sbin', '/usr/sbin', '/sbin', '/usr/local/bin', '/usr/bin', '/bin'])
    if (!parts.includes(extra)) parts.push(extra);
  return parts.join(delimiter);
}

/** Full path of a program on PATH (sbin folders included), or undefined. */
export function findProgram(name: string): string | undefined {
  for (const folder of pathWithSbin().split(delimiter)) {
    const candidate = join(folder, name);
    try {
      accessSync(candidate, constants.X_OK);
      return candidate;
    } catch {
      // Not in this folder: try the next.
    }
  }
  return undefined;
}

export function missingPrograms(): string[] {
  return neededPrograms.filter((name) => findProgram(name) === undefined);
}

export type Installation = { ready: true; installed: boolean } | { ready: false; missing: string };

/**
 * Installs what is missing where that is possible. The services that the packages bring are neither used
 * nor configured: the cluster runs daemons of its own, with files of its own.
 */
export async function ensureSlurmInstalled(say: (line: string) => void = () => {}): Promise<Installation> {
  return installPrograms(neededPrograms, debianPackages, say);
}

/** ShellCheck, which the tests of rendered scripts need. */
export function ensureShellcheckInstalled(): Promise<Installation> {
  return installPrograms(['shellcheck'], ['shellcheck']);
}

/** Makes sure that `programs` are there, installing `packages` where root on Debian can. */
export async function installPrograms(
  programs: readonly string[],
  packages: readonly string[],
  say: (line: string) => void = () => {},
): Promise<Installation> {
  const absent = (): string[] => programs.filter((name) => findProgram(name) === undefined);
  return installMissing('programs', absent, packages, say);
}

/** Makes sure that nothing is `absent`, installing `packages` where root on Debian can. */
export async function installMissing(
  kind: string,
  absent: () => string[],
  packages: readonly string[],
  say: (line: string) => void = () => {},
): Promise<Installation> {
  const missing = absent();
  if (missing.length === 0) return { ready: true, installed: false };
  const words = `missing ${kind}: ${missing.join(', ')}`;
  if (process.getuid?.() !== 0 || findProgram('apt-get') === undefined)
    return { ready: false, missing: `${words} (on Debian, root can: apt-get install ${packages.join(' ')})` };
  say(`installing ${packages.join(', ')} with apt-get (${words})`);
  await installDebianPackages(packages);
  const still = absent();
  return still.length === 0
    ? { ready: true, installed: true }
    : { ready: false, missing: `still missing after apt-get install: ${still.join(', ')}` };
}

async function installDebianPackages(packages: readonly string[]): Promise<void> {
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive', RUNLEVEL: '1', PATH: pathWithSbin() };
  const options = { env, timeout: 600_000, maxBuffer: 64 * 1024 * 1024 };
  const aptGet = findProgram('apt-get')!;
  // Somebody else may be installing something.
  const waiting = ['-o', 'DPkg::Lock::Timeout=300'];
  await alone(() => run(aptGet, ['update', '-q', ...waiting], options));
  const keeping = ['--no-install-recommends', '-o', 'Dpkg::Options::=--force-confold'];
  await alone(() => run(aptGet, ['install', '-q', '-y', ...waiting, ...keeping, ...packages], options));
}

/** Lists of packages have a lock that apt-get does not wait for. */
async function alone(act: () => Promise<unknown>): Promise<void> {
  for (let tries = 0; ; tries++)
    try {
      await act();
      return;
    } catch (error) {
      if (tries === 100 || !/Could not get lock|Unable to (lock|acquire)/.test((error as Error).message))
        throw error;
      await delay(3000);
    }
}
