/** The libraries that move KV (native/fabric), compiled once more for the archive's architecture and older systems. */
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { fabricLibraryFile, transferLibraryFile } from '../../native/fabric/library-files.ts';
import type { TargetArchitecture } from './architectures.ts';
import { madeOnce } from './made-once.ts';
import { run } from './run.ts';
import { compilerOptions, compilerScript, toolchainEnvironment, zigVersion } from './toolchain.ts';

const sources = join(packageRoot, 'native/fabric');
/** How they are compiled. */
const recipes = ['c-library.js', 'compile-fabric.js'].map((file) => join(packageRoot, 'dist/.ci', file));

/**
 * In the place of those that the build made for this machine.
 * @returns what the archive lacks, and why; undefined where all is there
 */
export function installTransferLibraries(arch: TargetArchitecture, folder: string): string | undefined {
  const target = join(folder, 'dist/native/fabric');
  for (const library of [transferLibraryFile, fabricLibraryFile])
    for (const file of [library, `${library}.compiled`]) rmSync(join(target, file), { force: true });
  const headers = libfabricHeaders();
  const made = compiled(arch, headers);
  const libraries = headers === undefined ? [transferLibraryFile] : [transferLibraryFile, fabricLibraryFile];
  for (const library of libraries) cpSync(join(made, library), join(target, library));
  return headers === undefined
    ? 'its KV goes without RDMA, since libfabric’s headers are not here (libfabric-dev)'
    : undefined;
}

/** The folder in which `rdma/fabric.h` lies: where modules say (CPATH), or where systems have it. */
function libfabricHeaders(): string | undefined {
  const told = (process.env.CPATH ?? '').split(':').filter((folder) => folder !== '');
  return [...told, '/usr/local/include', '/usr/include'].find((folder) =>
    existsSync(join(folder, 'rdma/fabric.h')),
  );
}

/** A folder with the libraries, compiled where the same was not compiled before. */
function compiled(arch: TargetArchitecture, headers: string | undefined): string {
  const files = readdirSync(sources)
    .filter((file) => /\.[ch]$/.test(file))
    .sort()
    .map((file) => join(sources, file));
  const hash = createHash('sha256').update(JSON.stringify([zigVersion, ...compilerOptions(arch)]));
  if (headers !== undefined) files.push(join(headers, 'rdma/fabric.h'));
  for (const file of [...recipes, ...files]) hash.update(file).update(readFileSync(file));
  const key = hash.digest('hex').slice(0, 16);
  return madeOnce(`transfer-${arch}-${key}`, (folder) => compile(arch, folder, headers));
}

function compile(arch: TargetArchitecture, folder: string, headers: string | undefined): void {
  const work = mkdtempSync(join(tmpdir(), 'hpcserve-transfer-'));
  try {
    const made = join(work, 'made');
    mkdirSync(made);
    const env = { ...process.env, ...toolchainEnvironment(arch, work), CC: compilerScript(arch, work) };
    const program = join(packageRoot, 'dist/.ci/build-fabric.js');
    run([process.execPath, program, made, ...(headers === undefined ? [] : [headers])], packageRoot, env);
    for (const file of readdirSync(made).filter((name) => name.endsWith('.so')))
      cpSync(join(made, file), join(folder, file));
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}
