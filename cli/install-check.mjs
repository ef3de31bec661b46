// Whether node_modules holds what package-lock.json says, for the Node that runs, whoever installed it. Plain
// JavaScript that needs nothing but Node, as the bootstrap.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** What a compilation leaves that is loaded; better-sqlite3 makes a test of its own beside it. */
const loadedAddon = /^(?!test_).*\.node$/;
/** Says itself what it is for. */
const loadAddons = fileURLToPath(new URL('load-addons.mjs', import.meta.url));

/** @returns what is missing, in words; undefined where nothing is */
export function missingInstall(root) {
  const kept = join(root, 'node_modules', '.package-lock.json');
  if (!existsSync(kept)) return 'nothing is installed';
  const installed = packagesOf(kept);
  for (const [path, wanted] of Object.entries(packagesOf(join(root, 'package-lock.json')))) {
    if (path === '') continue;
    const there = installed[path];
    if (there === undefined && wanted.optional && !isMadeForHere(wanted)) continue;
    if (there === undefined) return `${path} is missing`;
    if (there.version !== wanted.version || there.integrity !== wanted.integrity)
      return `${path} has another version`;
    if (!existsSync(join(root, path, 'package.json'))) return `${path} is gone`;
  }
  return brokenAddon(root);
}

/** Every package by its folder. */
function packagesOf(file) {
  return JSON.parse(readFileSync(file, 'utf8')).packages;
}

/** Of an optional package: npm leaves out those for other systems, and what only such need. */
function isMadeForHere({ os, cpu, libc }) {
  if (os === undefined && cpu === undefined) return false;
  const fits = (list, value) => list === undefined || list.includes(value);
  // A report takes a while to be written: it is asked last.
  return (
    fits(os, process.platform) && fits(cpu, process.arch) && (libc === undefined || fits(libc, ownLibc()))
  );
}

function ownLibc() {
  return process.report.getReport().header.glibcVersionRuntime === undefined ? 'musl' : 'glibc';
}

/** Addons are compiled for one Node: whether this one can load them, it says itself. */
function brokenAddon(root) {
  const { allowScripts = {} } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const compiled = Object.keys(allowScripts)
    .filter((name) => allowScripts[name] && existsSync(join(root, 'node_modules', name, 'binding.gyp')))
    .map((name) => ({ name, folder: join(root, 'node_modules', name, 'build/Release') }));
  const absent = compiled.find(({ folder }) => !existsSync(folder));
  if (absent) return `${absent.name} is not compiled`;
  const files = compiled.flatMap(({ folder }) =>
    readdirSync(folder)
      .filter((name) => loadedAddon.test(name))
      .map((name) => join(folder, name)),
  );
  // A process of its own: an addon that does not fit may end it.
  const { status } = spawnSync(process.execPath, [loadAddons, root, ...files], { stdio: 'ignore' });
  return status === 0 ? undefined : `an addon does not fit Node ${process.versions.node}`;
}
