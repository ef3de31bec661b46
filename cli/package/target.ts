/**
 * The platform an archive is made for. For this machine's own everything is at hand; for the other Linux
 * architecture Node and koffi come as packages, and addons are cross-compiled.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

export const targetArchitectures = ['x64', 'arm64'] as const;
export type TargetArchitecture = (typeof targetArchitectures)[number];

/** Addons that are compiled on installation; koffi brings its own binaries for every platform. */
const compiledAddons = ['better-sqlite3', 'node-pty'] as const;

const crossCompilers: Record<TargetArchitecture, string> = {
  x64: 'x86_64-linux-gnu',
  arm64: 'aarch64-linux-gnu',
};

/** Puts Node and every native addon for `arch` into the archive's folder. */
export function installTarget(arch: TargetArchitecture, folder: string, work: string): void {
  if (arch === process.arch) {
    cpSync(process.execPath, join(folder, 'bin/node'), { dereference: true });
    return;
  }
  const node = unpack(`node-linux-${arch}`, process.versions.node, work);
  cpSync(join(node, 'bin/node'), join(folder, 'bin/node'));
  installPackage(`@koromix/koffi-linux-${arch}`, versionOf('koffi'), folder, work);
  for (const addon of compiledAddons) crossCompile(addon, arch, folder, work);
}

function crossCompile(addon: string, arch: TargetArchitecture, folder: string, work: string): void {
  const prefix = crossCompilers[arch];
  if (!(process.env.PATH ?? '').split(delimiter).some((path) => existsSync(join(path, `${prefix}-g++`)))) {
    throw new HpcserveError('E_PACKAGE', {
      what: `${addon} cannot be compiled for ${arch}`,
      because: `there is no ${prefix}-g++ on this machine`,
      try: `Install a cross compiler (Debian: apt-get install g++-${prefix.replace('_', '-')}), or make the archive on a ${arch} machine.`,
    });
  }
  const source = join(work, addon);
  cpSync(join(packageRoot, 'node_modules', addon), source, { recursive: true });
  rmSync(join(source, 'build'), { recursive: true, force: true });
  // node-addon-api and the like are looked up from the addon's folder.
  cpSync(join(packageRoot, 'node_modules/node-addon-api'), join(work, 'node_modules/node-addon-api'), {
    recursive: true,
  });
  const headers = existsSync('/usr/include/node/node_version.h') ? ['--nodedir=/usr'] : [];
  const env = {
    ...process.env,
    CC: `${prefix}-gcc`,
    CXX: `${prefix}-g++`,
    AR: `${prefix}-ar`,
    LINK: `${prefix}-g++`,
  };
  run([process.execPath, nodeGyp(), 'rebuild', '--release', `--arch=${arch}`, ...headers], source, env);
  const target = join(folder, 'node_modules', addon, 'build/Release');
  rmSync(target, { recursive: true, force: true });
  mkdirSync(target, { recursive: true });
  for (const file of readdirSync(join(source, 'build/Release')).filter((name) =>
    /^(?!test_).*\.node$|^spawn-helper$/.test(name),
  )) {
    cpSync(join(source, 'build/Release', file), join(target, file));
  }
}

/** node-gyp comes with npm. */
function nodeGyp(): string {
  const root = run(['npm', 'root', '-g', '--loglevel=silent'], packageRoot).trim();
  const path = join(root, 'npm/node_modules/node-gyp/bin/node-gyp.js');
  if (existsSync(path)) return path;
  throw new HpcserveError('E_PACKAGE', {
    what: 'node-gyp was not found',
    because: `npm does not bring it at ${path}`,
  });
}

function installPackage(name: string, version: string, folder: string, work: string): void {
  cpSync(unpack(name, version, work), join(folder, 'node_modules', name), { recursive: true });
}

/** Folder of a package fetched from the npm registry. */
function unpack(name: string, version: string, work: string): string {
  const target = join(work, name.replace('/', '-'));
  mkdirSync(target, { recursive: true });
  run(['npm', 'pack', `${name}@${version}`, '--pack-destination', target, '--loglevel=error'], target);
  const archive = readdirSync(target).find((file) => file.endsWith('.tgz'));
  if (!archive)
    throw new HpcserveError('E_PACKAGE', { what: `npm brought no archive of ${name}@${version}` });
  run(['tar', '-xzf', join(target, archive), '-C', target], target);
  return join(target, 'package');
}

function versionOf(name: string): string {
  const manifest = readFileSync(join(packageRoot, 'node_modules', name, 'package.json'), 'utf8');
  return (JSON.parse(manifest) as { version: string }).version;
}

/** Standard output of a program that has to succeed. */
export function run(
  argv: readonly [string, ...string[]],
  cwd: string,
  env: NodeJS.ProcessEnv = process.env,
): string {
  const result = spawnSync(argv[0], argv.slice(1), {
    cwd,
    env,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  if (result.status === 0) return result.stdout;
  const output = `${result.stdout ?? ''}${result.stderr ?? ''}`.trim().split('\n');
  throw new HpcserveError('E_PACKAGE', {
    what: `${argv.slice(0, 3).join(' ')} failed`,
    because: result.error ? String(result.error) : output.slice(-5),
  });
}
