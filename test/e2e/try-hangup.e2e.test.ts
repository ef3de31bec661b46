/** The terminal of `hpcserve try`, or who reads its answers, goes away in the middle: nothing of it is left. */
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type IPty, spawn as spawnPty } from 'node-pty';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { processesWithArgument, signalProcess } from '../../host/process-identity.ts';

let home: string;
const processes = (): number[] =>
  processesWithArgument((argument) => argument.includes(`${home}/hpcserve-try-`));
const folders = (): string[] => readdirSync(home).filter((name) => name.startsWith('hpcserve-try-'));

beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'hpcserve-hangup-'));
});
afterEach(() => {
  for (const pid of processes()) signalProcess(pid, 'SIGKILL');
  rmSync(home, { recursive: true, force: true });
});

const starting = /gateway up/;
const waiting = /Ask guide\.[\s\S]*> /;

it.each<[string, RegExp, (pty: IPty) => void]>([
  ['a signal while it starts', starting, (pty) => pty.kill('SIGHUP')],
  ['a signal while it waits for a question', waiting, (pty) => pty.kill('SIGHUP')],
  // With the signal, whatever it still says to the terminal fails.
  ['a terminal that is gone', waiting, (pty) => (pty as IPty & { destroy(): void }).destroy()],
])(
  '%s',
  async (_what, seen, hangUp) => {
    const pty = spawnPty(process.execPath, [join(packageRoot, 'cli/hpcserve.mjs'), 'try'], {
      cols: 100,
      rows: 30,
      cwd: home,
      env: { PATH: '/nowhere', HOME: home, TMPDIR: home, TERM: 'xterm' },
    });
    let screen = '';
    pty.onData((text) => {
      screen += text;
    });
    await expect.poll(() => seen.test(screen), { timeout: 60_000, interval: 20 }).toBe(true);
    expect([folders().length, processes().length > 0], screen).toEqual([1, true]);
    hangUp(pty);
    await expect.poll(() => [...folders(), ...processes()], { timeout: 40_000 }).toEqual([]);
  },
  120_000,
);

it('a pipe that nobody reads any more', async () => {
  const child = spawn(process.execPath, [join(packageRoot, 'cli/hpcserve.mjs'), 'try'], {
    cwd: home,
    env: { PATH: '/nowhere', HOME: home, TMPDIR: home },
  });
  let told = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    told += text;
  });
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  // More answers than the first one, of which a word is read.
  child.stdin.write('How do I deploy a model?\n'.repeat(50));
  await new Promise((resolve) => child.stdout.once('data', resolve));
  expect([folders().length, processes().length > 0], told).toEqual([1, true]);
  child.stdout.destroy();
  expect(await ended, told).toBe(130);
  expect([...folders(), ...processes()], told).toEqual([]);
}, 120_000);
