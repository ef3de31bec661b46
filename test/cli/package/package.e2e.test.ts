import { execFileSync, spawnSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('../../..', import.meta.url));

/** The archive is made, unpacked elsewhere, and used with nothing in the environment. */
describe('npm run package', () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-archive-'));
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
    const archive = execFileSync(
      process.execPath,
      [join(root, 'dist/cli/package/main.js'), '--out', folder],
      {
        encoding: 'utf8',
        stdio: ['ignore', 'pipe', 'ignore'],
      },
    ).trim();
    mkdirSync(join(folder, 'opt'));
    execFileSync('tar', ['-xzf', archive, '-C', join(folder, 'opt'), '--strip-components=1']);
    mkdirSync(join(folder, 'bin'));
    symlinkSync('../opt/bin/hpcserve', command);
  }, 180_000);

  afterAll(() => {
    if (existsSync(join(folder, 'state'))) hpcserve('stop', '--all', '--site', 'local', '--yes');
    rmSync(folder, { recursive: true, force: true });
  });

  it('holds its own Node and says what it needs of the system', () => {
    const manifest = JSON.parse(readFileSync(join(folder, 'opt/MANIFEST.json'), 'utf8'));
    expect(manifest).toMatchObject({ name: 'hpcserve', node: process.versions.node, arch: process.arch });
    expect(manifest.glibc_needed.all).toMatch(/^2\.\d+$/);
  });

  it('brings no tests, no compiler and no other platform', () => {
    for (const path of ['dist/test', 'dist/bench', 'node_modules/typescript', 'node_modules/vitest']) {
      expect(existsSync(join(folder, 'opt', path)), path).toBe(false);
    }
    const other = process.arch === 'x64' ? 'arm64' : 'x64';
    expect(existsSync(join(folder, 'opt/node_modules/@node-llama-cpp', `linux-${other}`))).toBe(false);
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
