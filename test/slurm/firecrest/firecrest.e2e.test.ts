/** FirecREST as the way to Slurm: its documented API over a real cluster, with what goes wrong between the two. */
import { chmodSync, chownSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { CommandResult } from '../../../slurm/command-runner.ts';
import { AccessTokens } from '../../../slurm/firecrest/access-token.ts';
import { FirecrestApi } from '../../../slurm/firecrest/api.ts';
import { FirecrestClient } from '../../../slurm/firecrest/client.ts';
import type { HpcserveError } from '../../../spec/errors/error.ts';
import type { Cluster } from '../../cluster/cluster.ts';
import { acquireCluster, type ClusterLease } from '../../cluster/shared.ts';
import { hpcserveProgram } from '../../cluster/user-home.ts';
import { FirecrestServer, testClient, testSystem } from '../../fakes/firecrest-server.ts';

let lease: ClusterLease;
let cluster: Cluster;
let server: FirecrestServer;
let folder: string;
let client: FirecrestClient;

function clientWith(
  secret: { file: string } | { variable: string; value: string | undefined },
): FirecrestClient {
  const tokens = new AccessTokens({ token_url: server.token_url, client_id: testClient.id, secret }, 20_000);
  const api = new FirecrestApi({ url: server.url, tokens, timeout_ms: 20_000, requests_per_s: 50 });
  return new FirecrestClient(api, testSystem);
}

const script = (name: string, body: string): { text: string } => ({
  text: `#!/bin/bash\n#SBATCH --job-name=${name}\n#SBATCH --partition=a100\n#SBATCH --time=5\n#SBATCH --output=/dev/null\n${body}\n`,
});
const failure = (promise: Promise<unknown>): Promise<HpcserveError> =>
  promise.then(
    () => {
      throw new Error('it did not fail');
    },
    (error: HpcserveError) => error,
  );

beforeAll(async () => {
  lease = await acquireCluster();
  cluster = lease.cluster;
  server = await FirecrestServer.start(cluster);
  folder = mkdtempSync('/tmp/hpcserve-firecrest-');
  chownSync(folder, cluster.user.uid, cluster.user.gid);
  chmodSync(folder, 0o700);
  client = clientWith({ variable: 'SECRET', value: testClient.secret });
});
afterAll(async () => {
  await cluster?.cancelAllJobs();
  await server?.close();
  await lease?.release();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

describe('jobs over FirecREST', () => {
  it('are submitted, followed and ended, with the options of the script', async () => {
    const { job_id } = await client.submit(script('fc-long', 'sleep 300'), [
      { name: 'chdir', value: folder, source: 'test' },
    ]);
    await expect
      .poll(async () => (await client.jobs([job_id]))[0]?.state, { timeout: 20_000 })
      .toBe('RUNNING');
    const [job] = await client.jobs([job_id]);
    expect(job).toMatchObject({
      job_id,
      base_job_id: job_id,
      phase: 'running',
      name: 'fc-long',
      partition: 'a100',
      user: cluster.user.name,
    });
    expect(job!.nodes).toHaveLength(1);
    expect((await client.myJobs()).map((each) => each.name)).toContain('fc-long');
    await client.cancel([job_id]);
    await expect.poll(async () => (await client.jobs([job_id]))[0]?.phase, { timeout: 30_000 }).toBe('ended');
    // What is over is no error, nor what never was.
    await client.cancel([job_id, '999999']);
    expect(await client.jobs(['999999'])).toEqual([]);
  });

  it('a refusal says what sbatch said, and which option it is about', async () => {
    const error = await failure(
      client.submit({ text: '#!/bin/bash\n#SBATCH --partition=nowhere\ntrue\n' }, [
        { name: 'partition', value: 'nowhere', source: 'site.yaml:3:5' },
      ]),
    );
    expect(error.code).toBe('E_SLURM_PARTITION');
    expect(error.because.join()).toMatch(/invalid partition.*--partition=nowhere was set by site.yaml:3:5/i);
  });

  it('an answer that is lost leaves word that the job may be there, and it is found', async () => {
    server.next({ method: 'POST', path: /jobs$/, how: 'lost' });
    const error = await failure(client.submit(script('fc-lost', 'sleep 300'), []));
    expect(error.code).toBe('E_SLURM_UNREACHABLE');
    expect(error.details.may_have_been_submitted).toBe(true);
    const found = (await client.myJobs()).filter(({ name }) => name === 'fc-lost');
    expect(found).toHaveLength(1);
    await client.cancel(found.map((job) => job.base_job_id));
  });

  it('questions outlive outages, and a submission is never sent twice', async () => {
    const before = server.requests.length;
    server.next({ method: 'GET', path: /jobs$/, how: { status: 503 } });
    server.next({ method: 'GET', path: /jobs$/, how: { status: 429, headers: { 'retry-after': '1' } } });
    server.next({ method: 'GET', path: /jobs$/, how: 'lost' });
    const from_ms = performance.now();
    await client.myJobs();
    expect(server.requests.length - before).toBe(4);
    expect(performance.now() - from_ms).toBeGreaterThan(1000);
    const submissions = (): number =>
      server.requests.filter((request) => /^POST .*jobs$/.test(request)).length;
    const sent = submissions();
    server.next({ method: 'POST', path: /jobs$/, how: { status: 502 } });
    const error = await failure(client.submit(script('fc-once', 'sleep 300'), []));
    expect(error.details.may_have_been_submitted).toBe(true);
    expect(submissions()).toBe(sent + 1);
    expect((await client.myJobs()).filter(({ name }) => name === 'fc-once')).toEqual([]);
    // One that was not taken for want of patience is sent again.
    server.next({ method: 'POST', path: /jobs$/, how: { status: 429, headers: { 'retry-after': '0' } } });
    const { job_id } = await client.submit(script('fc-again', 'sleep 300'), []);
    expect(submissions()).toBe(sent + 3);
    // Nor was one that came with a token that had ended.
    server.revokeTokens();
    const { job_id: renewed } = await client.submit(script('fc-again', 'sleep 300'), []);
    expect(submissions()).toBe(sent + 5);
    const again = (await client.myJobs()).filter(({ name }) => name === 'fc-again');
    expect(again.map((job) => job.base_job_id).sort()).toEqual([job_id, renewed].sort());
    await client.cancel([job_id, renewed]);
  });

  it('a token that ended is renewed; a wrong secret is refused without being shown', async () => {
    const given = server.tokens_given;
    server.revokeTokens();
    await client.myJobs();
    expect(server.tokens_given).toBe(given + 1);
    await client.myJobs();
    expect(server.tokens_given).toBe(given + 1);
    const secret = 'wrong-secret-4711';
    const denied = await failure(clientWith({ variable: 'S', value: secret }).myJobs());
    expect(denied.code).toBe('E_FIRECREST_ACCESS');
    expect(JSON.stringify(denied.toJSON())).not.toContain(secret);
    expect(denied.because.join()).toContain('invalid_client');
    const unset = await failure(clientWith({ variable: 'S', value: undefined }).myJobs());
    expect(unset.because.join()).toContain('$S is not set');
    const file = join(folder, 'secret');
    writeFileSync(file, testClient.secret, { mode: 0o644 });
    expect((await failure(clientWith({ file }).myJobs())).because.join()).toContain('others can read');
    chmodSync(file, 0o600);
    await clientWith({ file }).myJobs();
  });

  it('tells of nodes, partitions, reservations, accounts and the version', async () => {
    const [nodes, partitions, permissions, version] = await Promise.all([
      client.nodeGroups(),
      client.partitions(),
      client.permissions(),
      client.version(),
    ]);
    expect(nodes.find(({ partition }) => partition === 'a100')).toMatchObject({ gres: [] });
    expect(partitions.map(({ name }) => name)).toContain('scavenge');
    expect(permissions.reservations).toEqual([]);
    expect(version.year).toBeGreaterThan(19);
    for (const asked of [
      client.estimateStart(),
      client.expectedStarts(),
      client.cancel(['1'], { signal: 'USR1' }),
    ])
      expect((await failure(asked)).code).toBe('E_CONFIG_UNSUPPORTED');
  });
});

describe('a deployment over FirecREST', () => {
  /** On a machine that shares the filesystem and has none of Slurm's commands. */
  const hpcserve = (...argv: string[]): Promise<CommandResult> =>
    cluster.runAs('user', [...hpcserveProgram, ...argv], {
      cwd: folder,
      env: { HOME: folder, PATH: '/nowhere', SLURM_CONF: '/nowhere', FC_SECRET: testClient.secret },
      timeout_ms: 150_000,
    });
  const own = (path: string): void => chownSync(path, cluster.user.uid, cluster.user.gid);

  beforeAll(() => {
    const site = {
      name: 'afar',
      kind: 'slurm',
      slurm: {
        poll_interval_s: 1,
        firecrest: {
          url: server.url,
          system: testSystem,
          token_url: server.token_url,
          client_id: testClient.id,
          client_secret_env: 'FC_SECRET',
          requests_per_s: 20,
        },
      },
      node_kinds: [
        {
          name: 'a100',
          partition: 'a100',
          count: 2,
          gres_type: 'a100',
          cpus: 4,
          memory_gb: 8,
          devices: [{ kind: 'gpu', model: 'A100', count: 2, memory_gb: 1, emulated: 'cpu' }],
        },
      ],
    };
    writeFileSync(join(folder, 'afar.yaml'), JSON.stringify(site));
    own(join(folder, 'afar.yaml'));
  });

  it('is checked, planned, deployed, asked and stopped without one command of Slurm here', async () => {
    const made = await hpcserve('model', 'synth', 'toy.gguf', '--preset', 'tiny-llama', '--seed', '1');
    expect(made.code, made.stderr).toBe(0);
    writeFileSync(
      join(folder, 'model.yaml'),
      JSON.stringify({
        name: 'afar-demo',
        models: [
          {
            name: 'tiny',
            source: './toy.gguf',
            cpu_threads: 1,
            context_tokens: 512,
            max_sequences: 4,
            devices: { kind: 'gpu' },
          },
        ],
        slurm: { time_limit: '00:10:00' },
      }),
    );
    own(join(folder, 'model.yaml'));
    const doctor = await hpcserve('doctor', '--site', './afar.yaml');
    expect(doctor.stdout + doctor.stderr).toMatch(/state folder.*is the same here and there/);
    const deployed = await hpcserve(
      'deploy',
      '--yes',
      'model.yaml',
      '--site',
      './afar.yaml',
      '--timeout',
      '100s',
    );
    expect(deployed.code, deployed.stdout + deployed.stderr).toBe(0);
    expect(deployed.stderr).toContain('Slurm was not asked');
    const asked = await hpcserve('chat', 'tiny', 'Hello', '--max-tokens', '4', '--site', './afar.yaml');
    expect(asked.code, asked.stderr).toBe(0);
    expect((await hpcserve('status', '--json', '--site', './afar.yaml')).stdout).toContain('"RUNNING"');
    const names = async (): Promise<string> => {
      const queue = await cluster.runAs('user', ['squeue', '--noheader', '--states=R,PD', '--format=%j']);
      expect(queue.code, queue.stderr).toBe(0);
      return queue.stdout;
    };
    expect(await names()).toContain('afar-demo');
    const stopped = await hpcserve('stop', '--all', '--yes', '--site', './afar.yaml');
    expect(stopped.code, stopped.stderr).toBe(0);
    expect(await names()).not.toContain('afar-demo');
    // The secret is in no file of the state folder.
    const grep = await cluster.runAs('user', ['grep', '-rl', testClient.secret, join(folder, '.hpcserve')]);
    // 1: it read everything and found none; of a folder that is not there it would say 2.
    expect(grep, grep.stderr).toMatchObject({ code: 1, stdout: '' });
  }, 300_000);
});
