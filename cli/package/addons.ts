/** The addons that are compiled on installation, compiled once more for the archive's Node and for older systems. */
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { packageRoot } from '../../host/package-root.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { TargetArchitecture } from './architectures.ts';
import { madeOnce } from './made-once.ts';
import { nodeVersion, packagedNode } from './node.ts';
import { run } from './run.ts';
import { compilerOptions, objectWrapHeader, toolchainEnvironment, zigVersion } from './toolchain.ts';

/** koffi brings its own binaries for every platform. */
const compiledAddons = ['better-sqlite3', 'node-pty'] as const;
/** Headers that their sources include. */
const headerPackage = 'node-addon-api';
/** What a compilation leaves that is loaded; better-sqlite3 makes a test of its own beside it. */
const loaded = /^(?!test_).*\.node$/;

/** Puts every compiled addon into the archive's folder. */
export function installAddons(arch: TargetArchitecture, folder: string): void {
  for (const addon of compiledAddons) {
    const target = join(folder, 'node_modules', addon, 'build/Release');
    rmSync(target, { recursive: true, force: true });
    cpSync(compiled(addon, arch), target, { recursive: true });
  }
}

/** A folder with the addon's files, compiled where the same was not compiled before. */
function compiled(addon: string, arch: TargetArchitecture): string {
  const recipe = [
    versionOf(addon),
    versionOf(headerPackage),
    nodeVersion,
    zigVersion,
    ...compilerOptions(arch),
    readFileSync(objectWrapHeader, 'utf8'),
  ];
  const key = createHash('sha256').update(JSON.stringify(recipe)).digest('hex').slice(0, 16);
  return madeOnce(`${addon}-${arch}-${key}`, (folder) => compile(addon, arch, folder));
}

function compile(addon: string, arch: TargetArchitecture, target: string): void {
  const node = packagedNode(arch);
  const work = mkdtempSync(join(tmpdir(), 'hpcserve-addon-'));
  try {
    const source = join(work, addon);
    cpSync(join(packageRoot, 'node_modules', addon), source, { recursive: true });
    rmSync(join(source, 'build'), { recursive: true, force: true });
    // Looked up from the addon's folder.
    const headers = join('node_modules', headerPackage);
    cpSync(join(packageRoot, headers), join(work, headers), { recursive: true });
    const env = { ...withoutNpmSettings(process.env), ...toolchainEnvironment(arch, work) };
    const options = ['rebuild', '--release', `--arch=${arch}`, `--nodedir=${node}`];
    run([process.execPath, nodeGyp(), ...options], source, env);
    const made = join(source, 'build/Release');
    mkdirSync(target, { recursive: true });
    for (const file of readdirSync(made).filter((name) => loaded.test(name)))
      cpSync(join(made, file), join(target, file));
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** node-gyp takes what npm tells its scripts (`npm_config_nodedir`) over its own options. */
function withoutNpmSettings(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const kept = Object.entries(environment).filter(([name]) => !/^npm_(package_)?config_/i.test(name));
  return Object.fromEntries(kept);
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

const manifestSchema = z.object({ version: z.string() });

/** Of a package as it is installed here. */
export function versionOf(name: string): string {
  const manifest = readFileSync(join(packageRoot, 'node_modules', name, 'package.json'), 'utf8');
  return manifestSchema.parse(JSON.parse(manifest)).version;
}
