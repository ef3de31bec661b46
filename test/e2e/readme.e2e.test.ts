/** The README's commands, typed as they stand and in order, by somebody who has nothing else. */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { stopCluster } from '../cluster/cluster.ts';
import { testClusterName } from '../cluster/shared.ts';
import { blocksBelow, Terminal } from './readme-shell.ts';

/** What is typed in a block, and what it prints there. */
interface Step {
  command: string;
  shown: string[];
}

function stepsOf(block: string): Step[] {
  const steps: Step[] = [];
  for (const line of block.trimEnd().split('\n')) {
    if (line.startsWith('$ ')) steps.push({ command: line.slice(2), shown: [] });
    else steps.at(-1)!.shown.push(line);
  }
  return steps;
}

/** Without what differs from run to run and from machine to machine: numbers, folders, the kernels of a CPU. */
function shape(line: string): string {
  return line
    .replaceAll(/\/\S+\//g, '/…/')
    .replaceAll(/ours \(\w+\)/g, 'ours')
    .replaceAll(/\d+(\.\d+)? (d|h|min|s|ms)\b( \d+ (h|min|s)\b)*/g, 'T')
    .replaceAll(/\d+(\.\d+)?/g, '#')
    .replaceAll(/\s+/g, ' ')
    .trim();
}

describe('the session of the README', () => {
  const cluster = testClusterName('readme');
  let terminal: Terminal;

  beforeAll(async () => {
    terminal = new Terminal(
      ['npm', 'run', '--silent', 'cluster', '--', 'shell', '--name', cluster],
      // Progress in lines, as the README shows it.
      { ...process.env, TERM: 'dumb' },
    );
    await terminal.waitFor(/a shell of \w+ on cluster/);
  }, 180_000);
  afterAll(async () => {
    await terminal?.type('hpcserve stop --all --yes').catch(() => undefined);
    terminal?.close();
    await stopCluster(cluster);
  }, 180_000);

  it('prints what it shows', async () => {
    const steps = blocksBelow('A session').flatMap(stepsOf);
    expect(steps.length).toBeGreaterThan(6);
    for (const { command, shown } of steps) {
      const { text, code } = await terminal.type(command);
      const isMistake = shown.some((line) => line.startsWith('error: '));
      expect(code, `${command}\n${text}`).toBe(isMistake ? 2 : 0);
      const printed = new Set(text.split('\n').map(shape));
      // Progress tells of moments that another run may not have, and a model with random weights of anything.
      if (/ (deploy|chat|stop) /.test(command)) continue;
      for (const line of shown) expect([...printed], `${command}\n${text}`).toContain(shape(line));
    }
  }, 300_000);
});

describe('npm run, from a folder of a person', () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-person-'));
  const environment = { ...process.env, HOME: folder, npm_config_prefix: undefined };
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  function npm(words: readonly string[], cwd: string): ReturnType<typeof spawnSync> {
    const options = { cwd, env: { ...environment, INIT_CWD: undefined }, encoding: 'utf8' } as const;
    return spawnSync('npm', ['--prefix', packageRoot, 'run', '--silent', ...words], options);
  }

  it('link puts the command into ~/.local/bin, and says what the PATH lacks', () => {
    expect(blocksBelow('Two commands').join('')).toMatch(/^npm run link /m);
    const { status, stdout, stderr } = npm(['link'], folder);
    expect(status, String(stderr)).toBe(0);
    const link = join(folder, '.local/bin/hpcserve');
    expect(realpathSync(link)).toBe(realpathSync(join(packageRoot, 'cli/hpcserve.mjs')));
    const [line] = /export PATH=.*/.exec(String(stdout)) ?? [''];
    const version = execFileSync('/bin/sh', ['-c', `${line}; hpcserve --version`], {
      env: environment,
      encoding: 'utf8',
    });
    expect(version).toMatch(/^\d+\.\d+\.\d+\n$/);
    // A second time, and where something else has its name.
    expect(npm(['link'], folder).status).toBe(0);
    mkdirSync(join(folder, 'own/hpcserve'), { recursive: true });
    const refused = npm(['link', '--', join(folder, 'own')], folder);
    expect(refused.status, String(refused.stderr)).toBe(10);
    expect(String(refused.stderr)).toContain('E_FILE_EXISTS');
  }, 60_000);

  it('hpcserve takes paths from where one stands', () => {
    const below = join(folder, 'work');
    mkdirSync(below);
    const words = ['hpcserve', '--', 'model', 'synth', 'toy.gguf', '--preset', 'tiny-llama'];
    const { status, stderr } = npm(words, below);
    expect(status, String(stderr)).toBe(0);
    expect(existsSync(join(below, 'toy.gguf'))).toBe(true);
  }, 60_000);
});
