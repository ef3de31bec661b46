/**
 * One replica of a real vLLM over two nodes that are hosts of their own (`--nnodes 2`, Gloo between them): it serves, a
 * node is lost under a stream, and it serves again. Needs `npm run engines -- vllm`, and root.
 */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { waitUntil } from '../../host/wait-until.ts';
import { lackingForHosts } from '../cluster/hosts.ts';
import { UserHome } from '../cluster/user-home.ts';
import { mayBeRunByOthers } from '../engines/python.ts';
import { realVllm, vllm_ready_ms } from '../engines/vllm.ts';

const { vllm, lacking: lackingVllm } = realVllm();
const lackingHosts = lackingForHosts();
const isOurs = vllm && !mayBeRunByOthers(vllm.python) ? 'a vLLM that other users may run' : '';
const needs = lackingHosts || isOurs;
const lacking = lackingVllm || (needs && ` [skipped: needs ${needs}]`);

/** Of the end of each log, where the test fails. */
const log_bytes_shown = 12_000;

/** CPU nodes as they are, one device each: a replica of two stages takes both. */
function site(shipped: string, network: string): string {
  const config = parse(shipped);
  const cpu = config.node_kinds.find(({ name }: { name: string }) => name === 'cpu-amx');
  cpu.devices = [{ kind: 'cpu', model: 'Xeon-8480+', count: 1, memory_gb: 4, cores: 4 }];
  config.node_kinds = [cpu];
  config.network = { prefer: network, private_fabric: true };
  const prefix = ['/usr/bin/env', `PATH=${dirname(vllm!.python)}:/usr/bin:/bin`];
  config.runtime = { engines: { vllm: { prefix } } };
  return JSON.stringify(config);
}

describe.skipIf(lacking !== '')(`vLLM over two nodes${lacking}`, () => {
  let home: UserHome;
  let client: OpenAI;

  beforeAll(async () => {
    home = await UserHome.open({
      shape: 'separate-hosts',
      site: (shipped, { hosts }) => site(shipped, hosts!.network),
      command_timeout_ms: vllm_ready_ms + 60_000,
    });
    const folder = vllm!.model(join(home.folder, 'tiny'));
    execFileSync('chown', ['-R', `${home.cluster.user.uid}:${home.cluster.user.gid}`, folder]);
  }, 120_000);
  afterAll(() => home?.close(), 60_000);

  const logs = (): Map<string, string> => {
    const folder = join(home.folder, '.hpcserve/test-cluster/deployments/split/launches');
    const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
    return new Map(
      files
        .filter((name) => name.endsWith('.log'))
        .map((name) => [name, readFileSync(join(folder, name), 'utf8')]),
    );
  };

  const body = {
    model: 'split',
    messages: [{ role: 'user' as const, content: 'hello' }],
    max_tokens: 64,
    temperature: 0,
    ignore_eos: true,
  };
  const answer = async (): Promise<string | null> =>
    (await client.chat.completions.create(body)).choices[0]!.message.content;

  /** What a person would look at. */
  const explained = async (error: unknown): Promise<never> => {
    const ends = [...logs()].map(([name, text]) => `--- ${name}\n${text.slice(-log_bytes_shown)}`);
    throw new Error([(error as Error).message, await home.explain(), ...ends].join('\n'), { cause: error });
  };

  async function deploy(): Promise<OpenAI> {
    const model = {
      name: 'split',
      source: './tiny',
      engine: 'vllm',
      parallel: { tensor: 1, pipeline: 2 },
      precision: 'f32',
      context_tokens: 2048,
      max_sequences: 4,
      cpu_threads: 1,
      devices: { kind: 'cpu' },
    };
    home.write('split.yaml', { name: 'split', models: [model] });
    const timeout = `${vllm_ready_ms / 1000}s`;
    const deployed = await home.hpcserve('deploy', '--yes', 'split.yaml', '--json', '--timeout', timeout);
    if (deployed.code !== 0) throw new Error(deployed.stderr);
    const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!);
    return new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  }

  /** Whether no job runs any more. */
  async function hasEnded(): Promise<true | undefined> {
    const { stdout } = await home.run(['squeue', '--noheader', '--states=RUNNING,COMPLETING']);
    return stdout.trim() === '' || undefined;
  }

  /** Loses a node under a stream. @returns what the stream ended with */
  async function loseUnderStream(): Promise<string | undefined> {
    const chunks = await client.chat.completions.create({ ...body, max_tokens: 1900, stream: true });
    let said = '';
    try {
      for await (const { choices } of chunks) {
        if (said === '') home.cluster.loseNode('c2');
        said += choices[0]?.delta.content ?? '';
      }
    } catch (error) {
      return (error as Error).message;
    }
    return undefined;
  }

  it(
    'serves, loses a node, and serves the same again',
    async () => {
      client = await deploy().catch(explained);
      const before = await answer().catch(explained);
      expect(before).toBeTruthy();
      // It is the only replica, and comes back only once the node does: the stream says why it ends.
      expect(await loseUnderStream().catch(explained)).toMatch(/no other replica could go on with it/);
      // As one machine, the node has not booted for Slurm: it must have missed it, to end the job.
      expect(await waitUntil(hasEnded, { timeout_ms: 90_000, interval_ms: 1000 })).toBe(true);
      home.cluster.bootNode('c2');
      const isBack = async (): Promise<true | undefined> =>
        (await answer().catch(() => undefined)) === before || undefined;
      if (!(await waitUntil(isBack, { timeout_ms: vllm_ready_ms, interval_ms: 500 })))
        await explained(new Error('it does not serve again'));
      expect((await home.hpcserve('stop', 'split', '--yes')).code).toBe(0);
    },
    2 * vllm_ready_ms,
  );
});
