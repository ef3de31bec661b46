/** From a laptop: every command over ssh to the login node of a real Slurm cluster, and the gateway on a port here. */
import { type ChildProcess, spawn } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { spawn as spawnPty } from 'node-pty';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { acquireCluster, type ClusterLease } from '../cluster/shared.ts';
import { hpcserveProgram } from '../cluster/user-home.ts';
import { type SshServer, startSshServer } from '../slurm/ssh/server.ts';

let lease: ClusterLease;
let cluster: Cluster;
let server: SshServer;
/** Home on the laptop, and the state folder on the cluster. */
let laptop: string;
let state: string;

beforeAll(async () => {
  lease = await acquireCluster();
  cluster = lease.cluster;
  server = await startSshServer(cluster.state.env, cluster.user.name);
  laptop = mkdtempSync(join(tmpdir(), 'hpcserve-laptop-'));
  state = (await cluster.runAs('user', ['mktemp', '-d', '/tmp/hpcserve-there-XXXXXX'])).stdout.trim();
  const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
  writeFileSync(
    join(laptop, 'site.yaml'),
    shipped
      .replace('name: test-cluster', 'name: afar')
      .replace('state_dir: ~/.hpcserve', `state_dir: ${state}`)
      .replace(
        'slurm:\n',
        `runtime:\n  install_dir: ${packageRoot}\n  node_path: ${process.execPath}\nslurm:\n  ssh:\n    host: 127.0.0.1\n    port: ${server.port}\n    user: ${cluster.user.name}\n    identity_file: ${server.identity_file}\n    known_hosts_file: ${server.known_hosts_file}\n`,
      ),
  );
  chmodSync(server.identity_file, 0o600);
  const model = {
    name: 'toy',
    source: './toy.gguf',
    cpu_threads: 1,
    context_tokens: 512,
    devices: { kind: 'gpu' },
    tier: 'stable',
  };
  writeFileSync(join(laptop, 'model.yaml'), JSON.stringify({ name: 'afar', models: [model] }));
  const made = await hpcserve('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1');
  expect(made.code, made.stderr).toBe(0);
}, 120_000);
afterAll(async () => {
  await hpcserve('stop', '--all', '--yes');
  await server?.stop();
  await cluster.runAs('user', ['rm', '-rf', state, join(cluster.user.home, '.hpcserve/remote/afar')]);
  await lease?.release();
  rmSync(laptop, { recursive: true, force: true });
});

function start(...argv: string[]): ChildProcess {
  const [program = '', ...args] = [...hpcserveProgram, ...argv];
  return spawn(program, args, {
    cwd: laptop,
    env: { HOME: laptop, PATH: '/usr/bin:/bin', HPCSERVE_SITE: join(laptop, 'site.yaml') },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
}

interface Output {
  code: number | null;
  stdout: string;
  stderr: string;
}
function hpcserve(...argv: string[]): Promise<Output> {
  const child = start(...argv);
  const out = { stdout: '', stderr: '' };
  child.stdout!.setEncoding('utf8').on('data', (text: string) => (out.stdout += text));
  child.stderr!.setEncoding('utf8').on('data', (text: string) => (out.stderr += text));
  return new Promise((resolve) => child.once('close', (code) => resolve({ code, ...out })));
}

/** The first whole line a command prints. */
function firstLine(child: ChildProcess): Promise<string> {
  let seen = '';
  return new Promise((resolve, reject) => {
    child.stdout!.setEncoding('utf8').on('data', (text: string) => {
      seen += text;
      if (seen.includes('\n')) resolve(seen.slice(0, seen.indexOf('\n')));
    });
    child.once('close', (code) => reject(new Error(`it ended with ${code}: ${seen}`)));
  });
}

/**
 * Users and names of what is in the queue and works in the state folder: the cluster may be shared with another run of
 * tests.
 */
async function jobs(): Promise<string[]> {
  const argv = ['squeue', '--noheader', '--states=R,PD,CG', '--format=%u %j %Z'];
  const { code, stdout, stderr } = await cluster.runAs('user', argv);
  expect(code, stderr).toBe(0);
  return stdout.split('\n').filter((line) => line.includes(state));
}

describe('a laptop', () => {
  it('plans there, keeps the plan here, and deploys it with the model it has', async () => {
    const planned = await hpcserve('plan', 'model.yaml', '--out', 'plan.json');
    expect(planned.code, planned.stderr).toBe(0);
    expect(planned.stdout).toMatch(/afar on afar/);
    expect(JSON.parse(readFileSync(join(laptop, 'plan.json'), 'utf8'))).toMatchObject({
      format: 1,
      deployment: 'afar',
    });
    const deployed = await hpcserve(
      'deploy',
      '--yes',
      'model.yaml',
      '--plan',
      'plan.json',
      '--timeout',
      '60s',
    );
    expect(deployed.code, deployed.stderr).toBe(0);
    expect(deployed.stdout).toMatch(/URL +http/);
    expect(deployed.stderr).toMatch(/hpcserve connect --site afar/);
    const { stdout } = await hpcserve('status', 'afar', '--json');
    expect(JSON.parse(stdout).deployments[0]).toMatchObject({ phase: 'serving' });
    expect(await jobs()).toEqual([expect.stringMatching(new RegExp(`^${cluster.user.name} afar-`))]);
  }, 120_000);

  it('asks the model through the login node, and through a port here that outlives the connection', async () => {
    const chat = await hpcserve('chat', 'toy', 'Hello', '--max-tokens', '4');
    expect(chat.code, chat.stderr).toBe(0);
    const connected = start('connect', '--json');
    try {
      const { url, key } = JSON.parse(await firstLine(connected)) as { url: string; key: string };
      const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 2 });
      const ask = async (): Promise<number> =>
        (
          await client.chat.completions.create({
            model: 'toy',
            messages: [{ role: 'user', content: 'Hi' }],
            max_tokens: 4,
          })
        ).usage!.completion_tokens;
      expect(await ask()).toBeGreaterThan(0);
      server.dropConnections();
      expect(await ask()).toBeGreaterThan(0);
    } finally {
      const ended = new Promise((resolve) => connected.once('close', resolve));
      connected.kill('SIGINT');
      await ended;
    }
  });

  it('has a shell on a node of the deployment, in a terminal here', async () => {
    const [program = '', ...args] = [...hpcserveProgram, 'shell', 'afar', '--', 'sh'];
    const terminal = spawnPty(program, args, {
      cwd: laptop,
      env: {
        HOME: laptop,
        PATH: '/usr/bin:/bin',
        HPCSERVE_SITE: join(laptop, 'site.yaml'),
        TERM: 'xterm',
      },
      cols: 91,
      rows: 31,
    });
    let shown = '';
    terminal.onData((text) => {
      shown += text;
    });
    const ended = new Promise<number>((resolve) => terminal.onExit(({ exitCode }) => resolve(exitCode)));
    // Like a person: what is typed before the prompt may be lost on the way (srun sets up its terminal).
    await expect.poll(() => shown, { timeout: 30_000 }).toMatch(/[$#] $/);
    terminal.write('stty size; test -n "$SLURM_JOB_ID" && echo "on a"" node"\r');
    await expect.poll(() => shown, { timeout: 30_000 }).toContain('on a node\r\n');
    expect(shown).toContain('31 91\r\n');
    terminal.write('exit 5\r');
    expect(await ended, shown).toBe(5);
    const piped = await hpcserve('shell', 'afar', '--', 'sh', '-c', 'echo "there $SLURM_JOB_ID"; exit 6');
    expect(piped.stdout, piped.stderr).toMatch(/^there \d+$/m);
    expect(piped.code).toBe(6);
  });

  it('passes on exit codes and words, and says what is missing there', async () => {
    const unknown = await hpcserve('status', 'nobody');
    expect(unknown.code).toBe(9);
    expect(unknown.stderr).toMatch(/there is no deployment "nobody"/);
    const gateways = await hpcserve('gateway', 'list');
    expect(gateways.stdout, gateways.stderr).toMatch(/http:\/\/127\.0\.0\.1:\d+/);
    const site = readFileSync(join(laptop, 'site.yaml'), 'utf8');
    writeFileSync(join(laptop, 'site.yaml'), site.replace(packageRoot, '/nowhere/hpcserve'));
    const missing = await hpcserve('status');
    writeFileSync(join(laptop, 'site.yaml'), site);
    expect(missing.code).toBe(12);
    expect(missing.stderr).toMatch(/not installed on 127\.0\.0\.1 in \/nowhere\/hpcserve/);
    const stranger = site.replace(server.known_hosts_file, '/dev/null');
    writeFileSync(join(laptop, 'site.yaml'), stranger);
    const refused = await hpcserve('status');
    writeFileSync(join(laptop, 'site.yaml'), site);
    expect(refused.code).toBe(7);
    expect(refused.stderr).toMatch(/is not known[\s\S]*SHA256:/);
  });

  it('stops it, and nothing is left', async () => {
    const stopped = await hpcserve('stop', 'afar');
    expect(stopped.code, stopped.stderr).toBe(0);
    expect(await jobs()).toEqual([]);
    // No key, no known host, no passphrase of this machine went there.
    const there = join(cluster.user.home, '.hpcserve/remote/afar/site.yaml');
    expect(existsSync(there)).toBe(true);
    expect(readFileSync(there, 'utf8')).not.toMatch(/identity_file|ssh:/);
  });
});
