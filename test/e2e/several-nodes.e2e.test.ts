/** One replica on two nodes of a real Slurm cluster: its parts find each other, and the loss of one ends all of it. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { UserHome } from '../cluster/user-home.ts';
import { eventually } from '../mesh/support.ts';

const engine = fileURLToPath(new URL('../agent/spread-engine.mjs', import.meta.url));

let home: UserHome;
let cluster: Cluster;
/** Home, state and model of the user, on a filesystem all nodes see. */
let folder: string;
let client: OpenAI;

beforeAll(async () => {
  home = await UserHome.open();
  ({ cluster, folder } = home);
});
afterAll(() => home?.close());

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

interface Launch {
  launch_id: string;
  job_id: string;
  phase: string;
  job: { state: string };
}

async function launches(): Promise<Launch[]> {
  const { code, stdout, stderr } = await hpcserve('status', 'wide', '--json');
  expect(code, stderr).toBe(0);
  return (JSON.parse(stdout) as { deployments: { launches: Launch[] }[] }).deployments[0]!.launches;
}

/** What the agents of a launch say of themselves. */
function agents({ launch_id }: Launch): Record<'a1' | 'a2', AgentState> {
  const path = join(folder, '.hpcserve/test-cluster/deployments/wide/launches', launch_id);
  const read = (node: string): AgentState =>
    JSON.parse(readFileSync(join(path, launchFiles.agentState(node)), 'utf8'));
  return { a1: read('a1'), a2: read('a2') };
}

async function ask(): Promise<string | null> {
  const answer = await client.chat.completions.create({
    model: 'wide',
    messages: [{ role: 'user', content: 'Where are you?' }],
  });
  return answer.choices[0]!.message.content;
}

/** The launch that serves, once it is not the one given. */
function serving(before?: Launch): Promise<Launch> {
  return eventually(
    async () => {
      const found = (await launches()).find(
        ({ launch_id, job }) => job?.state === 'RUNNING' && launch_id !== before?.launch_id,
      );
      if (found === undefined) return undefined;
      return (await ask().catch(() => null)) === '0 on a1, 1 on a2' ? found : undefined;
    },
    'another job serves on both nodes',
    90_000,
  );
}

it('finds its parts by rank, address and key, and ends whole where one is lost', async () => {
  const model = {
    name: 'wide',
    source: './toy.gguf',
    engine: 'command',
    command: [process.execPath, engine, '{socket}', '{rank}', '{nodes}', '{leader_host}', '{leader_port}'],
    parallel: { tensor: 2, pipeline: 2 },
    cpu_threads: 1,
    devices: { kind: 'gpu', node_kinds: ['a100'] },
  };
  const file = home.write('wide.yaml', { name: 'wide', models: [model] });
  expect((await hpcserve('plan', file)).stdout).toMatch(/2 nodes, each 2× A100/);
  const deployed = await hpcserve('deploy', '--yes', file, '--json', '--timeout', '90s');
  expect(deployed.code, deployed.stderr + deployed.stdout).toBe(0);
  const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  const first = await serving();
  const { stdout } = await cluster.runAs('user', ['scontrol', '--oneliner', 'show', 'job', first.job_id]);
  expect(stdout).toMatch(/NumNodes=2 .*NodeList=a\[1-2\]|NodeList=a\[1-2\].*NumNodes=2 /);
  expect(agents(first).a2.sessions.map(({ models }) => models)).toEqual([[], []]);

  const { stdout: shown } = await hpcserve('status', 'wide');
  expect(shown).toMatch(
    /2× A100 \(emulated\), tensor 2, pipeline 2, on each of 2 nodes of a100 .*as planned/,
  );

  // The part's own process: its agent says so, the first node ends the rest, the keeper starts another job.
  const part = agents(first).a2.sessions.find(({ unit }) => unit === 'wide-0')!;
  process.kill(part.pid!, 'SIGKILL');
  const second = await serving(first);
  const { a1 } = agents(first);
  expect(a1).toMatchObject({ phase: 'failed', error: { code: 'E_AGENT_UNITS_FAILED' } });
  expect(JSON.stringify(a1.error)).toMatch(/its part 2 of 2 ended: .*on this node was killed \(SIGKILL\)/);

  // An agent of it, as when a node is lost: nobody is left to say so, and Slurm ends the job.
  process.kill(agents(second).a2.pid, 'SIGKILL');
  const third = await serving(second);

  const stopped = await hpcserve('stop', 'wide', '--yes');
  expect(stopped.code, stopped.stderr).toBe(0);
  expect(Object.values(agents(third)).map(({ phase }) => phase)).toEqual(['stopped', 'stopped']);
}, 300_000);
