import { execFileSync, spawnSync } from 'node:child_process';
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { keptFolder } from '../../../cli/package/made-once.ts';
import { packagedFolder } from '../../../control/state/native-libraries.ts';
import { packageRoot } from '../../../host/package-root.ts';
import { fabricLibraryPath, transferLibraryPath } from '../../../native/fabric/library-files.ts';
import { UserHome } from '../../cluster/user-home.ts';
import { blocksBelow } from '../../e2e/readme-shell.ts';
import { OldSystem, oldSystemTools } from './old-system.ts';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'hpcserve-archive-'));
const opt = join(folder, 'opt');
const tools = await oldSystemTools();
let archive: string;

beforeAll(() => {
  archive = execFileSync(process.execPath, [join(root, 'dist/cli/package/main.js'), '--out', folder], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  }).trim();
  mkdirSync(opt);
  execFileSync('tar', ['-xzf', archive, '-C', opt, '--strip-components=1']);
  // The first time in a clone, compiler and Node are fetched and addons compiled.
}, 480_000);

afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('npm run package -- --cuda', { timeout: 300_000 }, () => {
  /** An archive with them was made here before: nothing is fetched. */
  const kept = existsSync(keptFolder) && readdirSync(keptFolder).some((name) => name.startsWith('cuda-'));
  const lacking = kept ? '' : ' [skipped: needs its libraries: npm run package -- --cuda]';
  const make = (...args: string[]) => {
    const argv = [join(root, 'dist/cli/package/main.js'), '--out', folder, '--cuda', ...args];
    return spawnSync(process.execPath, argv, { encoding: 'utf8', timeout: 240_000 });
  };

  it('takes no file but the one whose libraries were chosen', () => {
    const wrong = join(folder, 'wrong.tgz');
    writeFileSync(wrong, 'something else');
    const { status, stderr } = make('--from', wrong);
    // Once they are kept, no file is asked for.
    if (kept) expect(status, stderr).toBe(0);
    else {
      expect(status).not.toBe(0);
      expect(stderr).toMatch(/wrong\.tgz is not @node-llama-cpp\/linux-x64-cuda@/);
    }
  });

  it.skipIf(!kept)(`has the backend where plans look for it, and says what nodes need${lacking}`, () => {
    const { status, stdout, stderr } = make();
    expect(status, stderr).toBe(0);
    expect(stderr).toMatch(/-cuda\.tar\.gz: nodes need NVIDIA’s driver and libcudart/);
    const unpacked = join(folder, 'opt-cuda');
    mkdirSync(unpacked);
    execFileSync('tar', ['-xzf', stdout.trim(), '-C', unpacked, '--strip-components=1']);
    const libraries = readdirSync(packagedFolder(unpacked, 'cuda'));
    expect(libraries).toEqual(expect.arrayContaining(['libggml-cuda.so', 'libggml-base.so']));
    const manifest = JSON.parse(readFileSync(join(unpacked, 'MANIFEST.json'), 'utf8'));
    expect(manifest.backends).toEqual(['cpu', 'cuda']);
    // Its CPU backend serves at once; of the GPUs' it is said what this machine lacks.
    const home = { PATH: '', HOME: folder, XDG_CONFIG_HOME: join(folder, 'none') };
    const doctor = spawnSync(join(unpacked, 'bin/hpcserve'), ['doctor', '--site', 'local'], {
      env: { ...home, HPCSERVE_STATE_DIR: join(folder, 'state-cuda') },
      encoding: 'utf8',
    });
    expect(doctor.stdout).toMatch(/PASSED +native libraries: ggml .*linux-x64-cuda computes here/);
    expect(doctor.stdout).toMatch(/native devices: .*cuda/i);
  });

  it('says where there are no such libraries', () => {
    const { status, stderr } = make('--arch', 'arm64');
    expect(status).not.toBe(0);
    expect(stderr).toMatch(/no libraries with a backend for cuda on arm64[\s\S]*native\.library_dir/);
  });
});

/** The archive is made, unpacked elsewhere, and used with nothing in the environment. */
describe('npm run package', () => {
  const command = join(folder, 'bin', 'hpcserve');

  function hpcserve(...args: string[]): { status: number | null; stdout: string; stderr: string } {
    const environment = {
      PATH: '',
      HOME: '',
      HPCSERVE_STATE_DIR: join(folder, 'state'),
      XDG_CONFIG_HOME: join(folder, 'config'),
    };
    return spawnSync(command, args, { env: environment, cwd: folder, encoding: 'utf8', timeout: 90_000 });
  }

  beforeAll(() => {
    mkdirSync(join(folder, 'bin'));
    symlinkSync('../opt/bin/hpcserve', command);
  });

  afterAll(() => {
    if (existsSync(join(folder, 'state'))) hpcserve('stop', '--all', '--site', 'local', '--yes');
  });

  it('holds its own Node and says what it needs of the system', () => {
    const manifest = JSON.parse(readFileSync(join(opt, 'MANIFEST.json'), 'utf8'));
    expect(manifest).toMatchObject({
      name: 'hpcserve',
      node: expect.stringMatching(/^24\./),
      arch: process.arch,
      glibc_needed: { without_engine: '2.28' },
    });
    const node = execFileSync(join(opt, 'bin/node'), ['--version'], { encoding: 'utf8' });
    expect(node.trim()).toBe(`v${manifest.node}`);
  });

  it('asks for no symbol that RHEL 8 lacks, but for the compute libraries', () => {
    const binaries = readdirSync(opt, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile() && !entry.parentPath.includes('/node_modules/@node-llama-cpp/'))
      .map((entry) => join(entry.parentPath, entry.name))
      .filter((path) => readFileSync(path).subarray(0, 4).toString('latin1') === '\x7fELF');
    const names = binaries.map((path) => path.split('/').at(-1));
    expect(names).toEqual(expect.arrayContaining(['node', 'better_sqlite3.node', 'pty.node', 'koffi.node']));
    const symbols = execFileSync('objdump', ['-T', ...binaries], { encoding: 'utf8', maxBuffer: 1 << 27 });
    const asked = (library: string): string[] =>
      [...symbols.matchAll(new RegExp(`\\b${library}_([\\d.]+)`, 'g'))].map(([, version]) => version!);
    const minor = (version: string): number => Number(version.split('.').at(-1));
    const ofC = asked('GLIBC').filter((version) => /^2\.\d+$/.test(version));
    expect(Math.max(...ofC.map(minor))).toBe(28);
    // GCC 8 has GLIBCXX_3.4.25.
    expect(Math.max(...asked('GLIBCXX').map(minor))).toBeLessThanOrEqual(25);
  });

  it('has an SQLite whose statements can be collected at any moment', () => {
    const program = join(root, 'test/ledger/collect-statements.mjs');
    const addon = join(opt, 'node_modules/better-sqlite3');
    const { status, signal, stdout } = spawnSync(join(opt, 'bin/node'), [program, addon], {
      encoding: 'utf8',
    });
    expect({ status, signal, stdout }).toEqual({ status: 0, signal: null, stdout: 'went on\n' });
  });

  it('brings no tests, no compiler and no other platform', () => {
    for (const path of ['dist/test', 'dist/bench', 'node_modules/typescript', 'node_modules/vitest']) {
      expect(existsSync(join(folder, 'opt', path)), path).toBe(false);
    }
    const other = process.arch === 'x64' ? 'arm64' : 'x64';
    expect(existsSync(join(folder, 'opt/node_modules/@node-llama-cpp', `linux-${other}`))).toBe(false);
  });

  it('brings the products for CPUs that were compiled, without their sources', () => {
    const library = 'dist/native/kernels/libhpcserve-kernels.so';
    expect(existsSync(join(folder, 'opt', library))).toBe(existsSync(join(root, library)));
    expect(existsSync(join(folder, 'opt/native'))).toBe(false);
  });

  it('brings the dashboard', () => {
    for (const file of ['index.html', 'licenses.md'])
      expect(existsSync(join(folder, 'opt/dist/web', file)), file).toBe(true);
  });

  it('brings what moves KV, by libfabric too where its headers are', () => {
    for (const file of [transferLibraryPath, fabricLibraryPath]) {
      const packed = join(opt, relative(packageRoot, file));
      expect(existsSync(packed), packed).toBe(existsSync(file));
    }
    if (!existsSync(fabricLibraryPath)) return;
    // Only libraries of the C library; libfabric is looked for at run time.
    const needed = execFileSync('objdump', ['-p', join(opt, relative(packageRoot, fabricLibraryPath))], {
      encoding: 'utf8',
    });
    expect([...needed.matchAll(/NEEDED +(\S+)/g)].map(([, name]) => name)).toEqual(
      expect.not.arrayContaining([expect.stringContaining('fabric')]),
    );
  });

  it('runs through a link, with an empty PATH and HOME', () => {
    const { status, stdout, stderr } = hpcserve('--version');
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toMatch(/\d+\.\d+\.\d+/);
  });

  it('writes a model, serves it on this machine, answers, and stops', () => {
    const model = join(folder, 'toy.gguf');
    expect(hpcserve('model', 'synth', model, '--preset', 'tiny-llama')).toMatchObject({ status: 0 });
    writeFileSync(
      join(folder, 'model.yaml'),
      'name: archived\nmodels:\n  - name: toy\n    source: ./toy.gguf\n    context_tokens: 256\n    cpu_threads: 1\n',
    );
    const deployed = hpcserve('deploy', 'model.yaml', '--site', 'local', '--yes');
    expect(deployed.status, deployed.stderr).toBe(0);
    const chat = hpcserve('chat', 'toy', '--site', 'local', '--max-tokens', '8', 'hello');
    expect(chat.status, chat.stderr).toBe(0);
    expect(chat.stdout.length).toBeGreaterThan(1);
    const stopped = hpcserve('stop', 'archived', '--site', 'local', '--yes');
    expect(stopped.status, stopped.stderr).toBe(0);
  }, 120_000);
});

/** As the README says, typed as it stands by a user of a cluster who has the archive and nothing else of ours. */
describe('the archive on a cluster', () => {
  let home: UserHome;
  const typed = (lines: string) => home.run(['/bin/bash', '-e', '-c', `unset HPCSERVE_SITE\n${lines}`]);
  const asLater = 'export PATH=~/.local/bin:"$PATH"\n';

  beforeAll(async () => {
    home = await UserHome.open();
    const own = join(home.folder, basename(archive));
    copyFileSync(archive, own);
    home.own(own);
    home.write('model.yaml', {
      name: 'demo',
      models: [
        {
          name: 'demo-model',
          source: './toy.gguf',
          engine: 'native',
          devices: { kind: 'cpu' },
          cpu_threads: 1,
          context_tokens: 512,
          max_sequences: 2,
        },
      ],
    });
  }, 120_000);
  afterAll(async () => {
    await typed(`${asLater}hpcserve stop --all --yes`);
    await home?.close();
  }, 120_000);

  it('is unpacked, linked, and serves, by the commands of the README', async () => {
    const [made, block] = blocksBelow('On a cluster');
    expect(made).toContain(basename(archive));
    const said = await typed(block!);
    expect(said.code, `${said.stdout}\n${said.stderr}`).toBe(0);
    expect(said.stdout).toMatch(/\/sites\/\S+\.yaml/);
    expect(said.stdout).not.toContain('FAILED');
    const chat = await typed(`${asLater}hpcserve chat demo-model --max-tokens 4 hello`);
    expect(chat.code, chat.stderr).toBe(0);
    const which = await typed(`${asLater}command -v hpcserve`);
    expect(which.stdout.trim()).toBe(join(home.folder, '.local/bin/hpcserve'));
  }, 240_000);
});

describe.skipIf(!tools.ready)('the archive on Debian 11', () => {
  const home = join(folder, 'home');
  const node = '/opt/hpcserve/bin/node';
  let system: OldSystem;
  const hpcserve = (...words: string[]) =>
    system.run(['/opt/hpcserve/bin/hpcserve', ...words, '--site', 'local']);

  beforeAll(async () => {
    mkdirSync(home);
    for (const name of ['agent/fixture-engine.mjs', 'ledger/collect-statements.mjs'])
      cpSync(join(root, 'test', name), join(home, name.split('/')[1]!));
    system = await OldSystem.start(opt, home);
  }, 330_000);
  afterAll(() => system?.[Symbol.asyncDispose]());

  /** One model, by its settings beside name and source. */
  function write(name: string, settings: Record<string, unknown>): string {
    const model = { name, source: './toy.gguf', cpu_threads: 1, ...settings };
    writeFileSync(join(home, `${name}.yaml`), JSON.stringify({ name, models: [model] }));
    return `${name}.yaml`;
  }

  it('starts there, with all its addons', async () => {
    const glibc = 'console.log(process.report.getReport().header.glibcVersionRuntime)';
    expect(await system.run([node, '--eval', glibc])).toMatchObject({ stdout: '2.31\n' });
    const version = await system.run(['/opt/hpcserve/bin/hpcserve', '--version']);
    expect(version).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/),
      stderr: '',
    });
    const terminal =
      "require('/opt/hpcserve/node_modules/node-pty').spawn('echo', ['from a terminal'], {}).onData((text) => console.log(text.trim()))";
    expect(await system.run([node, '--eval', terminal])).toMatchObject({ stdout: 'from a terminal\n' });
    const collected = await system.run([
      node,
      'collect-statements.mjs',
      '/opt/hpcserve/node_modules/better-sqlite3',
    ]);
    expect(collected).toMatchObject({ code: 0, stdout: 'went on\n' });
  });

  it('moves KV by sockets, and says that libfabric is not there', async () => {
    const program = `
      import { fabricAbsence } from '/opt/hpcserve/dist/native/fabric/fabric.js';
      import { crc32c, crc32cPlain } from '/opt/hpcserve/dist/native/fabric/mover.js';
      const bytes = Buffer.alloc(100_003, 'KV');
      console.log(fabricAbsence());
      console.log(crc32c(bytes) === crc32cPlain(bytes));`;
    const words = [node, '--input-type=module', '--eval', program];
    const absence = existsSync(fabricLibraryPath)
      ? 'libfabric.so.1: cannot open shared object file: No such file or directory'
      : 'hpcserve was built without libfabric’s headers (libfabric-dev)';
    expect(await system.run(words)).toMatchObject({ code: 0, stdout: `${absence}\ntrue\n` });
  });

  it('doctor passes what is there, and names what the native engine lacks', async () => {
    const { stdout } = await hpcserve('doctor', '--json');
    const checks = JSON.parse(stdout).checks as { check: string; status: string; found: string }[];
    const statusOf = (name: string) => checks.find(({ check }) => check === name);
    for (const name of ['node', 'programs', 'addons', 'state folder'])
      expect(statusOf(name), name).toMatchObject({ status: 'PASSED' });
    expect(statusOf('native libraries')).toMatchObject({
      status: 'WARNING',
      found: expect.stringMatching(/this system lacks GLIBCXX_3\.4\.\d+/),
    });
  });

  it('plans, and serves a wrapped engine', async () => {
    const synth = ['model', 'synth', 'toy.gguf', '--preset', 'tiny-llama'];
    expect(await system.run(['/opt/hpcserve/bin/hpcserve', ...synth])).toMatchObject({ code: 0 });
    const command = ['/opt/hpcserve/bin/node', '/home/fixture-engine.mjs', '{socket}'];
    const file = write('wrapped', { engine: 'command', command });
    const planned = await hpcserve('plan', file);
    expect(planned.stdout, planned.stderr).toContain('engine command: asked for in model.yaml');
    const deployed = await hpcserve('deploy', file, '--yes', '--timeout', '60s');
    expect(deployed.code, deployed.stderr).toBe(0);
    expect(await hpcserve('chat', 'wrapped', 'count 3')).toMatchObject({ code: 0, stdout: '1 2 3 \n' });
    const stopped = await hpcserve('stop', 'wrapped', '--yes');
    expect(stopped.code, stopped.stderr).toBe(0);
  }, 120_000);

  it('says what the system lacks where the native engine is asked for', async () => {
    const file = write('native', { context_tokens: 256 });
    const deployed = await hpcserve('deploy', file, '--yes', '--timeout', '60s');
    expect(deployed.code).not.toBe(0);
    expect(deployed.stderr).toMatch(/this system lacks GLIBCXX_3\.4\.\d+/);
    expect(await hpcserve('stop', '--all', '--yes')).toMatchObject({ code: 0 });
  }, 120_000);
});
