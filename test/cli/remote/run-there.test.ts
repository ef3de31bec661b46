/** Commands of a site over ssh that a person uses at a terminal, or pipes something into. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { spawn as spawnPty } from 'node-pty';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { packageRoot } from '../../../host/package-root.ts';
import { processesWithArgument } from '../../../host/process-identity.ts';
import { version } from '../../../host/version.ts';
import { deploymentFiles } from '../../../spec/state-layout.ts';
import { fixtureEngine } from '../../agent/support.ts';
import { ensureClusterUser } from '../../cluster/user.ts';
import { eventually } from '../../mesh/support.ts';
import { openRemoteSite, type RemoteSite } from '../remote-site.ts';

const program = join(packageRoot, 'cli/hpcserve.mjs');
let site: RemoteSite;
let place: string[];
let endServing: () => Promise<unknown>;

beforeAll(async () => {
  site = await openRemoteSite();
  place = ['--site', site.site_file];
  for (const argv of [
    ['gateway', 'start'],
    ['keys', 'create', 'me', '--save'],
  ]) {
    const { code, stderr } = await site.there.run([...argv, ...place]);
    expect(code, stderr).toBe(0);
  }
  const served = ['run', ...place, '--model', 'counting', '--', process.execPath, fixtureEngine, '{socket}'];
  const serving = spawn(process.execPath, [program, ...served], {
    cwd: site.there.folder,
    env: { PATH: '/nowhere', HOME: site.there.folder },
    stdio: 'ignore',
  });
  const ended = new Promise((resolve) => serving.once('close', resolve));
  endServing = () => {
    serving.kill('SIGINT');
    return ended;
  };
  const listed = async (): Promise<boolean> =>
    (await site.there.run(['models', ...place])).stdout.includes('counting');
  await eventually(listed, 'the gateway knows the model', 60_000);
});
afterAll(async () => {
  await endServing?.();
  await site?.there.run(['stop', '--gateway', ...place]);
  await site?.dispose();
});

it('asks what is piped into chat', async () => {
  const argv = ['chat', 'counting', ...place];
  const { code, stdout, stderr } = await site.laptop.run(argv, { input: 'count 3' });
  expect(code, stderr).toBe(0);
  expect(stdout.trim()).toBe('1 2 3');
});

it('leaves words behind -- as they are', async () => {
  const argv = ['chat', 'counting', ...place, '--', 'count 3', '--plan', 'absent', '--out', 'absent'];
  const { code, stdout, stderr } = await site.laptop.run(argv);
  expect(code, stderr).toBe(0);
  expect(stdout.trim()).toBe('1 2 3');
});

it('has a conversation at the terminal', async () => {
  const terminal = spawnPty(process.execPath, [program, 'chat', 'counting', ...place], {
    cwd: site.laptop.folder,
    env: { PATH: '/nowhere', HOME: site.laptop.folder, TERM: 'xterm' },
  });
  let shown = '';
  terminal.onData((text) => {
    shown += text;
  });
  const ended = new Promise<number>((resolve) => terminal.onExit(({ exitCode }) => resolve(exitCode)));
  try {
    await expect.poll(() => shown).toMatch(/> [^\n]*$/);
    terminal.write('count 4\r');
    await expect.poll(() => shown).toMatch(/1 2 3 4[\s\S]*> [^\n]*$/);
    terminal.write('/quit\r');
    expect(await ended, shown).toBe(0);
  } finally {
    terminal.kill('SIGKILL');
  }
});

it('asks at the terminal', async () => {
  const deployment = join(site.there.folder, 'state/far/deployments/old');
  mkdirSync(deployment, { recursive: true });
  writeFileSync(join(deployment, deploymentFiles.state), '{}');
  const terminal = spawnPty(process.execPath, [program, 'stop', '--all', ...place], {
    cwd: site.laptop.folder,
    env: { PATH: '/nowhere', HOME: site.laptop.folder, TERM: 'xterm' },
  });
  let shown = '';
  terminal.onData((text) => {
    shown += text;
  });
  const ended = new Promise<number>((resolve) => terminal.onExit(({ exitCode }) => resolve(exitCode)));
  try {
    await expect.poll(() => shown).toContain('End old? [y/N] ');
    terminal.write('n\r');
    expect(await ended, shown).toBe(0);
    expect(existsSync(deployment)).toBe(true);
  } finally {
    terminal.kill('SIGKILL');
    rmSync(deployment, { recursive: true });
  }
});

it('leaves what is piped into the shell alone where a command reads nothing', async () => {
  const script = 'while read word; do "$0" "$1" status "$word" --site "$2"; echo "$word: $?"; done';
  const loop = spawn('sh', ['-c', script, process.execPath, program, site.site_file], {
    cwd: site.laptop.folder,
    env: { PATH: '/usr/bin:/bin', HOME: site.laptop.folder },
  });
  let told = '';
  loop.stdout.setEncoding('utf8').on('data', (text: string) => {
    told += text;
  });
  loop.stdin.end('one\ntwo\n');
  await new Promise((resolve) => loop.once('close', resolve));
  expect(told).toBe('one: 9\ntwo: 9\n');
});

it('hands on what is printed there byte for byte', async () => {
  const install_dir = mkdtempSync(join(tmpdir(), 'hpcserve-bytes-'));
  mkdirSync(join(install_dir, 'cli'));
  const bytes = Buffer.from([0xff, 0, 0x61, 0xc3]);
  writeFileSync(
    join(install_dir, 'cli/hpcserve.mjs'),
    `if (process.argv[2] === '--version') console.log('${version}');
    else process.stdout.write(Buffer.from([${[...bytes]}]));`,
  );
  const other = await openRemoteSite({ install_dir });
  try {
    const child = startAtLaptop(other, ['status', '--site', other.site_file]);
    expect([...(await buffer(child.stdout))]).toEqual([...bytes]);
  } finally {
    await other.dispose();
    rmSync(install_dir, { recursive: true, force: true });
  }
});

it('ends what runs there by Ctrl-C', async () => {
  const other = await openRemoteSite({ as: ensureClusterUser() });
  const followers = (): number[] => processesWithArgument((word) => word.startsWith(`${mark}.yaml`));
  const mark = join(other.there.folder, '.hpcserve/remote/far/site');
  try {
    const child = startAtLaptop(other, ['status', '--watch', '--site', other.site_file]);
    const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
    await new Promise((resolve) => child.stdout.once('data', resolve));
    expect(followers()).toHaveLength(1);
    child.kill('SIGINT');
    expect(await ended).toBe(130);
    expect(followers()).toEqual([]);
  } finally {
    await other.dispose();
  }
});

function startAtLaptop({ laptop }: RemoteSite, argv: readonly string[]): ChildProcessWithoutNullStreams {
  return spawn(process.execPath, [program, ...argv], {
    cwd: laptop.folder,
    env: { PATH: '/nowhere', HOME: laptop.folder },
  });
}
