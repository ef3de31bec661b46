/**
 * Equal replicas as one job array on a real Slurm cluster: each task is a replica of its own, ended, requeued and
 * replaced alone.
 */
import { existsSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { deploymentFiles, launchFiles } from '../../spec/state-layout.ts';
import { atLeastRelease, slurmPrograms } from '../cluster/slurm-folder.ts';
import { UserHome } from '../cluster/user-home.ts';
import { eventually } from '../mesh/support.ts';

let home: UserHome;

beforeAll(async () => {
  home = await UserHome.open({
    site: anyNode,
    // More than `deploy` waits for six nodes, so that its own words are seen.
    command_timeout_ms: 150_000,
  });
});
afterAll(() => home?.close());

/** One kind for all six nodes, with one device each: every replica is a job, and ordinary jobs may take its node. */
function anyNode(shipped: string): string {
  const kind = {
    name: 'any',
    count: 6,
    partition: 'scavenge',
    tier: 'scavenger',
    devices: [{ kind: 'cpu', model: 'Xeon-8480+', count: 1, memory_gb: 2, cores: 1, emulated: 'cpu' }],
    cpus: 4,
    memory_gb: 15,
    // Each has a node of its own, as the test takes one away.
    slurm: { exclusive: true },
    max_time: '04:00:00',
  };
  return shipped.replace('node_kinds:\n', `node_kinds:\n  - ${JSON.stringify(kind)}\n`);
}

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

interface Launch {
  launch_id: string;
  job_id: string;
  phase: string;
  job: { state: string; restart_count?: number };
}

async function launches(): Promise<Launch[]> {
  const { stdout, stderr } = await hpcserve('status', 'many', '--json');
  expect(stderr).not.toMatch(/error:/);
  return (JSON.parse(stdout) as { deployments: { launches: Launch[] }[] }).deployments[0]!.launches;
}

const running = async (): Promise<Launch[]> =>
  (await launches()).filter(({ phase, job }) => phase === 'submitted' && job.state === 'RUNNING');

const launchFolder = ({ launch_id }: Pick<Launch, 'launch_id'>): string =>
  join(home.folder, '.hpcserve/test-cluster/deployments/many/launches', launch_id);

async function slurm(...argv: string[]): Promise<string> {
  const { code, stdout, stderr } = await home.run(argv);
  expect(code, stderr).toBe(0);
  return stdout;
}

/** Whatever their names: the cluster may be shared with another run of tests. */
async function here(): Promise<string[]> {
  const queue = await slurm('squeue', '--noheader', '--array', '--format=%i %j %Z', '--states=R,PD,CG');
  return queue.split('\n').filter((line) => line.includes(home.folder));
}

it('is submitted once, and its tasks live and die one by one', async () => {
  const model = {
    name: 'tiny',
    source: './toy.gguf',
    replicas: 4,
    cpu_threads: 1,
    context_tokens: 512,
    max_sequences: 4,
    devices: { kind: 'cpu', node_kinds: ['any'] },
  };
  const file = home.write('many.yaml', { name: 'many', models: [model] });
  const rendered = await hpcserve('render', file);
  expect(rendered.code, rendered.stderr).toBe(0);
  // 20.11 gives tasks with whole nodes only nodes like the first's: here they would wait for ever.
  const hasArrays = atLeastRelease(slurmPrograms(home.cluster.state.slurm).version, '22.05');
  expect(rendered.stdout.match(/#SBATCH --array=.*/g)).toEqual(hasArrays ? ['#SBATCH --array=0-3'] : null);
  const deployed = await hpcserve('deploy', '--yes', file, '--json', '--timeout', '120s');
  expect(deployed.code, deployed.stderr + deployed.stdout).toBe(0);
  if (!hasArrays) {
    const alone = await running();
    expect(alone.map(({ job_id }) => job_id)).toEqual(alone.map(() => expect.stringMatching(/^\d+$/)));
    return;
  }
  const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!) as { url: string; key: string };

  const first = await running();
  const [array = ''] = first[0]!.job_id.split('_');
  expect(first.map(({ job_id }) => job_id)).toEqual([0, 1, 2, 3].map((task) => `${array}_${task}`));
  for (const [task, launch] of first.entries()) {
    const folder = launchFolder(launch);
    const link = readlinkSync(join(folder, launchFiles.script));
    expect(readFileSync(join(folder, link), 'utf8')).toBe(rendered.stdout);
    const said = JSON.parse((await slurm('sh', '-c', `cat ${folder}/*.state.json`)).trim()) as AgentState;
    expect(said.launch_id).toBe(launch.launch_id);
    expect(existsSync(join(folder, launchFiles.log))).toBe(true);
    // Its mates' folders are not its own.
    expect(readlinkSync(join(folder, '..', link.split('/')[1]!, `task-${task}`))).toBe(
      `../${launch.launch_id}`,
    );
  }
  const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
  const ask = async (): Promise<string | null> =>
    (
      await client.chat.completions.create({
        model: 'tiny',
        max_tokens: 4,
        messages: [{ role: 'user', content: 'Hi' }],
      })
    ).choices[0]!.message.content;
  expect(typeof (await ask())).toBe('string');

  // As if the command had died while sbatch ran: whoever comes next finds every task, and submits nothing.
  const forget = `
    const fs = require('node:fs');
    const path = process.argv[1];
    const state = JSON.parse(fs.readFileSync(path, 'utf8'));
    for (const launch of state.launches) { launch.phase = 'submitting'; delete launch.job_id; delete launch.last; }
    fs.writeFileSync(path + '.new', JSON.stringify(state), { mode: 0o600 });
    fs.renameSync(path + '.new', path);`;
  const stateFile = join(home.folder, '.hpcserve/test-cluster/deployments/many', deploymentFiles.state);
  await slurm(process.execPath, '-e', forget, stateFile);
  const found = await eventually(
    async () => {
      const now = await running();
      return now.length === 4 ? now : undefined;
    },
    'the tasks are found again',
    60_000,
  );
  expect(found.map(({ job_id }) => job_id)).toEqual(first.map(({ job_id }) => job_id));
  expect(await here()).toHaveLength(4);

  // A shell goes into the task that is meant; the last one's own number in Slurm is that of the whole array.
  for (const task of [2, 3]) {
    const said = ['sh', '-c', 'echo "on $SLURMD_NODENAME"'];
    const shell = await hpcserve('shell', 'many', '--unit', `tiny-${task}`, '--', ...said);
    const [node] = (await slurm('squeue', '--noheader', `--jobs=${array}_${task}`, '--format=%N')).split(
      '\n',
    );
    expect(shell.stdout, shell.stderr).toContain(`on ${node}\n`);
  }

  // The end of that last task is the end of no other, and a job of its own takes its place.
  await slurm('scancel', first[3]!.job_id);
  const second = await eventually(
    async () => {
      const now = await running();
      return now.length === 4 && now.every(({ job_id }) => job_id !== first[3]!.job_id) ? now : undefined;
    },
    'another job in the place of the last task',
    90_000,
  );
  const added = second.filter(({ job_id }) => !first.some((each) => each.job_id === job_id));
  expect(added.map(({ job_id }) => /^\d+$/.test(job_id))).toEqual([true]);
  expect(readFileSync(join(launchFolder(added[0]!), launchFiles.script), 'utf8')).not.toContain('--array');
  expect(second.slice(0, 3).map(({ job_id }) => job_id)).toEqual(
    first.slice(0, 3).map(({ job_id }) => job_id),
  );

  // An ordinary job takes the node of one task: that one alone goes back into the queue, by its own script.
  const taken = second[1]!;
  const node = (await slurm('squeue', '--noheader', `--jobs=${taken.job_id}`, '--format=%N')).trim();
  const ordinary = [
    '--partition=debug',
    `--nodelist=${node}`,
    '--exclusive',
    '--output=/dev/null',
    '--wrap=sleep 4',
  ];
  await slurm('sbatch', '--time=1', ...ordinary);
  const others = second.filter((launch) => launch !== taken).map(({ job_id }) => job_id);
  await eventually(
    async () => {
      const back = (await launches()).find(({ job_id }) => job_id === taken.job_id);
      return back?.job.state === 'PENDING';
    },
    'the task is back in the queue',
    60_000,
  );
  expect((await running()).map(({ job_id }) => job_id)).toEqual(others);
  expect(readFileSync(join(launchFolder(taken), launchFiles.log), 'utf8')).toContain('back into the queue');
  // Slurm lets a requeued job wait for two minutes unless it is told otherwise.
  await slurm('scontrol', 'update', `JobId=${taken.job_id}`, 'StartTime=now');
  const third = await eventually(
    async () => {
      const now = await running();
      return now.length === 4 ? now : undefined;
    },
    'the task that was preempted runs again',
    60_000,
  );
  expect(third.map(({ job_id, job }) => [job_id, job.restart_count])).toEqual(
    second.map(({ job_id }) => [job_id, job_id === taken.job_id ? 1 : 0]),
  );

  // Where every task is known by its own folder, a smaller number of replicas ends those that are too many.
  const fewer = home.write('many.yaml', { name: 'many', models: [{ ...model, replicas: 2 }] });
  const changed = await hpcserve('deploy', '--yes', fewer, '--json', '--timeout', '120s');
  expect(changed.code, changed.stderr + changed.stdout).toBe(0);
  const left = await eventually(
    async () => {
      const now = await running();
      return now.length === 2 ? now : undefined;
    },
    'two replicas are left',
    90_000,
  );
  expect(left.map(({ job_id }) => job_id)).toEqual([0, 1].map((task) => `${array}_${task}`));
  expect((await hpcserve('render', fewer)).stdout).toBe(rendered.stdout);

  // Those that were too many may still be cleaned up.
  const listed = (await here()).map((line) => line.trim().split(/\s+/)[0]);
  expect(listed).toEqual(expect.arrayContaining(left.map(({ job_id }) => job_id)));
  const stopped = await hpcserve('stop', 'many', '--yes');
  expect(stopped.code, stopped.stderr).toBe(0);
  expect(await here()).toEqual([]);
}, 300_000);
