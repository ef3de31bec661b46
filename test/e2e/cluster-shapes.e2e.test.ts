/** Kinds of sites that Slurm can be set up as: one deployment on each, from the command to the answer. */
import { accessSync, constants, existsSync, mkdtempSync, readFileSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { ensureAccountingInstalled } from '../cluster/accounting.ts';
import type { ClusterShape } from '../cluster/layout.ts';
import { policyWords } from '../cluster/slurm-conf.ts';
import { UserHome } from '../cluster/user-home.ts';

const model = { name: 'tiny', source: './toy.gguf', cpu_threads: 1, context_tokens: 512 };
const isRoot = process.getuid?.() === 0;
const needsRoot = isRoot ? '' : ' [skipped: needs root]';

/** A home on a cluster of this shape, which is given back. */
async function on(
  shape: ClusterShape,
  work: (home: UserHome) => Promise<void>,
  site = (shipped: string): string => shipped,
): Promise<void> {
  const home = await UserHome.open({ shape, site });
  try {
    await work(home);
  } finally {
    await home.close();
  }
}

/** Deploys, asks, and gives back what Slurm says of the job. */
async function serve(home: UserHome, kind: string, more: Record<string, unknown> = {}): Promise<string> {
  const devices = kind === 'cpu-amx' ? { kind: 'cpu' } : { kind: 'gpu', node_kinds: [kind] };
  home.write('model.yaml', { name: 'demo', models: [{ ...model, ...more, devices }] });
  const deployed = await home.hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '90s');
  if (deployed.code !== 0) throw new Error(deployed.stderr + (await home.explain()));
  const answered = await home.hpcserve('chat', 'tiny', 'Hello', '--max-tokens', '4');
  expect(answered.code, answered.stderr).toBe(0);
  const { stdout } = await home.run(['squeue', '--noheader', '--format=%i']);
  const jobs = await Promise.all(
    stdout
      .split('\n')
      .filter(Boolean)
      .map((id) => home.run(['scontrol', '--oneliner', 'show', 'job', id])),
  );
  return jobs.map((job) => job.stdout).join('');
}

async function stop(home: UserHome): Promise<void> {
  const stopped = await home.hpcserve('stop', 'demo');
  expect(stopped.code, stopped.stderr).toBe(0);
  expect((await home.run(['squeue', '--noheader'])).stdout).toBe('');
}

it('select/linear gives whole nodes: GPUs are not asked for, and a job has a node to itself', async () => {
  await on(
    'linear',
    async (home) => {
      expect((await home.run(['scontrol', 'show', 'config'])).stdout).toMatch(/SelectType += select\/linear/);
      const draft = await home.hpcserve('init', '--stdout');
      expect(draft.stdout, draft.stderr).toMatch(/form: none/);
      const job = await serve(home, 'a100', { replicas: 2 });
      // All CPUs of the node, whatever was asked for.
      expect(job).toMatch(/NumCPUs=4 /);
      await stop(home);
    },
    (shipped) => shipped.replace('form: gres', 'form: none'),
  );
});

it('partitions that give nodes exclusively: the second deployment takes another node', async () => {
  await on('exclusive', async (home) => {
    const job = await serve(home, 'a100');
    expect(job).toMatch(/OverSubscribe=NO/);
    expect(job).toMatch(/NumCPUs=4 /);
    home.write('other.yaml', {
      name: 'other',
      models: [{ ...model, name: 'tiny2', devices: { kind: 'gpu', node_kinds: ['a100'] } }],
    });
    const other = await home.hpcserve('deploy', '--yes', 'other.yaml', '--timeout', '90s');
    expect(other.code, other.stderr).toBe(0);
    const nodes = (await home.run(['squeue', '--noheader', '--format=%N'])).stdout.trim().split('\n');
    expect(nodes.sort()).toEqual(['a1', 'a2']);
    expect((await home.hpcserve('stop', 'other')).code).toBe(0);
    await stop(home);
  });
});

it('a policy that refuses a job is heard, with the place that set what it is about', async () => {
  await on('job-submit', async (home) => {
    home.write('long.yaml', {
      name: 'long',
      models: [{ ...model, devices: { kind: 'gpu', node_kinds: ['gh200'] } }],
      slurm: { time_limit: '00:30:00' },
    });
    const { code, stderr } = await home.hpcserve('deploy', '--yes', 'long.yaml', '--timeout', '60s');
    expect(code, stderr).not.toBe(0);
    expect(stderr).toContain(policyWords.refused);
    expect(stderr).toMatch(/--time=\S+ was set by .*long\.yaml/);
    expect(stderr).not.toMatch(/Unspecified error/);
    const flagged = await home.hpcserve('deploy', '--yes', 'long.yaml', '--time', '00:40:00');
    expect(flagged.code, flagged.stderr).not.toBe(0);
    expect(flagged.stderr).toMatch(/--time=00:40:00 was set by --time\b/);
    expect(flagged.stderr).not.toContain('long.yaml:');
    expect((await home.run(['squeue', '--noheader'])).stdout).toBe('');
    // A job that it lets in may be told something, too.
    home.write('model.yaml', {
      name: 'demo',
      models: [{ ...model, devices: { kind: 'gpu', node_kinds: ['a100'] } }],
    });
    const accepted = await home.hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '90s');
    expect(accepted.code, accepted.stderr).toBe(0);
    expect(accepted.stderr).toContain(policyWords.accepted);
    await stop(home);
  });
});

/** A job that has a /tmp of its own sees no checkout that lies in the node's. */
const hidden = packageRoot.startsWith('/tmp/') ? ' [skipped: hpcserve itself lies in /tmp]' : '';

describe.skipIf(!isRoot || hidden !== '')(`job_container/tmpfs${needsRoot}${hidden}`, () => {
  it('gives each job a /tmp and a /dev/shm of its own', async () => {
    await on('private-tmp', async (home) => {
      const mark = mkdtempSync('/tmp/hpcserve-outside-');
      try {
        await serve(home, 'a100', { replicas: 2 });
        const inside = await home.hpcserve('shell', 'demo', '--', 'ls', '/tmp');
        expect(inside.code, inside.stderr).toBe(0);
        expect(inside.stdout).not.toContain('hpcserve-outside-');
        await stop(home);
      } finally {
        rmdirSync(mark);
      }
    });
  });
});

it('a job that no account pays for: which accounts there are is said, or that there is none', async () => {
  const installation = await ensureAccountingInstalled();
  if (!installation.ready) throw new Error(installation.missing);
  const home = await UserHome.open({ accounting: true });
  const { name } = home.cluster.user;
  const sacctmgr = (...words: string[]) => home.cluster.runAs('root', ['sacctmgr', '--immediate', ...words]);
  const deploy = (...flags: string[]) =>
    home.hpcserve('deploy', '--yes', 'model.yaml', '--timeout', '90s', ...flags);
  try {
    home.write('model.yaml', { name: 'demo', models: [{ ...model, devices: { kind: 'gpu' } }] });
    await sacctmgr('delete', 'user', name);
    const stranger = await deploy();
    expect(stranger.code, stranger.stderr).toBe(6);
    expect(stranger.stderr).toMatch(/E_SLURM_ACCOUNT[\s\S]*knows no account of yours/);
    expect(stranger.stderr).toMatch(/try: ask the operators/);
    await sacctmgr(
      'add',
      'user',
      name,
      'Account=others',
      'DefaultAccount=others',
      'QOS=normal,brief,crowded',
    );
    await sacctmgr('add', 'user', name, 'Account=chat', 'QOS=normal,brief,crowded');
    const mistyped = await deploy('--account=chta');
    expect(mistyped.code, mistyped.stderr).toBe(6);
    expect(mistyped.stderr).toMatch(/did you mean "chat"/);
    const charged = await deploy('--account=chat');
    expect(charged.code, charged.stderr).toBe(0);
    expect((await home.run(['squeue', '--noheader', '--format=%a'])).stdout.trim()).toBe('chat');
    await stop(home);
  } finally {
    await home.close();
  }
});

/** Why Slurm cannot make cgroups here; empty where it can. */
function cgroupsLacking(): string {
  if (!isRoot) return needsRoot;
  const root = '/sys/fs/cgroup';
  const unified = `${root}/cgroup.controllers`;
  const version2 = existsSync(unified) && /\bmemory\b/.test(readFileSync(unified, 'utf8'));
  const folders = version2 ? [root] : [`${root}/freezer`, `${root}/memory`];
  try {
    for (const folder of folders) accessSync(folder, constants.W_OK);
    return '';
  } catch {
    return ` [skipped: needs ${folders.join(' and ')}, writable]`;
  }
}

const noCgroups = cgroupsLacking();
describe.skipIf(noCgroups !== '')(`cgroups${noCgroups}`, () => {
  it('track what a job runs, and bound its memory', async () => {
    await on('cgroup', async (home) => {
      const job = await serve(home, 'a100');
      const asked_mb = Number(/MinMemoryNode=(\d+)M/.exec(job)?.[1]);
      expect(asked_mb, job).toBeGreaterThan(0);
      const inside = await home.hpcserve('shell', 'demo', '--', 'cat', '/proc/self/cgroup');
      const of = /^(?:\d+:memory:|0::)(\/.*\/job_\d+)\//m.exec(inside.stdout)?.[1];
      expect(of, inside.stdout).toBeDefined();
      const files = [`memory${of}/memory.limit_in_bytes`, `${of}/memory.max`];
      const file = files.map((path) => join('/sys/fs/cgroup', path)).find((path) => existsSync(path));
      expect(Number(readFileSync(file!, 'utf8'))).toBe(asked_mb * 2 ** 20);
      await stop(home);
    });
  });
});
