/** A replica on two nodes that are hosts of their own: an address, a /tmp and a /dev/shm each. One of them is lost. */
import { rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { lackingForHosts } from '../cluster/hosts.ts';
import { UserHome } from '../cluster/user-home.ts';
import { eventually } from '../mesh/support.ts';

const engine = fileURLToPath(new URL('../agent/spread-engine.mjs', import.meta.url));
const lacking = lackingForHosts();

describe.skipIf(lacking !== '')(`nodes of their own${lacking && ` [skipped: needs ${lacking}]`}`, () => {
  let home: UserHome;
  let client: OpenAI;

  beforeAll(async () => {
    home = await UserHome.open({
      shape: 'separate-hosts',
      site: (shipped, { hosts }) =>
        JSON.stringify({
          ...parse(shipped),
          network: { prefer: hosts!.network },
          keeper: { lost_after_s: 5 },
        }),
    });
  }, 60_000);
  afterAll(() => home?.close(), 60_000);

  const on = (node: string, ...argv: string[]) =>
    home.run(['srun', '--immediate=20', '--partition=debug', `--nodelist=${node}`, ...argv]);

  it('have an address, a /tmp and a /dev/shm that no other has', async () => {
    const mark = `/tmp/hpcserve-of-the-login-node-${process.pid}`;
    writeFileSync(mark, '');
    try {
      const look = [
        'sh',
        '-c',
        'ip -4 -o addr show dev eth0; ls /tmp /dev/shm; touch /tmp/mine /dev/shm/mine',
      ];
      for (const node of ['a1', 'a2']) {
        const { stdout, stderr } = await on(node, ...look);
        expect(stdout, stderr).toContain(`inet ${home.cluster.hosts!.address(node)}/24`);
        expect(stdout).not.toMatch(/login-node|mine/);
      }
    } finally {
      rmSync(mark);
    }
  }, 60_000);

  interface Launch {
    launch_id: string;
    job_id: string;
    job?: { state: string };
  }
  async function launches(): Promise<Launch[]> {
    const { code, stdout, stderr } = await home.hpcserve('status', 'wide', '--json');
    expect(code, stderr).toBe(0);
    return (JSON.parse(stdout) as { deployments: { launches: Launch[] }[] }).deployments[0]!.launches;
  }
  const isRunning = async ({ launch_id }: Launch): Promise<boolean> =>
    (await launches()).some((each) => each.launch_id === launch_id && each.job?.state === 'RUNNING');
  async function stateInSlurm({ job_id }: Launch): Promise<string | undefined> {
    const { stdout } = await home.run(['scontrol', '--oneliner', 'show', 'job', job_id]);
    return /JobState=(\S+)/.exec(stdout)?.[1];
  }
  async function ask(): Promise<string | null> {
    const messages = [{ role: 'user' as const, content: 'Where are you?' }];
    return (await client.chat.completions.create({ model: 'wide', messages })).choices[0]!.message.content;
  }

  it('hold a replica together, which is replaced where one of them is lost, once it is back', async () => {
    const model = {
      name: 'wide',
      source: './toy.gguf',
      engine: 'command',
      command: [process.execPath, engine, '{socket}', '{rank}', '{nodes}', '{leader_host}', '{leader_port}'],
      parallel: { tensor: 2, pipeline: 2 },
      cpu_threads: 1,
      devices: { kind: 'gpu', node_kinds: ['a100'] },
    };
    home.write('wide.yaml', { name: 'wide', models: [model] });
    const deployed = await home.hpcserve('deploy', '--yes', 'wide.yaml', '--json', '--timeout', '90s');
    if (deployed.code !== 0) throw new Error(deployed.stderr + (await home.explain()));
    const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!);
    client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
    expect(await ask()).toBe('0 on a1, 1 on a2');
    const [first] = await launches();

    home.cluster.loseNode('a2');
    await eventually(async () => (await ask().catch(() => undefined)) === undefined, 'it has ended', 60_000);
    // The first node says at once what happened; the job is over once Slurm hears nothing from the other.
    await eventually(async () => !(await isRunning(first!)), 'the job was ended', 80_000);
    const { stdout: shown } = await home.hpcserve('status', 'wide');
    expect(shown).toMatch(
      new RegExp(
        `job ${first!.job_id} was ended .* ago: node a2 is lost: Slurm gets no answer, and the agent left`,
      ),
    );
    // Not by Slurm, which still waits for the node, and would call it NODE_FAIL.
    expect(await stateInSlurm(first!)).toBe('COMPLETING');
    home.cluster.bootNode('a2');
    const next = async (): Promise<Launch | undefined> =>
      (await launches()).find(
        ({ launch_id, job }) => job?.state === 'RUNNING' && launch_id !== first!.launch_id,
      );
    await eventually(
      async () => (await next()) && (await ask().catch(() => undefined)) === '0 on a1, 1 on a2',
      'another job serves on both nodes',
      120_000,
    ).catch(async (error: Error) => {
      throw new Error(`${error.message}\n${await home.explain()}`);
    });
    // On the node that is back nothing of it runs again.
    expect(await stateInSlurm(first!)).toBe('CANCELLED');
    expect((await home.hpcserve('stop', 'wide', '--yes')).code).toBe(0);
  }, 300_000);
});
