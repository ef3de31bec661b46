import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';

/** Program and the Debian package that brings it. */
const peers = [
  ['nginx', 'nginx-light'],
  ['wrk', 'wrk'],
  ['taskset', 'util-linux'],
] as const;

export type Program = (typeof peers)[number][0];

/** Paths of the peers; as root on Debian, what is missing is installed first. */
export function ensurePrograms(log: (line: string) => void): Record<Program, string> {
  const missing = peers.filter(([name]) => find(name) === undefined);
  if (missing.length > 0 && process.getuid?.() === 0 && existsSync('/etc/debian_version')) {
    const packages = missing.map(([, debianPackage]) => debianPackage);
    log(`installing ${packages.join(', ')} (apt-get) …`);
    // RUNLEVEL=1: no system-wide nginx is started; the bench runs its own.
    const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive', RUNLEVEL: '1' };
    spawnSync('apt-get', ['update', '-q'], { stdio: ['ignore', 2, 2], env });
    execFileSync('apt-get', ['install', '-y', '-q', '--no-install-recommends', ...packages], {
      stdio: ['ignore', 2, 2],
      env,
    });
  }
  return Object.fromEntries(
    peers.map(([name, debianPackage]) => {
      const path = find(name);
      if (path === undefined) throw new Error(`the gateway bench needs ${name}: install ${debianPackage}`);
      return [name, path];
    }),
  ) as Record<Program, string>;
}

function find(name: string): string | undefined {
  const folders = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', '/usr/local/sbin', '/sbin'];
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}
