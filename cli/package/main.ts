/**
 * `npm run package [-- --out DIR] [--arch ARCH] [--cuda [--from FILE]]`: one relocatable archive with its own Node,
 * the compiled addons and the compute libraries, with `--cuda` those for GPUs of NVIDIA, too. It unpacks on a shared
 * filesystem and runs there without npm, compiler or internet, on systems as old as `system-needs.ts` says. Made with a
 * Node and a compiler that the package registries bring (`node.ts`, `toolchain.ts`), so it does not matter on which
 * Linux.
 */
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { packagedFolder } from '../../control/state/native-libraries.ts';
import { packageRoot } from '../../host/package-root.ts';
import { version } from '../../host/version.ts';
import { hybridGemmFile } from '../../native/cuda/library-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { addedBackends, librariesRelease, requireBuilt, unpackBackend } from '../native/add-backend.ts';
import { type TargetArchitecture, targetArchitectures } from './architectures.ts';
import { launcherScript } from './launcher.ts';
import { madeOnce } from './made-once.ts';
import { nodeVersion } from './node.ts';
import { run } from './run.ts';
import { systemNeeds } from './system-needs.ts';
import { installTarget } from './target.ts';
import { installTransferLibraries } from './transfer-libraries.ts';

/** Rooms whose compiled code its processes run; what people type comes as a bundle, tests and benches stay behind. */
const builtRooms = [
  'control',
  'gateway',
  'agent',
  'solver',
  'mesh',
  'slurm',
  'ledger',
  'native',
  'host',
  'spec',
];
/** Folders and files that travel as they are. */
const plain = [
  'cli/hpcserve.mjs',
  'sbatch-templates',
  'site-configs',
  'examples',
  'docs',
  'package.json',
  'README.md',
  'LICENSE',
];
/** Files that only a compiler or a reader of their sources needs, in any package. */
const needlessFiles = /\.(c|cc|cpp|h|hpp|o|a|asm|S|map|md|d\.ts|d\.mts|d\.cts)$/;
/** Folders that only building an addon needs, and addons as they were built for the Node of this machine. */
const needlessFolders =
  /^(better-sqlite3\/(deps|src|build)|node-pty\/(deps|src|third_party|prebuilds|build)|koffi\/(vendor|doc)|ssh2\/(test|examples)|cpu-features)(\/|$)/;

try {
  main();
} catch (thrown) {
  const error = HpcserveError.from(thrown);
  process.stderr.write(`${error.toText()}\n`);
  process.exit(error.exit_code);
}

function main(): void {
  const { values } = parseArgs({
    options: {
      out: { type: 'string', default: join(packageRoot, 'build') },
      arch: { type: 'string', default: process.arch },
      cuda: { type: 'boolean', default: false },
      from: { type: 'string' },
    },
  });
  const arch = targetArchitectures.find((known) => known === values.arch);
  if (!arch) {
    throw new HpcserveError('E_PACKAGE', {
      what: `there is no archive for the architecture ${values.arch}`,
      because: `known: ${targetArchitectures.join(', ')}`,
      try: 'Name one of these with --arch.',
    });
  }
  const cuda = values.cuda ? cudaLibraries(arch, values.from) : undefined;
  const out = resolve(values.out);
  const name = `hpcserve-${version}-linux-${arch}${cuda === undefined ? '' : '-cuda'}`;
  mkdirSync(out, { recursive: true });
  const staging = mkdtempSync(join(tmpdir(), 'hpcserve-package-'));
  try {
    const folder = join(staging, name);
    for (const entry of plain) copy(entry, folder);
    for (const room of builtRooms) copy(join('dist', room), folder);
    copy('dist/web', folder);
    // Compiled for this machine's architecture.
    if (arch !== process.arch) rmSync(join(folder, 'dist/native/kernels'), { recursive: true, force: true });
    // Linked by this machine's compilers: older systems would not load it.
    for (const file of [hybridGemmFile, `${hybridGemmFile}.compiled`])
      rmSync(join(folder, 'dist/native/cuda', file), { force: true });
    const lacking = installTransferLibraries(arch, folder);
    const bundle = join(staging, 'bundle');
    run([process.execPath, join(packageRoot, 'dist/.ci/bundle.js'), bundle], packageRoot);
    cpSync(bundle, join(folder, 'dist/bundle'), {
      recursive: true,
      filter: (path) => !path.endsWith('.map'),
    });
    for (const path of productionPackages(arch)) copyPackage(path, folder);
    if (cuda !== undefined) cpSync(cuda, packagedFolder(folder, 'cuda'), { recursive: true });
    installTarget(arch, folder);
    chmodSync(join(folder, 'bin/node'), 0o755);
    writeFileSync(join(folder, 'bin/hpcserve'), launcherScript(), { mode: 0o755 });
    const { glibc, libstdcxx } = systemNeeds(folder);
    const manifest = {
      name: 'hpcserve',
      version,
      node: nodeVersion,
      arch,
      backends: cuda === undefined ? ['cpu'] : ['cpu', 'cuda'],
      glibc_needed: glibc,
      libstdcxx_needed: libstdcxx,
    };
    writeFileSync(join(folder, 'MANIFEST.json'), `${JSON.stringify(manifest, null, 2)}\n`);
    const archive = join(out, `${name}.tar.gz`);
    run(['tar', '-czf', archive, '--owner=0', '--group=0', '--sort=name', '-C', staging, name], staging);
    process.stdout.write(`${archive}\n`);
    process.stderr.write(
      `${basename(archive)}: ${(statSync(archive).size / 1e6).toFixed(0)} MB, Node ${nodeVersion}, needs glibc ${glibc.without_engine} (the native engine: ${glibc.all})\n`,
    );
    if (cuda !== undefined)
      process.stderr.write(`${basename(archive)}: nodes need ${addedBackends.cuda.needs}\n`);
    if (lacking !== undefined) process.stderr.write(`${basename(archive)}: ${lacking}\n`);
  } finally {
    rmSync(staging, { recursive: true, force: true });
  }
}

/**
 * The libraries with ggml's backend for CUDA, as `hpcserve native add cuda` brings them.
 * @param from the package's file, for a machine that reaches no registry
 */
function cudaLibraries(arch: TargetArchitecture, from: string | undefined): string {
  requireBuilt('cuda', arch);
  const file = from === undefined ? undefined : resolve(from);
  return madeOnce(`cuda-${librariesRelease}`, (folder) => unpackBackend('cuda', folder, file));
}

function copy(entry: string, folder: string): void {
  const from = join(packageRoot, entry);
  if (!existsSync(from)) {
    throw new HpcserveError('E_CONFIG_MISSING', {
      what: `${entry} is missing, so the archive would not be whole`,
      try: 'Run `npm run build` in a complete clone.',
    });
  }
  cpSync(from, join(folder, entry), { recursive: true, filter: (path) => !/\.(map|gguf)$/.test(path) });
}

function copyPackage(path: string, folder: string): void {
  const within = relative(packageRoot, path);
  cpSync(path, join(folder, within), {
    recursive: true,
    filter: (entry) => {
      // Nested packages are listed by themselves.
      if (relative(path, entry).split('/').includes('node_modules')) return false;
      return (
        !needlessFiles.test(entry) &&
        !needlessFolders.test(relative(join(packageRoot, 'node_modules'), entry))
      );
    },
  });
}

/** Absolute folders of the packages that the product needs at run time, as npm resolved them. */
function productionPackages(arch: TargetArchitecture): string[] {
  const listing = run(['npm', 'ls', '--omit=dev', '--all', '--parseable', '--loglevel=silent'], packageRoot);
  const foreign = new RegExp(`@(?:node-llama-cpp/|koromix/koffi-)(?!linux-${arch}$)`);
  return listing
    .split('\n')
    .filter(
      (path) =>
        path !== '' && resolve(path) !== resolve(packageRoot) && existsSync(path) && !foreign.test(path),
    );
}
