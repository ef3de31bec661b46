/** Virtual environments of Python. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
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
