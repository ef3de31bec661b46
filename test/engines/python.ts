/** Virtual environments of Python. */
import { readdirSync, realpathSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { run } from './making.ts';

/** pip of an environment, as it is configured on this machine; resolves to what it wrote. @throws NotHere */
export function pipOf(folder: string): (...args: string[]) => Promise<string> {
  const python = join(folder, 'bin/python3');
  return (...args) => run([python, '-m', 'pip', '--disable-pip-version-check', ...args]);
}

/** Where an environment keeps its packages. */
export function sitePackagesOf(folder: string): string {
  const library = join(folder, 'lib');
  const version = readdirSync(library).find((name) => name.startsWith('python'))!;
  return join(library, version, 'site-packages');
}

/** Whether every user of this machine may run a program: it, and each folder on the way to it. */
export function mayBeRunByOthers(program: string): boolean {
  const ways = [program, realpathSync(program)];
  return ways.every((way) => {
    for (let path = way; ; path = dirname(path)) {
      if ((statSync(path).mode & 0o001) === 0) return false;
      if (path === dirname(path)) return true;
    }
  });
}
