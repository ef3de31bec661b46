/** Compiles a library of ours, where there is a compiler; nothing is compiled anew that did not change. */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';

export interface CLibrary {
  /** Folder of its sources; headers beside them count as well. */
  sources: string;
  files: readonly string[];
  flags: readonly string[];
  /** What the compiler is told of every library of the language. Default: `plain_c`. */
  language?: readonly string[];
  /** Of the linker, behind the objects. */
  links: readonly string[];
  /** Path of the library; its folder is made. */
  library: string;
}

const plain_c = ['-std=gnu11', '-fPIC', '-fvisibility=hidden', '-shared', '-Wall', '-Wextra'];

/** @throws Error in the compiler's words; then there is no library */
export function compileLibrary(
  { sources, files, flags, language = plain_c, links, library }: CLibrary,
  compiler: string,
): void {
  const version = spawnSync(compiler, ['--version'], { encoding: 'utf8' });
  const hash = createHash('sha256').update(JSON.stringify([version.stdout, files, flags, language, links]));
  for (const file of readdirSync(sources).sort()) hash.update(file).update(readFileSync(join(sources, file)));
  const wanted = hash.digest('hex');
  const stamp = `${library}.compiled`;
  if (existsSync(library) && existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) return;
  mkdirSync(dirname(library), { recursive: true });
  const work = mkdtempSync(join(dirname(library), 'work-'));
  try {
    const compiled = join(work, basename(library));
    const paths = files.map((file) => join(sources, file));
    runCompiler(compiler, [...language, ...flags, '-o', compiled, ...paths, ...links]);
    renameSync(compiled, library);
    writeFileSync(stamp, wanted);
  } catch (error) {
    rmSync(library, { force: true });
    throw error;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** @throws Error with the first error that it prints */
export function runCompiler(program: string, args: readonly string[]): void {
  const { status, stderr, error } = spawnSync(program, args, { encoding: 'utf8' });
  if (status === 0) return;
  const first = (stderr ?? '').split('\n').find((line) => line.includes('error'));
  throw new Error(`${program}: ${first ?? error?.message ?? `status ${status}`}`);
}
