/** An engine whose device fails, in a real Slurm job: the job ends with the agent's code, and everybody says why. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { CommandResult } from '../../slurm/command-runner.ts';
import { UserHome } from '../cluster/user-home.ts';
import { eventually } from '../mesh/support.ts';

const engine = fileURLToPath(new URL('../agent/fragile-engine.mjs', import.meta.url));

let home: UserHome;
/** Home, state and model of the user, on a filesystem all nodes see. */
let folder: string;

beforeAll(async () => {
  // The failed job stays the one that is looked at: a keeper has another in its place within a second.
  home = await UserHome.open({ site: (shipped) => `${shipped}keeper: { place: none }\n` });
  folder = home.folder;
});
afterAll(() => home?.close());

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

interface Status {
  phase: string;
  reasons: string[];
  launches: { launch_id: string; job_id: string; job: { state: string; exit_code?: number } }[];
}

it('the job fails with the exit code of the agent; status and logs have the words of the engine', async () => {
  const model = {
    name: 'fragile',
    source: './toy.gguf',
    engine: 'command',
    command: [process.execPath, engine, '{socket}'],
    cpu_threads: 1,
    devices: { kind: 'gpu', node_kinds: ['a100'] },
  };
  const file = home.write('fragile.yaml', { name: 'fragile', models: [model] });
  const deployed = await hpcserve('deploy', '--yes', file, '--json', '--timeout', '90s');
  expect(deployed.code, deployed.stderr + deployed.stdout).toBe(0);
  const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!) as { url: string; key: string };
  const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  const ask = (content: string) =>
    client.chat.completions.create({ model: 'fragile', messages: [{ role: 'user', content }] });
  await expect(ask('cuda')).rejects.toBeInstanceOf(OpenAI.APIError);

  const status = await eventually(
    async () => {
      const { stdout } = await hpcserve('status', 'fragile', '--json');
      const [found] = (JSON.parse(stdout) as { deployments: Status[] }).deployments;
      return found!.launches.some(({ job }) => job.state === 'FAILED') ? found! : undefined;
    },
    'the job has failed',
    60_000,
  );
  const launch = status.launches.find(({ job }) => job.state === 'FAILED');
  expect(launch!.job.exit_code).toBe(8);
  expect(JSON.stringify(status)).toContain('CUDA error: an illegal memory access was encountered');

  const logs = await hpcserve('logs', 'fragile', '--old');
  expect(logs.stdout, logs.stderr).toContain('CUDA error: an illegal memory access was encountered');
  const files = readdirSync(
    join(folder, '.hpcserve/test-cluster/deployments/fragile/launches', launch!.launch_id),
  );
  expect(files.filter((name) => name.endsWith('.failure.json'))).toHaveLength(1);
}, 240_000);
