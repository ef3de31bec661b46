/** A server of one's own in front of which `hpcserve run` stands, and how both end. */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { packageRoot } from '../../../host/package-root.ts';
import { processesWithArgument } from '../../../host/process-identity.ts';
import type { GatewayEndpoint } from '../../../spec/state-layout.ts';
import { fixtureEngine } from '../../agent/support.ts';
import { type Home, temporaryHome } from '../support.ts';

let home: Home;
let key: string;
let endpoint: GatewayEndpoint;

beforeAll(async () => {
  home = temporaryHome();
  const started = await home.run(['gateway', 'start']);
  expect(started.code, started.stderr).toBe(0);
  key = JSON.parse((await home.run(['keys', 'create', 'me', '--json'])).stdout).key;
  endpoint = JSON.parse(readFileSync(join(home.folder, '.hpcserve/local/gateway/endpoint.json'), 'utf8'));
}, 60_000);
afterAll(async () => {
  await home.run(['gateway', 'stop']);
  home.dispose();
});

// Ctrl-C, Slurm and a shell that ends reach command and agent at once, and the command tells the agent again.
it.each(['SIGINT', 'SIGTERM', 'SIGHUP'] as const)(
  '%s to all its processes lets answers end',
  async (signal) => {
    const served = [
      'run',
      '--model',
      signal.toLowerCase(),
      '--',
      process.execPath,
      fixtureEngine,
      '{socket}',
    ];
    const child = spawn(process.execPath, [join(packageRoot, 'cli/hpcserve.mjs'), ...served], {
      cwd: home.folder,
      env: { PATH: '/nowhere', HOME: home.folder },
      detached: true,
    });
    let told = '';
    child.stderr.on('data', (chunk: Buffer) => {
      told += chunk.toString();
    });
    const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
    try {
      await expect.poll(() => told, { timeout: 30_000 }).toContain('serves on');
      const ask = (words: string): Promise<Response> =>
        fetch(`${endpoint.url}/v1/chat/completions`, {
          method: 'POST',
          headers: { authorization: `Bearer ${key}` },
          body: JSON.stringify({
            model: signal.toLowerCase(),
            stream: true,
            messages: [{ role: 'user', content: words }],
          }),
        });
      await expect.poll(async () => (await ask('count 1')).status, { timeout: 10_000 }).toBe(200);
      const answer = await ask('count 600');
      process.kill(-child.pid!, signal);
      const text = await answer.text();
      expect(text.trimEnd().split('\n').at(-1)).toBe('data: [DONE]');
      expect(text).toContain('600 ');
      expect(await ended).toBe(0);
    } finally {
      if (child.exitCode === null) process.kill(-child.pid!, 'SIGKILL');
    }
  },
  90_000,
);

const agents = (): number[] =>
  processesWithArgument((word) => word.startsWith(home.folder) && word.endsWith('/launch.json'));

it('leaves no agent where it alone hears that its terminal closed', async () => {
  const served = ['run', '--model', 'hung-up', '--', process.execPath, fixtureEngine, '{socket}'];
  const child = spawn(process.execPath, [join(packageRoot, 'cli/hpcserve.mjs'), ...served], {
    cwd: home.folder,
    env: { PATH: '/nowhere', HOME: home.folder },
  });
  let told = '';
  child.stderr.on('data', (chunk: Buffer) => {
    told += chunk.toString();
  });
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
  try {
    await expect.poll(() => told, { timeout: 30_000 }).toContain('serves on');
    child.kill('SIGHUP');
    expect(await exited, told).toBe(0);
    expect(agents()).toEqual([]);
  } finally {
    for (const pid of agents()) process.kill(pid, 'SIGKILL');
  }
});

it('leaves no agent where nobody reads what it says any more', async () => {
  const served = ['run', '--model', 'unread', '--', process.execPath, fixtureEngine, '{socket}'];
  const child = spawn(process.execPath, [join(packageRoot, 'cli/hpcserve.mjs'), ...served], {
    cwd: home.folder,
    env: { PATH: '/nowhere', HOME: home.folder },
  });
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  try {
    await expect.poll(agents, { timeout: 30_000 }).toHaveLength(1);
    // As in `run 2>&1 | tee log`, with tee gone: what it says next finds no reader.
    child.stdout.destroy();
    child.stderr.destroy();
    expect(await ended).toBe(0);
    expect(agents()).toEqual([]);
  } finally {
    for (const pid of agents()) process.kill(pid, 'SIGKILL');
  }
});
