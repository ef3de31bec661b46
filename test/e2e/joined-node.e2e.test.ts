/** A node without a model joins from an allocation of its owner, gets one by a deployment, and leaves with its job. */
import { chmodSync, chownSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { CommandResult } from '../../slurm/command-runner.ts';
import { packageRoot } from '../../spec/package-root.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { acquireCluster, type ClusterLease } from '../cluster/shared.ts';

let lease: ClusterLease;
let cluster: Cluster;
let folder: string;
/** Of the site, once there is one. */
let api_key: string | undefined;

const program = [process.execPath, join(packageRoot, 'dist/cli/main.js')];

function hpcserve(...argv: string[]): Promise<CommandResult> {
  return cluster.runAs('user', [...program, ...argv], {
    cwd: folder,
    env: {
      HOME: folder,
      HPCSERVE_SITE: 'test-cluster',
      ...(api_key === undefined ? {} : { HPCSERVE_API_KEY: api_key }),
    },
    timeout_ms: 120_000,
  });
}

function write(name: string, content: string): string {
  const path = join(folder, name);
  writeFileSync(path, content, { mode: 0o700 });
  chownSync(path, cluster.user.uid, cluster.user.gid);
  return path;
}

interface NodeRow {
  node: string;
  tier: string;
  devices: { kind: string; model: string }[];
  models: { name: string; state: string }[];
}
async function nodes(): Promise<{ nodes: NodeRow[]; kinds: string[] }> {
  const { code, stdout, stderr } = await hpcserve('nodes', '--json');
  expect(code, stderr).toBe(0);
  expect(stderr).not.toContain('not known');
  const { nodes: rows, node_kinds } = JSON.parse(stdout);
  return { nodes: rows, kinds: node_kinds.map((offer: { node_kind: string }) => offer.node_kind) };
}

async function status(): Promise<{
  phase: string;
  launches: { job_id: string; where: string; node_kind: string; job: { state: string; reason?: string } }[];
}> {
  const { code, stdout, stderr } = await hpcserve('status', 'onto', '--json');
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout).deployments[0];
}

beforeAll(async () => {
  lease = await acquireCluster();
  cluster = lease.cluster;
  folder = mkdtempSync('/tmp/hpcserve-join-');
  chownSync(folder, cluster.user.uid, cluster.user.gid);
  chmodSync(folder, 0o700);
  const made = await hpcserve('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1');
  expect(made.code, made.stderr).toBe(0);
});
afterAll(async () => {
  await hpcserve('stop', '--all', '--yes');
  await lease?.release();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

describe('a node without a model', () => {
  let job: string;
  let kind: string;

  it('has nothing to join before a gateway ran', async () => {
    const refused = await hpcserve('run');
    expect(refused.code).not.toBe(0);
    expect(refused.stderr).toContain('E_MESH_FOLDER');
  });

  it('joins from a job of its owner, with its tier and hardware', async () => {
    const gateway = await hpcserve('gateway', 'start');
    expect(gateway.code, gateway.stderr).toBe(0);
    const key = await hpcserve('keys', 'create', 'me', '--json');
    expect(key.code, key.stderr).toBe(0);
    api_key = JSON.parse(key.stdout).key;
    const script = write('join.sh', `#!/bin/bash\nexec srun ${program.join(' ')} run --tier stable\n`);
    const submitted = await cluster.runAs('user', ['sbatch', '--parsable', '--time=10', script], {
      cwd: folder,
      env: { HOME: folder, HPCSERVE_SITE: 'test-cluster' },
    });
    expect(submitted.code, submitted.stderr).toBe(0);
    job = submitted.stdout.trim();
    await expect
      .poll(async () => (await nodes()).nodes, { timeout: 60_000, interval: 500 })
      .toEqual([expect.objectContaining({ tier: 'stable', models: [] })]);
    const [joined] = (await nodes()).nodes;
    expect(joined!.devices).toEqual([expect.objectContaining({ kind: 'cpu' })]);
    kind = `joined-${joined!.node}`;
    await expect.poll(async () => (await nodes()).kinds, { timeout: 20_000 }).toContain(kind);
  }, 120_000);

  it('gets one by a deployment that is planned onto it, and serves', async () => {
    write(
      'onto.yaml',
      JSON.stringify({
        name: 'onto',
        models: [
          {
            name: 'tiny',
            source: './toy.gguf',
            cpu_threads: 1,
            context_tokens: 512,
            max_sequences: 4,
            devices: { kind: 'cpu', node_kinds: [kind] },
          },
        ],
      }),
    );
    const { code, stdout, stderr } = await hpcserve('deploy', 'onto.yaml', '--timeout', '90s');
    expect(code, stdout + stderr).toBe(0);
    const [launch] = (await status()).launches;
    expect(launch).toMatchObject({ node_kind: kind, job: { state: 'RUNNING' } });
    expect(launch!.where).toMatch(/^joined node /);
    expect((await hpcserve('chat', 'tiny', 'Hello', '--max-tokens', '4')).code).toBe(0);
    // No job of ours beside that of its owner.
    const queue = await cluster.runAs('user', ['squeue', '--noheader', '--format=%i']);
    expect(queue.stdout.trim()).toBe(job);
    const [row] = (await nodes()).nodes;
    expect(row!.models).toEqual([expect.objectContaining({ name: 'tiny', state: 'serving' })]);
  }, 150_000);

  it('is free again when the deployment stops', async () => {
    expect((await hpcserve('stop', 'onto', '--yes')).code).toBe(0);
    // The gateway ended with the last deployment.
    expect((await hpcserve('gateway', 'start')).code).toBe(0);
    await expect
      .poll(async () => (await nodes()).nodes.map(({ models }) => models), { timeout: 30_000 })
      .toEqual([[]]);
  }, 90_000);

  it('refuses to run what is no launch of its site', async () => {
    const joined = join(folder, '.hpcserve/test-cluster/joined');
    const [id] = readdirSync(joined);
    const order = write('elsewhere.json', '{}');
    const id16 = '0123456789abcdef';
    const orders = join(joined, id!, 'orders');
    const file = join(orders, `${id16}.order.json`);
    writeFileSync(file, JSON.stringify({ format: 1, launch_file: order }), { mode: 0o600 });
    chownSync(file, cluster.user.uid, cluster.user.gid);
    await expect
      .poll(() => readdirSync(orders).includes(`${id16}.status.json`), { timeout: 20_000 })
      .toBe(true);
    await expect
      .poll(async () => (await nodes()).nodes.map(({ models }) => models), { timeout: 30_000 })
      .toEqual([[]]);
  }, 90_000);

  it('leaves with its allocation, and what ran there is said to have ended', async () => {
    const again = await hpcserve('deploy', 'onto.yaml', '--timeout', '90s');
    expect(again.code, again.stdout + again.stderr).toBe(0);
    await cluster.runAs('user', ['scancel', job]);
    await expect.poll(async () => (await nodes()).kinds, { timeout: 60_000 }).not.toContain(kind);
    await expect.poll(async () => (await nodes()).nodes, { timeout: 30_000 }).toEqual([]);
    await expect.poll(async () => (await status()).phase, { timeout: 60_000 }).not.toBe('serving');
    const deployed = await hpcserve('deploy', 'onto.yaml', '--timeout', '20s');
    expect(deployed.code).not.toBe(0);
    expect(deployed.stderr).toMatch(/no node kind|is gone|joined/);
  }, 300_000);
});
