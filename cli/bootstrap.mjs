// Plain JavaScript that needs nothing but Node and npm: installs and builds what is missing or stale, then
// runs one of the built programs. `node cli/bootstrap.mjs build` | `node cli/bootstrap.mjs run SCRIPT [ARGS…]`.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { constants, hostname } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { missingInstall } from './install-check.mjs';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const installStamp = join(root, 'node_modules', '.hpcserve-installed');
const buildStamp = join(root, 'dist', '.hpcserve-built');
const lockFolder = join(root, '.bootstrap-lock');
/** Says itself what it is for. */
const objectWrap = join(root, 'native', 'object-wrap.h');
const sourceFolders = [
  ...[
    'cli',
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
    'test',
    'bench',
    'web',
  ],
  '.ci',
];

/** Whether this process made the lock that is there. */
let hasLock = false;

const [action, script, ...args] = process.argv.slice(2);
if (action !== 'build' && !(action === 'run' && script)) {
  fail('usage: node cli/bootstrap.mjs build | run SCRIPT [ARGS…]', 2);
}
const [major, minor] = process.versions.node.split('.').map(Number);
if (major < 20 || (major === 20 && minor < 17)) {
  fail(
    `error: hpcserve needs Node 20.17 or later; this is ${process.versions.node}\n  try: load a newer module, or unpack Node from nodejs.org into your home directory`,
    12,
  );
}
withLock(() => {
  ensureInstalled();
  ensureBuilt();
});
if (action === 'run') {
  const program = join(root, 'dist', script);
  if (!existsSync(program)) fail(`error: ${relative(root, program)} was not built`, 1);
  // Ctrl-C is the program's, which may have something to say; it comes to both.
  process.on('SIGINT', () => {});
  const result = spawnSync(process.execPath, ['--enable-source-maps', program, ...args], {
    stdio: 'inherit',
    cwd: folderOfPerson(),
  });
  if (result.signal) process.exit(128 + (constants.signals[result.signal] ?? 0));
  process.exit(result.status ?? 1);
}

/** npm goes to the clone first, and says where it was called from: paths that were typed begin there. */
function folderOfPerson() {
  const { INIT_CWD: called_from } = process.env;
  const isByNpm = process.cwd() === resolve(root) && called_from !== undefined;
  return isByNpm && existsSync(called_from) ? called_from : process.cwd();
}

function ensureInstalled() {
  // Addons are bound to the Node ABI, so a change of Node reinstalls as a change of the lock file does.
  const parts = [
    hash(readFileSync(join(root, 'package-lock.json'))),
    process.versions.modules,
    `${process.platform}-${process.arch}`,
  ];
  // Addons of Node 24 that were compiled without it end the process.
  if (major >= 24) parts.push(hash(readFileSync(objectWrap)));
  const wanted = parts.join(' ');
  if (existsSync(installStamp) && readFileSync(installStamp, 'utf8') === wanted) return;
  // Somebody else may have installed it, by `npm ci` for one; the stamp saves the look the next time.
  if (missingInstall(root) === undefined) {
    writeFileSync(installStamp, wanted);
    return;
  }
  note('installing dependencies (npm ci); native addons may be compiled, which takes a minute or two …');
  const env = { ...process.env };
  // Headers come with Node mostly, in its own folder or that of the system: compile against them instead of downloading.
  const headers = [dirname(dirname(process.execPath)), '/usr'].find(headersMatch);
  if (!env.npm_config_nodedir && headers !== undefined) env.npm_config_nodedir = headers;
  // Headers of Node 20 in front of node-addon-api's own do not compile.
  if (major >= 24) env.CXXFLAGS = [env.CXXFLAGS, `-include '${objectWrap}'`].filter(Boolean).join(' ');
  const started = Date.now();
  const result = spawnSync('npm', ['ci', '--no-audit', '--no-fund', '--loglevel=error'], {
    cwd: root,
    env,
    stdio: ['ignore', 2, 2],
  });
  if (result.status !== 0) {
    fail(
      'error: npm ci failed\n  because: see its output above\n  try: a C++ compiler, make and python3 are needed where prebuilt addons cannot be downloaded',
      12,
    );
  }
  writeFileSync(installStamp, wanted);
  note(`installed in ${seconds(started)}`);
}

function headersMatch(folder) {
  const file = join(folder, 'include/node/node_version.h');
  return existsSync(file) && readFileSync(file, 'utf8').includes(`#define NODE_MAJOR_VERSION ${major}\n`);
}

function ensureBuilt() {
  const wanted = hash(
    sourceFolders
      .flatMap(listSources)
      .concat(describe(join(root, 'tsconfig.json')))
      .join('\n'),
  );
  if (existsSync(buildStamp) && readFileSync(buildStamp, 'utf8') === wanted) {
    // Who asks for a build may have installed what its libraries lacked.
    if (action === 'build') buildLibraries();
    return;
  }
  note('building …');
  const started = Date.now();
  const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
  const result = spawnSync(process.execPath, [compiler, '-p', root], { cwd: root, stdio: ['ignore', 2, 2] });
  if (result.status !== 0) fail('error: the build failed; see the output above', 1);
  buildLibraries();
  const bundler = join(root, 'dist', '.ci', 'bundle.js');
  if (spawnSync(process.execPath, [bundler], { cwd: root, stdio: ['ignore', 2, 2] }).status !== 0)
    note('the command line could not be put into few files (see above): it works, but starts more slowly');
  buildDashboard();
  writeFileSync(buildStamp, wanted);
  note(`built in ${seconds(started)}`);
}

/** Commands and gateways work without it. */
function buildDashboard() {
  const vite = join(root, 'node_modules', 'vite', 'bin', 'vite.js');
  if (!existsSync(join(root, 'web', 'index.html'))) return;
  const argv = [vite, 'build', join(root, 'web'), '--logLevel', 'warn'];
  if (spawnSync(process.execPath, argv, { cwd: root, stdio: ['ignore', 2, 2] }).status !== 0)
    note('the dashboard could not be built (see above): gateways serve without it');
}

/** The step says itself what it cannot compile; nothing depends on it but speed. What is there stays. */
function buildLibraries() {
  spawnSync(process.execPath, [join(root, 'dist', '.ci', 'build-kernels.js')], {
    cwd: root,
    stdio: ['ignore', 2, 2],
  });
}

function listSources(folder) {
  const top = join(root, folder);
  if (!existsSync(top)) return [];
  return readdirSync(top, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.(ts|tsx|css|html|svg|c|h|cu|cuh)$/.test(entry.name))
    .map((entry) => describe(join(entry.parentPath ?? entry.path, entry.name)))
    .sort();
}

function describe(path) {
  const { mtimeMs, size } = statSync(path);
  return `${relative(root, path)} ${mtimeMs} ${size}`;
}

/**
 * One installation at a time, on all hosts that share the folder: a second caller waits for the first, and takes over
 * a lock whose owner is gone, which only a process of the owner's host can see.
 */
function withLock(work) {
  const file = join(lockFolder, 'pid');
  const deadline = Date.now() + 600_000;
  for (let looks = 0; ; looks++) {
    try {
      mkdirSync(lockFolder);
      hasLock = true;
      writeFileSync(file, `${hostname()} ${process.pid}`);
      break;
    } catch (error) {
      if (error.code === 'EROFS' || error.code === 'EACCES') return; // a read-only installation is built already
      if (error.code !== 'EEXIST') throw error;
      const owner = lockOwner(file);
      const words = owner === undefined ? 'a process' : `process ${owner.pid} on ${owner.host}`;
      if (owner?.host === hostname() && !existsSync(`/proc/${owner.pid}`))
        rmSync(lockFolder, { recursive: true, force: true });
      else if (Date.now() > deadline)
        fail(`error: ${lockFolder} is held by ${words}\n  try: remove it, if that is gone`, 10);
      else {
        // Who has only begun has not said yet who it is.
        if (looks === 1) note(`waiting for ${words}, which holds ${lockFolder}`);
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
      }
    }
  }
  try {
    work();
  } finally {
    releaseLock();
  }
}

/** @returns undefined where it does not say, or not yet */
function lockOwner(file) {
  let words;
  try {
    words = readFileSync(file, 'utf8').split(' ');
  } catch (error) {
    // Given back meanwhile, or only just made.
    if (error.code === 'ENOENT' || error.code === 'ESTALE') return undefined;
    throw error;
  }
  const pid = Number(words.at(-1));
  // Former releases wrote the pid alone.
  const host = words.length > 1 ? words[0] : hostname();
  return pid > 0 ? { host, pid } : undefined;
}

function releaseLock() {
  if (!hasLock) return;
  hasLock = false;
  rmSync(lockFolder, { recursive: true, force: true });
}

function hash(data) {
  return createHash('sha256').update(data).digest('hex');
}

function seconds(started) {
  return `${((Date.now() - started) / 1000).toFixed(1)} s`;
}

function note(text) {
  process.stderr.write(`hpcserve: ${text}\n`);
}

function fail(text, code) {
  releaseLock();
  process.stderr.write(`${text}\n`);
  process.exit(code);
}
