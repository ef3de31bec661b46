/**
 * Compiles native/fabric: one library for sockets, which needs nothing but the C library, and one for libfabric, where
 * its headers are (Debian: libfabric-dev). libfabric itself is looked for when the library runs.
 */
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { fabricLibraryFile, transferLibraryFile } from '../native/fabric/library-files.ts';
import { compileLibrary } from './c-library.ts';

const sources = join(packageRoot, 'native/fabric');
const common = ['checksum.c', 'queue.c'];
const options = ['-O3', '-pthread'];

/** @throws Error in the compiler's words */
export function compileTransferLibrary(target: string, compiler: string): void {
  const files = [...common, 'mover.c', 'meeting.c'];
  const library = join(target, transferLibraryFile);
  compileLibrary({ sources, files, flags: options, links: [], library }, compiler);
}

/**
 * @param headers folder with libfabric's; without it the compiler knows where they are
 * @throws Error in the compiler's words
 */
export function compileFabricLibrary(target: string, compiler: string, headers?: string): void {
  const files = [...common, 'at-exit.c', 'fabric.c', 'libfabric.c'];
  // Behind the compiler's own: the C library's headers may lie in the same folder, and be of another version.
  const flags = headers === undefined ? options : [...options, '-idirafter', headers];
  // A library of its own before glibc 2.34.
  const links = ['-ldl'];
  compileLibrary({ sources, files, flags, links, library: join(target, fabricLibraryFile) }, compiler);
}

/**
 * @param target folder of the libraries, which is made
 * @param compiler as in the environment variable CC
 * @returns what was left out, and why; nothing where all is there
 */
export function compileFabric(target: string, compiler: string): string[] {
  const left_out: string[] = [];
  const attempt = (compile: typeof compileTransferLibrary, lost: string) => {
    try {
      compile(target, compiler);
    } catch (error) {
      left_out.push(`${(error as Error).message}: ${lost}`);
    }
  };
  attempt(compileTransferLibrary, 'KV is not sent, but computed again');
  attempt(compileFabricLibrary, 'KV goes without RDMA (for it: libfabric-dev, then build again)');
  return left_out;
}
