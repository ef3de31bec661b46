/** What the files of an archive ask of the system that they are to run on. */
import { readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import { symbolVersionsNeeded } from './elf.ts';

/**
 * The oldest C library that all but the compute libraries have to run on: that of RHEL 8 (SLES 15 has 2.31), which
 * Node's own binary asks for. Lower: Node would not start there anyway. Higher: such login nodes are left out.
 */
export const glibc_min = '2.28';
/** What may be asked for at most: of the C library, and of the C++ library of GCC 8, which RHEL 8 has. */
const allowed = { GLIBC: glibc_min, GLIBCXX: '3.4.25', CXXABI: '1.3.11' } as const;

/** Versions without a number: the C library that came with the first; with PRIVATE, one that no other replaces. */
const unnumbered: Readonly<Record<string, string>> = { ABI_DT_RELR: '2.36', PRIVATE: '999' };

/** Of the compute libraries, which only the native engine loads; they come as ggml's makers compile them. */
const computeLibraries = 'node_modules/@node-llama-cpp/';

/** The newest version of each library's symbols: over all files, and without the compute libraries. */
export interface SystemNeeds {
  glibc: { all: string; without_engine: string };
  libstdcxx: { all: string; without_engine: string };
}

/** @throws HpcserveError E_PACKAGE for a file, other than a compute library, that would not load on RHEL 8 */
export function systemNeeds(folder: string): SystemNeeds {
  const files = elfFiles(folder);
  const withoutEngine = files.filter(({ path }) => !path.startsWith(computeLibraries));
  for (const [library, limit] of Object.entries(allowed)) refuseNewer(withoutEngine, library, limit);
  const needs = (library: string) => ({
    all: newest(files, library),
    without_engine: newest(withoutEngine, library),
  });
  return { glibc: needs('GLIBC'), libstdcxx: needs('GLIBCXX') };
}

interface ElfFile {
  /** From the archive's folder. */
  path: string;
  /** `GLIBC_2.28` and so on. */
  versions: string[];
}

function elfFiles(folder: string): ElfFile[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true }).flatMap((entry) => {
    if (!entry.isFile()) return [];
    const path = join(entry.parentPath, entry.name);
    const versions = symbolVersionsNeeded(readFileSync(path));
    return versions === undefined ? [] : [{ path: relative(folder, path), versions }];
  });
}

function refuseNewer(files: readonly ElfFile[], library: string, limit: string): void {
  const tooNew = files.filter((file) => compareVersions(newest([file], library), limit) > 0);
  if (tooNew.length === 0) return;
  throw new HpcserveError('E_PACKAGE', {
    what: `the archive would not run where ${library} is older than ${newest(tooNew, library)}`,
    because: tooNew.map((file) => `${file.path} asks for ${library}_${newest([file], library)}`),
    try: `Only the compute libraries may ask for more than ${library}_${limit}.`,
  });
}

function newest(files: readonly ElfFile[], library: string): string {
  const versions = files.flatMap((file) =>
    file.versions
      .filter((name) => name.startsWith(`${library}_`))
      .map((name) => name.slice(library.length + 1)),
  );
  const numbers = versions.map((version) => unnumbered[version] ?? version);
  return numbers.sort(compareVersions).at(-1) ?? '0';
}

/** As numbers, part by part: 2.4 is before 2.28. */
function compareVersions(a: string, b: string): number {
  return a.localeCompare(b, 'en', { numeric: true });
}
