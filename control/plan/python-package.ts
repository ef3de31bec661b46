import { existsSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { programFolder } from '../state/site-files.ts';

/**
 * Whether the python3 that a shell would find has a package, by the folders in which its packages lie: it is not
 * started for that. A virtual environment has its own; the system's has those of the machine and of the person.
 */
export function pythonPackageOnPath(
  name: string,
  environment: Readonly<Record<string, string | undefined>>,
): boolean {
  const folder = programFolder('python3', environment);
  if (folder === undefined) return false;
  const prefix = dirname(folder);
  const roots = [prefix];
  if (prefix === '/usr' || prefix === '/') roots.push('/usr/local');
  if (!existsSync(join(prefix, 'pyvenv.cfg')) && environment.HOME !== undefined)
    roots.push(join(environment.HOME, '.local'));
  return roots.some((root) => packageFolders(root).some((packages) => existsSync(join(packages, name))));
}

function packageFolders(root: string): string[] {
  return ['lib', 'lib64'].flatMap((lib) => {
    const folder = join(root, lib);
    if (!existsSync(folder)) return [];
    return readdirSync(folder)
      .filter((name) => /^python3(\.\d+)?$/.test(name))
      .flatMap((name) => ['site-packages', 'dist-packages'].map((kind) => join(folder, name, kind)));
  });
}
