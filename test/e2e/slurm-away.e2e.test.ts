/**
 * A controller that stops answering while a deployment starts, and answers again: nothing is lost, nothing is twice.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { hpcserveProgram, UserHome } from '../cluster/user-home.ts';

let home: UserHome;
let cluster: Cluster;
let folder: string;
let controller: number;

beforeAll(async () => {
  // One of its own: no other test waits for this controller.
  home = await UserHome.open({ cluster: 'away' });
  ({ cluster, folder } = home);
  controller = cluster.state.daemons.find(({ name }) => name === 'slurmctld')!.pid;
  home.write('model.yaml', {
    name: 'away',
    models: [
      {
        name: 'tiny',
        source: './toy.gguf',
        cpu_threads: 1,
        context_tokens: 512,
        max_sequences: 4,
        replicas: 2,
        devices: { kind: 'gpu' },
      },
    ],
  });
});
afterAll(async () => {
  process.kill(controller, 'SIGCONT');
  await home?.close();
});

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

/** A command that is watched while it runs. */
function start(...argv: string[]): { child: ChildProcess; text: () => string; code: Promise<number | null> } {
  const [program = '', ...args] = cluster.argvAsUser([...hpcserveProgram, ...argv]);
  const child = spawn(program, args, { cwd: folder, env: { ...cluster.env, ...home.environment } });
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      text += chunk;
    });
  return { child, text: () => text, code: new Promise((resolve) => child.once('close', resolve)) };
}

it('goes on where it was, with each job once', async () => {
  // Jobs of theirs that started would serve, and the deploy end, without a word of the controller.
  const { stdout: holder, stderr } = await cluster.runAs('root', [
    ...['sbatch', '--parsable', '--partition=debug', '--nodes=6', '--exclusive', '--time=5'],
    ...['--output=/dev/null', '--wrap=sleep 300'],
  ]);
  expect(holder, stderr).toMatch(/^\d+/);
  const running = ['squeue', '--noheader', '--states=R', '--format=%i'];
  await expect
    .poll(async () => (await cluster.runAs('root', running)).stdout, { timeout: 30_000 })
    .toBe(holder);
  const deploy = start('deploy', '--yes', 'model.yaml', '--json', '--timeout', '140s');
  await expect
    .poll(() => deploy.text().includes('"submitted"'), { timeout: 60_000, interval: 20 })
    .toBe(true);
  process.kill(controller, 'SIGSTOP');
  // As long as Slurm's own commands wait for an answer (MessageTimeout), and then some.
  await expect
    .poll(async () => (await hpcserve('status', 'away')).stdout, { timeout: 60_000 })
    .toMatch(/Slurm does not answer/);
  expect(deploy.child.exitCode).toBe(null);
  process.kill(controller, 'SIGCONT');
  expect((await cluster.runAs('root', ['scancel', holder.trim()])).code).toBe(0);
  expect(await deploy.code, deploy.text()).toBe(0);
  const { stdout } = await cluster.runAs('user', ['squeue', '--noheader', '--me', '--format=%i %k']);
  const jobs = stdout.trim().split('\n');
  expect(new Set(jobs.map((line) => line.split(' ')[1])).size).toBe(jobs.length);
  const status = JSON.parse((await hpcserve('status', 'away', '--json')).stdout);
  expect(status.deployments[0].phase).toBe('serving');
  expect(status.deployments[0].launches.map((launch: { job_id: string }) => launch.job_id).sort()).toEqual(
    jobs.map((line) => line.split(' ')[0]!).sort(),
  );
}, 200_000);

it('refuses a new deployment in words, and leaves none behind', async () => {
  expect((await hpcserve('stop', '--all', '--yes')).code).toBe(0);
  process.kill(controller, 'SIGSTOP');
  try {
    const refused = await hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '60s');
    expect(refused.code).toBe(7);
    expect(refused.stderr).toContain('E_SLURM_UNREACHABLE');
  } finally {
    process.kill(controller, 'SIGCONT');
  }
  const { stdout } = await cluster.runAs('user', ['squeue', '--noheader', '--states=R,PD']);
  expect(stdout).toBe('');
}, 200_000);
