/** `hpcserve try` in a real terminal: a model is served, answers, and nothing of it is left. */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type IPty, spawn as spawnPty } from 'node-pty';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { processesWithArgument } from '../../host/process-identity.ts';

const home = mkdtempSync(join(tmpdir(), 'hpcserve-trying-'));
const environment = { PATH: '/nowhere', HOME: home, TMPDIR: home, TERM: 'xterm' };
const command = join(packageRoot, 'cli/hpcserve.mjs');
afterAll(() => rmSync(home, { recursive: true, force: true }));

/** Folders and processes of a try. */
function left(): unknown[] {
  return [
    ...readdirSync(home).filter((name) => name.startsWith('hpcserve-try-')),
    ...processesWithArgument((argument) => argument.includes(`${home}/hpcserve-try-`)),
  ];
}

/** In a terminal of its own. */
function typeTry(...args: string[]): {
  pty: IPty;
  ended: Promise<number>;
  seen: () => string;
  shows: (words: RegExp, from?: number) => Promise<void>;
} {
  const pty = spawnPty(process.execPath, [command, 'try', ...args], {
    cols: 100,
    rows: 30,
    cwd: home,
    env: environment,
  });
  terminals.push(pty);
  let screen = '';
  pty.onData((text) => {
    screen += text;
  });
  return {
    pty,
    ended: new Promise((resolve) => pty.onExit(({ exitCode }) => resolve(exitCode))),
    seen: () => screen,
    shows: (words, from = 0) =>
      expect.poll(() => words.test(screen.slice(from)), { timeout: 40_000, interval: 20 }).toBe(true),
  };
}
const terminals: IPty[] = [];
// As when the window is closed: what a failed test left ends in order.
afterEach(() => {
  for (const pty of terminals.splice(0)) pty.kill('SIGHUP');
});

describe('hpcserve try', () => {
  it('chats in a terminal, ends an answer with Ctrl-C, and cleans up', async () => {
    // Random weights, whose answers do not end by themselves.
    const file = join(home, 'tiny-random.gguf');
    execFileSync(process.execPath, [command, 'model', 'synth', file, '--seed', '1'], { env: environment });
    const { pty, ended, seen, shows } = typeTry(file);
    await shows(/Ask tiny-random\.[\s\S]*> /);
    let from = seen().length;
    pty.write('Why do ships float?\r');
    // The echo of the question, words of an answer, and nothing that says it was refused.
    await shows(/float\?[\r\n]+[\s\S]*\S{3}/, from);
    pty.write('\u0003');
    await shows(/\n[^\n]*> [^\n]*$/, from);
    expect(seen()).not.toMatch(/error:/);
    from = seen().length;
    pty.write('/quit\r');
    expect(await ended, seen()).toBe(0);
    expect(seen().slice(from)).toMatch(/ending what was started/);
    expect(left()).toEqual([]);
  }, 120_000);

  it('Ctrl-C while it starts leaves nothing either', async () => {
    const { pty, ended, seen, shows } = typeTry();
    await shows(/gateway up/);
    pty.write('\u0003');
    expect(await ended, seen()).toBe(130);
    expect(seen()).not.toMatch(/E_INTERNAL|stack trace/);
    expect(left()).toEqual([]);
  }, 120_000);

  it('without a file has a model that answers, also questions from a pipe', () => {
    const { status, stdout, stderr } = spawnSync(process.execPath, [command, 'try'], {
      cwd: home,
      env: environment,
      input: 'How do I deploy a model?\n\nand how do I stop it?\n',
      encoding: 'utf8',
      timeout: 100_000,
    });
    expect(status, stderr).toBe(0);
    expect(stdout).toMatch(/`hpcserve deploy model\.yaml`[^\n]*\n[^\n]*`hpcserve stop my-deployment`/);
    expect(left()).toEqual([]);
  }, 120_000);

  it('says what is wrong with a file that is not there', () => {
    const { status, stderr } = spawnSync(process.execPath, [command, 'try', 'absent.gguf'], {
      cwd: home,
      env: environment,
      encoding: 'utf8',
    });
    expect({ status, stderr }).toEqual({ status: 2, stderr: expect.stringContaining('there is no file') });
    expect(left()).toEqual([]);
  });
});
