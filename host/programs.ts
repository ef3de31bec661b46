/**
 * The programs that the build writes. Each is there twice: as the compiler wrote it, in hundreds of modules, and in one
 * file, packages included, which Node finds and reads in a quarter of the time. On a parallel filesystem, where each
 * module is a request to a metadata server and a hundred nodes start at once, the difference is larger.
 */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { packageRoot } from './package-root.ts';

/** A file that the compiler wrote, by its path within the sources: `agent/main.js`. */
export const compiledFile = (path: string): string => join(packageRoot, 'dist', path);

/**
 * Runs a long-lived program from its one file where that is as new as what was compiled, else as compiled. It is read
 * whole at once, so that a build that replaces it breaks nothing that runs.
 * @param name of the file in dist/bundle, without its extension
 */
export async function runProgram(name: string, asCompiled: () => Promise<unknown>): Promise<void> {
  const bundle = compiledFile(join('bundle', `${name}.js`));
  // An archive has no stamp of the compiler.
  const isFresh = (written_ms(bundle) ?? 0) >= (written_ms(compiledFile('.tsbuildinfo')) ?? 1);
  await (isFresh ? import(pathToFileURL(bundle).href) : asCompiled());
}

const written_ms = (path: string): number | undefined => statSync(path, { throwIfNoEntry: false })?.mtimeMs;
