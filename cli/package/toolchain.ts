/**
 * The compiler of the archive's addons: Clang as zig brings it. It links against the symbols of a C library of one's
 * choice, whatever this machine's is, for every architecture, and puts its C++ library into what it links.
 *
 *     gcc here (glibc 2.36)  ->  GLIBC_2.34, GLIBCXX_3.4.29    RHEL 9, Ubuntu 22.04
 *     zig, -target …-gnu.2.28 -> GLIBC_2.28, no C++ library    RHEL 8, SLES 15 as well
 */
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { TargetArchitecture } from './architectures.ts';
import { keptFolder, madeOnce } from './made-once.ts';
import { run } from './run.ts';
import { glibc_min } from './system-needs.ts';

export const zigVersion = '0.15.2';

/** SHA-256 of its wheels in the Python package index, by the machine that compiles: x86-64 and aarch64. */
const sha256 = [
  '806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130',
  'edc0aa60ec964a4cf462d40f68d7de242ddf37fd9a80f2afaee6397059463230',
];

const machines: Record<TargetArchitecture, string> = { x64: 'x86_64', arm64: 'aarch64' };

/** Without it, Node ends when a statement of SQLite is collected. */
export const objectWrapHeader = join(packageRoot, 'native/object-wrap.h');

/** What decides how the machine code comes out. Only the addon's entry is to be seen from outside: see `linker`. */
export function compilerOptions(arch: TargetArchitecture): string[] {
  return ['-target', `${machines[arch]}-linux-gnu.${glibc_min}`, '-fvisibility=hidden'];
}

/**
 * Variables for node-gyp.
 * @param work an empty folder of the compilation
 */
export function toolchainEnvironment(arch: TargetArchitecture, work: string): NodeJS.ProcessEnv {
  const zig = join(zigFolder(), 'ziglang/zig');
  const options = compilerOptions(arch);
  const cache = join(keptFolder, 'zig-cache');
  mkdirSync(cache, { recursive: true });
  // gyp puts them into a makefile as they are.
  return {
    CC: [zig, 'cc', ...options].join(' '),
    CXX: [zig, 'c++', ...options].join(' '),
    CXXFLAGS: `-include '${objectWrapHeader}'`,
    AR: `${zig} ar`,
    LINK: linker([zig, 'c++', ...options, '-s'], work),
    ZIG_GLOBAL_CACHE_DIR: cache,
    ZIG_LOCAL_CACHE_DIR: cache,
  };
}

/** The C compiler as one program without arguments, in an empty folder of the compilation. */
export function compilerScript(arch: TargetArchitecture, work: string): string {
  const path = join(work, 'cc');
  const command = [join(zigFolder(), 'ziglang/zig'), 'cc', ...compilerOptions(arch), '-s'];
  writeFileSync(path, `#!/bin/sh\nexec ${command.join(' ')} "$@"\n`, { mode: 0o755 });
  return path;
}

function zigFolder(): string {
  return madeOnce(`zig-${zigVersion}`, (folder) => {
    const requirements = join(folder, 'requirements.txt');
    const hashes = sha256.map((digest) => `--hash=sha256:${digest}`);
    writeFileSync(requirements, `ziglang==${zigVersion} ${hashes.join(' ')}\n`);
    const options = [
      '--only-binary=:all:',
      '--no-deps',
      '--no-compile',
      '--disable-pip-version-check',
      '--quiet',
    ];
    run(
      ['python3', '-m', 'pip', 'install', ...options, '--target', folder, '--requirement', requirements],
      folder,
    );
  });
}

/**
 * zig's linker has no `--exclude-libs`, by which better-sqlite3 hides its SQLite from the one in Node: hidden
 * visibility does that here.
 */
function linker(command: readonly string[], work: string): string {
  const path = join(work, 'link');
  const script = `#!/bin/sh
for argument do
  shift
  case $argument in
    -Wl,--exclude-libs,ALL) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec ${command.join(' ')} "$@"
`;
  writeFileSync(path, script);
  chmodSync(path, 0o755);
  return path;
}
