/**
 * Device-time of real jobs beside the tokens that came of it: on a Slurm that forgets its jobs, and on one with
 * slurmdbd, whose word is compared with ours.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { expect, it } from 'vitest';
import { type JobUsageAnswer, jobUsageAnswerSchema } from '../../spec/job-usage.ts';
import { ensureAccountingInstalled } from '../cluster/accounting.ts';
import { UserHome } from '../cluster/user-home.ts';

const model = {
  name: 'tiny',
  source: './toy.gguf',
  cpu_threads: 1,
  context_tokens: 512,
  max_sequences: 4,
  devices: { kind: 'gpu', node_kinds: ['a100'] },
};

async function usageOf(home: UserHome, ...flags: string[]): Promise<JobUsageAnswer> {
  const { code, stdout, stderr } = await home.hpcserve('usage', 'jobs', '--json', ...flags);
  expect(code, stderr).toBe(0);
  return jobUsageAnswerSchema.parse(JSON.parse(stdout));
}

/** Deploys, asks once, and tells with which job. */
async function serveAndAsk(home: UserHome, ...flags: string[]): Promise<string> {
  home.write('model.yaml', { name: 'demo', models: [model] });
  const made = await home.hpcserve('deploy', '--yes', 'model.yaml', '--json', '--timeout', '90s', ...flags);
  expect(made.code, made.stderr + made.stdout).toBe(0);
  const { url, key } = JSON.parse(made.stdout.trim().split('\n').at(-1)!);
  await ask(url, key);
  const { stdout } = await home.hpcserve('status', 'demo', '--json');
  return JSON.parse(stdout).deployments[0].launches[0].job_id;
}

async function ask(baseURL: string, apiKey: string): Promise<void> {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 5 });
  const { usage } = await client.chat.completions.create({
    model: 'tiny',
    max_tokens: 16,
    messages: [{ role: 'user', content: 'Hello' }],
  });
  expect(usage?.completion_tokens).toBeGreaterThan(0);
}

it('a job is accounted for while it runs, when it has ended, and when its deployment is forgotten', async () => {
  const home = await UserHome.open();
  try {
    const job_id = await serveAndAsk(home);
    const going = (await usageOf(home)).jobs.find(({ group }) => group.job === job_id);
    expect(going).toMatchObject({ state: 'RUNNING', devices: 1, device_model: 'A100', requests: 1 });
    expect(going!.completion_tokens).toBeGreaterThan(0);
    expect(going!.busy_device_s).toBeGreaterThan(0);
    expect(going!.busy_device_s).toBeLessThan(going!.allocated_device_s!);
    expect(going!.idle_share).toBeCloseTo(1 - going!.busy_device_s / going!.allocated_device_s!, 6);

    expect((await home.hpcserve('stop', 'demo', '--yes')).code).toBe(0);
    expect((await home.hpcserve('forget', 'demo', '--yes')).code).toBe(0);
    const shown = await home.run(['scontrol', '--oneliner', 'show', 'job', job_id], { TZ: 'UTC' });
    const time_ms = (name: string): number =>
      Date.parse(`${new RegExp(` ${name}=(\\S+)`).exec(shown.stdout)![1]}Z`);
    const over = (await usageOf(home)).jobs.find(({ group }) => group.job === job_id)!;
    expect(over.state).toBe('CANCELLED');
    expect(over).not.toHaveProperty('end_seen');
    expect(over.walltime_s).toBe((time_ms('EndTime') - time_ms('StartTime')) / 1000);
    expect(over.allocated_device_s).toBe(over.walltime_s);
    expect(over.busy_device_s).toBe(going!.busy_device_s);

    // By what a job has one of, and by its model: the same device-hours.
    for (const by of ['deployment', 'account,tier', 'node_kind', 'model']) {
      const { jobs } = await usageOf(home, '--group-by', by);
      const allocated = jobs.reduce((sum, row) => sum + (row.allocated_device_s ?? 0), 0);
      expect(allocated, by).toBeCloseTo(over.allocated_device_s!, 6);
    }
    const table = await home.hpcserve('usage', 'jobs');
    expect(table.stdout).toMatch(/JOB +ACCOUNT +STATE +DEVICES +WALLTIME +DEVICE-HOURS +BUSY +IDLE/);
    expect(table.stdout).toMatch(new RegExp(`\\b${job_id} +.*CANCELLED +1x A100 `));
    const sql = await home.hpcserve(
      ...['usage', 'sql', '--csv'],
      `SELECT deployment, models, allocated_device_s FROM jobs WHERE job_id = '${job_id}'`,
    );
    expect(sql.stdout).toBe(`deployment,models,allocated_device_s\ndemo,tiny,${over.allocated_device_s}\n`);
    // Without the scheduler, records alone tell.
    const ledger = join(home.folder, '.hpcserve/test-cluster/gateway/ledger.sqlite');
    const offline = await usageOf(home, '--ledger', ledger);
    expect(offline.jobs.find(({ group }) => group.job === job_id)).toEqual(over);
  } finally {
    await home.close();
  }
}, 180_000);

it('every run of a job that went back into the queue counts as long as slurmdbd says', async () => {
  const installation = await ensureAccountingInstalled();
  if (!installation.ready) throw new Error(installation.missing);
  const home = await UserHome.open({
    accounting: true,
    site: (shipped) => shipped.replace('\nslurm:\n', '\nslurm:\n  requeue: always\n'),
  });
  try {
    const job_id = await serveAndAsk(home, '--account=chat');
    const runs = (): { start_ms: number; end_ms?: number }[] =>
      readFileSync(join(home.folder, '.hpcserve/test-cluster/jobs/demo.jsonl'), 'utf8')
        .split('\n')
        .filter((line) => line.includes(`"job_id":"${job_id}"`))
        .map((line) => JSON.parse(line));
    const first_ms = runs()[0]!.start_ms;
    expect((await home.run(['scontrol', 'requeue', job_id])).code).toBe(0);
    // Slurm lets a job rest for two minutes that was put back into the queue.
    const isBack = async (): Promise<boolean> =>
      (await home.run(['squeue', '--noheader', '--format=%T', '--jobs', job_id])).stdout.trim() === 'PENDING';
    await expect.poll(isBack, { timeout: 60_000, interval: 500 }).toBe(true);
    expect((await home.run(['scontrol', 'update', `JobId=${job_id}`, 'StartTime=now'])).code).toBe(0);
    const again = (): boolean => runs().some(({ start_ms }) => start_ms > first_ms);
    await expect.poll(again, { timeout: 60_000, interval: 500 }).toBe(true);
    expect((await home.hpcserve('stop', 'demo', '--yes')).code).toBe(0);

    // slurmdbd hears of an end a moment after everybody else.
    const asked = ['sacct', '-X', '-D', '-n', '-P', '-j', job_id, '-o', 'ElapsedRaw,Account,State,End'];
    const accounted = async (): Promise<string[][]> => {
      const { stdout } = await home.run(asked);
      return stdout
        .trim()
        .split('\n')
        .map((line) => line.split('|'));
    };
    const ended = async (): Promise<number> =>
      (await accounted()).filter(([, , , end]) => end !== undefined && end !== 'Unknown').length;
    await expect.poll(ended, { timeout: 60_000, interval: 1000 }).toBe(2);
    const rows = await accounted();
    expect(rows.map(([, account]) => account)).toEqual(['chat', 'chat']);
    const elapsed_s = rows.reduce((sum, [elapsed]) => sum + Number(elapsed), 0);
    const ours = (await usageOf(home)).jobs.find(({ group }) => group.job === job_id)!;
    expect(ours.account).toBe('chat');
    expect(ours.walltime_s).toBe(elapsed_s);
    expect((await usageOf(home, '--group-by', 'account')).jobs).toMatchObject([
      { group: { account: 'chat' }, jobs: 1, allocated_device_s: elapsed_s },
    ]);
  } finally {
    await home.close();
  }
}, 300_000);
