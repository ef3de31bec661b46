import { spawnSync } from 'node:child_process';
import { basename, join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { MissingNeed } from './need.ts';

/**
 * Compiles a program of the benches that has to be in C.
 *
 * @param source its path within the project
 * @param libraries as the linker calls them, such as `m`
 * @returns the path of the program
 * @throws MissingNeed where there is no compiler, or it takes offence
 */
export function compileProgram(source: string, folder: string, libraries: readonly string[] = []): string {
  const program = join(folder, basename(source, '.c'));
  const links = libraries.map((name) => `-l${name}`);
  const compiler = process.env.CC || 'cc';
  const args = ['-O3', '-o', program, join(packageRoot, source), ...links];
  const { status, stderr, error } = spawnSync(compiler, args, { encoding: 'utf8' });
  if (status !== 0)
    throw new MissingNeed(`${source} does not compile: ${stderr ?? error?.message}`, 'install a C compiler');
  return program;
}
