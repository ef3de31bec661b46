/** The whole way on a real Slurm cluster, as an ordinary user: deploy on two node kinds, chat, stop, refusals. */
import { spawn } from 'node:child_process';
import { chownSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { spawn as spawnPty } from 'node-pty';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import type { CommandResult } from '../../slurm/command-runner.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { hpcserveProgram, UserHome } from '../cluster/user-home.ts';

let home: UserHome;
let cluster: Cluster;
/** Home, state and models of the user, on a filesystem all nodes see. */
let folder: string;

beforeAll(async () => {
  home = await UserHome.open();
  ({ cluster, folder } = home);
});
afterAll(() => home?.close());

const hpcserve = (...argv: string[]): Promise<CommandResult> => home.hpcserve(...argv);

function write(name: string, more: Record<string, unknown> = {}, slurm: Record<string, string> = {}): string {
  const model = {
    name: 'tiny',
    source: './toy.gguf',
    cpu_threads: 1,
    context_tokens: 512,
    max_sequences: 4,
    devices: { kind: 'gpu', node_kinds: ['gh200', 'a100'] },
    ...more,
  };
  const path = join(folder, `${name}.yaml`);
  // JSON is YAML.
  writeFileSync(path, JSON.stringify({ name, models: [model], slurm }, null, 1));
  chownSync(path, cluster.user.uid, cluster.user.gid);
  return path;
}

interface Launch {
  launch_id: string;
  job_id: string;
  node_kind: string;
  job: { state: string; phase: string; pending?: { reason: string } };
}
async function status(name: string): Promise<{ phase: string; reasons: string[]; launches: Launch[] }> {
  const { code, stdout, stderr } = await hpcserve('status', name, '--json');
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout).deployments[0];
}
const queue = async (): Promise<string> => (await cluster.runAs('user', ['squeue', '--noheader'])).stdout;
/** Jobs of one deployment: the cluster may be shared with another run of these tests. */
const queued = async (name: string): Promise<string[]> =>
  (await cluster.runAs('user', ['squeue', '--noheader', '--format=%j'])).stdout
    .split('\n')
    .filter((job) => job.startsWith(`hpcserve-${name}-`) || job.startsWith(`${name}-`));
const lastLine = (text: string): { url: string; key: string } => JSON.parse(text.trim().split('\n').at(-1)!);

describe('a deployment on Slurm', () => {
  let url: string;
  let key: string;

  it('runs on two node kinds, each with its GPUs asked for by --gres', async () => {
    const file = write('two-kinds', { replicas: 2 });
    const rendered = await hpcserve('render', file);
    expect(rendered.stdout).toMatch(/--gres=gpu:gh200:1[\s\S]*--gres=gpu:a100:1/);
    const { code, stdout, stderr } = await hpcserve('deploy', '--yes', file, '--json', '--timeout', '90s');
    expect(code, stderr + stdout).toBe(0);
    ({ url, key } = lastLine(stdout));
    const events = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line).kind);
    for (const kind of [
      'planned',
      'gateway_up',
      'submitted',
      'running',
      'agent_up',
      'replica_serving',
      'serving',
    ])
      expect(events).toContain(kind);
    const report = await status('two-kinds');
    expect(report.phase).toBe('serving');
    expect(report.launches.map((launch) => launch.node_kind)).toEqual(['gh200', 'a100']);
    expect(report.launches.every((launch) => launch.job.state === 'RUNNING')).toBe(true);
    // What was shown is what ran.
    const scripts = report.launches.map((launch) =>
      readFileSync(
        join(folder, '.hpcserve/test-cluster/deployments/two-kinds/launches', launch.launch_id, 'job.sh'),
        'utf8',
      ),
    );
    expect(scripts.join('')).toBe(rendered.stdout);
  });

  it('answers the official client over SSE', async () => {
    const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
    const stream = await client.chat.completions.create({
      model: 'tiny',
      stream: true,
      max_tokens: 8,
      messages: [{ role: 'user', content: 'Hello' }],
    });
    let chunks = 0;
    for await (const chunk of stream) chunks += chunk.choices.length;
    expect(chunks).toBeGreaterThan(1);
  });

  it('lets its owner into its jobs: a command with its exit code, a shell in a terminal of any size', async () => {
    const [first, second] = (await status('two-kinds')).launches;
    const ran = await hpcserve('shell', 'two-kinds', '--', 'sh', '-c', 'echo "job $SLURM_JOB_ID"; exit 3');
    expect(ran.stdout, ran.stderr).toContain(`job ${first!.job_id}\n`);
    expect(ran.code).toBe(3);
    const nowhere = await hpcserve('shell', 'two-kind');
    expect(nowhere.code).toBe(9);
    expect(nowhere.stderr).toContain('hpcserve shell two-kinds');

    const [program = '', ...args] = cluster.argvAsUser([
      ...hpcserveProgram,
      ...['shell', 'two-kinds', '--unit', 'tiny-1', '--', 'sh'],
    ]);
    const terminal = spawnPty(program, args, {
      cwd: folder,
      env: { ...cluster.env, HOME: folder, HPCSERVE_SITE: 'test-cluster', TERM: 'xterm' },
      cols: 101,
      rows: 37,
    });
    let shown = '';
    terminal.onData((text) => {
      shown += text;
    });
    const ended = new Promise<number>((resolve) => terminal.onExit(({ exitCode }) => resolve(exitCode)));
    // Like a person, who types at a prompt: every command brings exactly one.
    let typed = 0;
    const type = async (command: string): Promise<void> => {
      await expect.poll(() => shown.match(/[$#] /g)?.length, { timeout: 30_000 }).toBe(typed + 1);
      typed++;
      terminal.write(`${command}\r`);
    };
    await type('stty size; echo "in job $SLURM_JOB_ID"');
    await expect.poll(() => shown, { timeout: 20_000 }).toMatch(`in job ${second!.job_id}\r\n`);
    expect(shown).toContain('37 101\r\n');
    terminal.resize(90, 20);
    // The new size travels through srun to the node.
    while (!shown.includes('20 90\r\n')) await type('stty size');
    await type('sleep 1000');
    await expect.poll(() => shown, { timeout: 20_000 }).toMatch(/sleep 1000\r\n$/);
    terminal.write('\x03'); // ends nothing but what the shell runs
    await expect.poll(() => shown, { timeout: 20_000 }).toMatch(/\^C\s+[$#] $/);
    terminal.write('exit 4\r');
    expect(await ended, shown).toBe(4);
  });

  it('submits nothing when deployed again', async () => {
    const before = await queue();
    expect((await hpcserve('deploy', '--yes', join(folder, 'two-kinds.yaml'))).code).toBe(0);
    expect((await queue()).split('\n').length).toBe(before.split('\n').length);
  });

  it('a change that Slurm refuses leaves the running version as it is', async () => {
    const before = await status('two-kinds');
    write('two-kinds', { replicas: 2, max_sequences: 2 }, { partition: 'nowhere' });
    const refused = await hpcserve('deploy', '--yes', join(folder, 'two-kinds.yaml'), '--yes');
    expect(refused.code, refused.stderr).toBe(6);
    expect(refused.stderr).toMatch(/nowhere[\s\S]*the version of two-kinds before this change goes on/);
    const after = await status('two-kinds');
    expect(after.phase).toBe('serving');
    expect(after.launches.map((launch) => launch.job_id)).toEqual(
      before.launches.map((launch) => launch.job_id),
    );
    write('two-kinds', { replicas: 2 });
    const again = await hpcserve('deploy', '--yes', join(folder, 'two-kinds.yaml'));
    expect(again.stderr).toMatch(/deployed already and unchanged/);
  });

  it('replaces a job that scancel ended without being asked, and keeps the other', async () => {
    const { launches } = await status('two-kinds');
    const cancelled = launches[0]!.job_id;
    await cluster.runAs('user', ['scancel', cancelled]);
    const wanted = async (): Promise<string[]> => {
      const report = await status('two-kinds');
      return report.phase === 'serving' ? report.launches.map((launch) => launch.job_id) : [cancelled];
    };
    await expect.poll(wanted, { timeout: 40_000 }).not.toContain(cancelled);
    const after = await status('two-kinds');
    expect(after.launches.map((launch) => launch.job_id)).toContain(launches[1]!.job_id);
    const again = await hpcserve(
      'deploy',
      '--yes',
      join(folder, 'two-kinds.yaml'),
      '--json',
      '--timeout',
      '90s',
    );
    expect(again.code, again.stderr).toBe(0);
    expect(lastLine(again.stdout)).toMatchObject({ url, key });
  });

  it('says why a job waits', async () => {
    const file = write('waits', { replicas: 1 }, { partition: 'closed' });
    expect((await hpcserve('deploy', '--yes', file, '--detach')).code).toBe(0);
    const report = await status('waits');
    expect(report.phase).toBe('waiting');
    expect(report.launches[0]!.job).toMatchObject({ state: 'PENDING', pending: { reason: 'PartitionDown' } });
    expect((await hpcserve('stop', 'waits')).code).toBe(0);
    expect((await status('waits')).phase).toBe('stopped');
  });

  it('leaves no job and no process after stop', async () => {
    const { code, stderr } = await hpcserve('stop', 'two-kinds');
    expect(code, stderr).toBe(0);
    expect(await queue()).toBe('');
    expect(cluster.jobProcesses()).toEqual([]);
    const ps = await cluster.runAs('user', ['ps', '-u', cluster.user.name, '-o', 'args=']);
    expect(ps.stdout).not.toContain(folder);
    expect((await status('two-kinds')).phase).toBe('stopped');
  });

  it('runs the gateway as a job where the site says so, brings it back where it is lost, and ends it with the last deployment', async () => {
    const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
    const site = join(folder, 'gateway-job.yaml');
    writeFileSync(
      site,
      shipped
        .replace(/^name: .*/m, 'name: gateway-job')
        .replace(/place: login/, 'place: job\n  partition: cpu\n  cpus: 1\n  memory_gb: 1'),
    );
    chownSync(site, cluster.user.uid, cluster.user.gid);
    const deployed = await hpcserve(
      'deploy',
      '--yes',
      write('by-job'),
      '--site',
      site,
      '--json',
      '--timeout',
      '90s',
    );
    expect(deployed.code, deployed.stderr).toBe(0);
    expect(await queue()).toMatch(/ cpu .*hpcserve/);
    const ask = () => hpcserve('chat', 'tiny', 'Hello', '--max-tokens', '4', '--site', site);
    const asked = await ask();
    expect(asked.code, asked.stderr).toBe(0);
    const written = join(folder, '.hpcserve/gateway-job/gateway/gateway-job.json');
    const job = (): string => (JSON.parse(readFileSync(written, 'utf8')) as { job_id: string }).job_id;
    const lost = job();
    expect((await cluster.runAs('user', ['scancel', lost])).code).toBe(0);
    // The keeper on the login node submits another one.
    await expect.poll(async () => (await ask()).code, { timeout: 40_000, interval: 1000 }).toBe(0);
    expect(job()).not.toBe(lost);
    const stopped = await hpcserve('stop', 'by-job', '--site', site);
    expect(stopped.code, stopped.stderr).toBe(0);
    expect(await queue()).toBe('');
    expect(cluster.jobProcesses()).toEqual([]);
  }, 120_000);

  it('keeps to the limits of the site: so many jobs, and so many submissions a minute', async () => {
    const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
    const site = join(folder, 'limited.yaml');
    const limit = (limits: string): void => {
      writeFileSync(site, `${shipped.replace(/^name: .*/m, 'name: limited')}\nlimits: {${limits}}\n`);
      chownSync(site, cluster.user.uid, cluster.user.gid);
    };
    limit('max_jobs: 1');
    const file = write('many', { replicas: 2 });
    const refused = await hpcserve('deploy', '--yes', file, '--site', site);
    expect(refused.code, refused.stderr).toBe(10);
    expect(refused.stderr).toMatch(
      /2 more job\(s\) would be 2[\s\S]*limits\.max_jobs: 1 \(.*limited\.yaml:\d+:\d+\)/,
    );
    expect(await queued('many')).toEqual([]);
    limit('submissions_per_minute: 1');
    const paced = await hpcserve('deploy', '--yes', file, '--site', site, '--timeout', '2s');
    expect(paced.code).toBe(8);
    expect(paced.stderr).toMatch(/1 job\(s\) wait to be submitted: limited allows 1 submissions a minute/);
    expect(await queued('many')).toHaveLength(1);
    expect((await hpcserve('stop', 'many', '--site', site)).code).toBe(0);
    expect(await queued('many')).toEqual([]);
  });

  it('adopts the job of a command that was killed in the middle of sbatch', async () => {
    const bin = join(folder, 'bin');
    mkdirSync(bin);
    const { stdout } = await cluster.runAs('user', ['which', 'sbatch']);
    const flag = join(folder, 'sbatch-began');
    const release = join(folder, 'sbatch-goes-on');
    const wait = `for i in $(seq 800); do if [ -e '${release}' ]; then break; fi; sleep 0.1; done`;
    writeFileSync(
      join(bin, 'sbatch'),
      `#!/bin/sh\ncase $1 in --parsable) echo >>'${flag}'; ${wait};; esac\nexec ${stdout.trim()} "$@"\n`,
      { mode: 0o755 },
    );
    const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
    const site = join(folder, 'slow.yaml');
    writeFileSync(
      site,
      shipped.replace(/^name: .*/m, 'name: slow').replace(/^slurm:$/m, `slurm:\n  bin_dir: ${bin}`),
    );
    for (const path of [bin, site]) chownSync(path, cluster.user.uid, cluster.user.gid);
    const file = write('killed');
    const deploy = (...more: string[]) => {
      const command = [...hpcserveProgram, 'deploy', file, '--site', site, ...more];
      const [program = '', ...argv] = cluster.argvAsUser(command);
      const child = spawn(program, argv, { cwd: folder, env: { ...cluster.env, HOME: folder } });
      let text = '';
      for (const stream of [child.stdout, child.stderr])
        stream.setEncoding('utf8').on('data', (chunk: string) => {
          text += chunk;
        });
      const ended = new Promise<number | NodeJS.Signals | null>((resolve) =>
        child.once('exit', (code, signal) => resolve(signal ?? code)),
      );
      return { child, text: () => text, ended };
    };
    const { child, ended } = deploy();
    // As long as any command may take that is typed here.
    await expect.poll(() => existsSync(flag), { timeout: 60_000 }).toBe(true);
    child.kill('SIGKILL');
    expect(await ended).toBe('SIGKILL');
    expect(await queued('killed')).toEqual([]);
    // Two at once: neither submits another.
    const again = [1, 2].map(() => deploy('--json', '--timeout', '60s'));
    await expect
      .poll(() => again.map(({ text }) => text()).join(''), { timeout: 40_000 })
      .toMatch(/a command was interrupted while it submitted/);
    writeFileSync(release, '');
    for (const { ended: end, text } of again) expect(await end, text()).toBe(0);
    expect(await queued('killed')).toHaveLength(1);
    expect(readFileSync(flag, 'utf8')).toBe('\n');
    expect((await hpcserve('stop', 'killed', '--site', site)).code).toBe(0);
    expect(await queued('killed')).toEqual([]);
  }, 200_000);

  it('takes back what was submitted when a later job of the same deployment is refused', async () => {
    // The second kind's limit is wrong only in Slurm's eyes.
    const shipped = readFileSync(join(packageRoot, 'site-configs/test-cluster.yaml'), 'utf8');
    const site = join(folder, 'half-site.yaml');
    writeFileSync(
      site,
      shipped
        .replace(/^name: .*/m, 'name: half')
        .replace(/features: \[a100\]/, 'features: [a100]\n    slurm: {reservation: mine}'),
    );
    chownSync(site, cluster.user.uid, cluster.user.gid);
    const refused = await hpcserve('deploy', '--yes', write('half', { replicas: 2 }), '--site', site);
    expect(refused.code, refused.stderr).toBe(6);
    expect(refused.stderr).toMatch(/job \d+ submitted to partition gh200[\s\S]*half-site\.yaml:\d+:\d+/);
    expect(await queue()).toBe('');
    const after = await hpcserve('status', 'half', '--site', site, '--json');
    expect(JSON.parse(after.stdout).deployments[0]).toMatchObject({
      phase: 'failed',
      reasons: expect.arrayContaining([expect.stringMatching(/reservation/)]),
    });
  });

  it.each([
    ['a partition that is not there', { partition: 'nowhere' }, /E_SLURM_PARTITION/, /nowhere/],
    ['features no node has', { constraint: 'warp9' }, /E_SLURM_(FEATURE|NODE_CONFIG)/, /warp9/],
    ['a reservation that is not there', { reservation: 'mine' }, /E_SLURM_RESERVATION/, /mine/],
  ])(
    'passes on what sbatch says to %s, names the setting, and leaves nothing behind',
    async (_, slurm, code, word) => {
      const refused = await hpcserve(
        'deploy',
        '--yes',
        write('refused', {}, slurm as Record<string, string>),
      );
      expect(refused.code).toBe(6);
      expect(refused.stderr).toMatch(code);
      expect(refused.stderr).toMatch(word);
      expect(refused.stderr).toMatch(/refused\.yaml:\d+:\d+/);
      expect(await queue()).toBe('');
      expect((await hpcserve('status', 'refused')).code).toBe(9);
      const ps = await cluster.runAs('user', ['ps', '-u', cluster.user.name, '-o', 'args=']);
      expect(ps.stdout).not.toContain(folder);
    },
  );
});
