/** A node without a model joins from an allocation of its owner, gets one by a deployment, and leaves with its job. */
import {
  chmodSync,
  existsSync,
  lchownSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { hpcserveProgram, UserHome } from '../cluster/user-home.ts';

let home: UserHome;
let cluster: Cluster;
let folder: string;
/** Of the site, once there is one. */
let api_key: string | undefined;

function hpcserve(...argv: string[]): Promise<CommandResult> {
  return home.run([...hpcserveProgram, ...argv], api_key === undefined ? {} : { HPCSERVE_API_KEY: api_key });
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
  home = await UserHome.open();
  ({ cluster, folder } = home);
});
afterAll(() => home?.close());

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
    const script = home.write(
      'join.sh',
      `#!/bin/bash\nexec srun ${hpcserveProgram.join(' ')} run --tier stable\n`,
      0o700,
    );
    const submitted = await home.run(['sbatch', '--parsable', '--time=10', script]);
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
    home.write('onto.yaml', {
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
    });
    const { code, stdout, stderr } = await hpcserve('deploy', '--yes', 'onto.yaml', '--timeout', '90s');
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

  it('serves the deployment as changed: what ran there makes way', async () => {
    const [before] = (await status()).launches;
    const model = JSON.parse(readFileSync(join(folder, 'onto.yaml'), 'utf8'));
    model.models[0].context_tokens = 256;
    home.write('onto.yaml', model);
    const { code, stdout, stderr } = await hpcserve(
      'deploy',
      '--yes',
      'onto.yaml',
      '--yes',
      '--timeout',
      '90s',
    );
    expect(code, stdout + stderr).toBe(0);
    const launches = (await status()).launches.filter(({ job }) => job.state === 'RUNNING');
    expect(launches).toMatchObject([{ node_kind: kind }]);
    expect(launches[0]!.job_id).not.toBe(before!.job_id);
  }, 150_000);

  it('is free again when the deployment stops', async () => {
    expect((await hpcserve('stop', 'onto', '--yes')).code).toBe(0);
    // The gateway ended with the last deployment.
    expect((await hpcserve('gateway', 'start')).code).toBe(0);
    await expect
      .poll(async () => (await nodes()).nodes.map(({ models }) => models), { timeout: 30_000 })
      .toEqual([[]]);
  });

  it('refuses to run what is no launch of its site, or could be of somebody else', async () => {
    const joined = join(folder, '.hpcserve/test-cluster/joined');
    const [id] = readdirSync(joined);
    const orders = join(joined, id!, 'orders');
    const launches = join(folder, '.hpcserve/test-cluster/deployments/onto/launches');
    const [last] = readdirSync(launches);
    const ran = readFileSync(join(launches, last!, 'launch.json'), 'utf8');
    /** Owned by the user before it has the name under which it is looked for. */
    const put = (path: string, content: string, mode = 0o600): void => {
      const fresh = home.write('fresh', content);
      chmodSync(fresh, mode);
      renameSync(fresh, path);
    };
    /** A launch that would run, under an id of its own. */
    const begin = (launch_id: string): { launch: string; file: string } => {
      const own = join(launches, launch_id);
      mkdirSync(own, { mode: 0o700 });
      home.own(own);
      return { launch: ran.replaceAll(last!, launch_id), file: join(own, 'launch.json') };
    };
    const refusal = async (launch_id: string, launch_file: string): Promise<string> => {
      put(join(orders, `${launch_id}.order.json`), JSON.stringify({ format: 1, launch_file }));
      const status = join(orders, `${launch_id}.status.json`);
      await expect.poll(() => existsSync(status), { timeout: 20_000 }).toBe(true);
      rmSync(join(launches, launch_id), { recursive: true });
      const { phase, reason, ...rest } = JSON.parse(readFileSync(status, 'utf8'));
      expect({ phase, ...rest }).toEqual({
        format: 1,
        phase: 'ended',
        started_at_ms: expect.any(Number),
        ended_at_ms: expect.any(Number),
      });
      expect(reason).toContain(`launch ${launch_id} is not run here [E_JOINED_NODE_ORDER]: `);
      return reason;
    };

    const elsewhere = '0123456789abcde0';
    const moved = begin(elsewhere);
    const copy = join(folder, 'elsewhere.json');
    put(copy, moved.launch);
    expect(await refusal(elsewhere, copy)).toContain(
      `${copy} is not the file of that launch: ${moved.file} is`,
    );

    const writable = '0123456789abcde1';
    const shared = begin(writable);
    put(shared.file, shared.launch, 0o660);
    expect(await refusal(writable, shared.file)).toContain(
      `${shared.file} could have been written by somebody else`,
    );

    const linked = '0123456789abcde2';
    const link = begin(linked);
    put(copy, link.launch);
    symlinkSync(copy, link.file);
    lchownSync(link.file, cluster.user.uid, cluster.user.gid);
    expect(await refusal(linked, link.file)).toContain(
      `${link.file} could have been written by somebody else`,
    );

    await expect
      .poll(async () => (await nodes()).nodes.map(({ models }) => models), { timeout: 30_000 })
      .toEqual([[]]);
  }, 120_000);

  it('leaves with its allocation, and what ran there is said to have ended', async () => {
    const again = await hpcserve('deploy', '--yes', 'onto.yaml', '--timeout', '90s');
    expect(again.code, again.stdout + again.stderr).toBe(0);
    await cluster.runAs('user', ['scancel', job]);
    await expect.poll(async () => (await nodes()).kinds, { timeout: 60_000 }).not.toContain(kind);
    await expect.poll(async () => (await nodes()).nodes, { timeout: 30_000 }).toEqual([]);
    await expect.poll(async () => (await status()).phase, { timeout: 60_000 }).not.toBe('serving');
    const deployed = await hpcserve('deploy', '--yes', 'onto.yaml', '--timeout', '20s');
    expect(deployed.code).not.toBe(0);
    expect(deployed.stderr).toContain(`has no node kind "${kind}" [E_CONFIG_CONFLICT]`);
  }, 300_000);
});
