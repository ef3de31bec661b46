/**
 * Plans on a real Slurm cluster of several kinds of nodes: what is planned is what `deploy` submits, and `status`
 * confirms it device by device; what Slurm says is the judge.
 */
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { DeploymentReport } from '../../control/status.ts';
import type { CommandResult } from '../../slurm/command-runner.ts';
import { objectiveNames } from '../../spec/model-yaml.ts';
import type { Plan, PlannedLaunch } from '../../spec/plan.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { acquireCluster, type ClusterLease } from '../cluster/shared.ts';
import { hpcserveProgram } from '../cluster/user-home.ts';

let lease: ClusterLease;
let cluster: Cluster;
let folder: string;

/** Sizes are small and apart: the large model fits GH200 alone, the middle one not the CPUs. */
const nodeKinds = [
  gpuKind('gh200', { partition: 'gh200', model: 'GH200', count: 4, memory_gb: 2 }),
  gpuKind('a100', { partition: 'a100', model: 'A100', count: 2, memory_gb: 0.42 }),
  {
    name: 'cpu-amx',
    count: 2,
    partition: 'cpu',
    features: ['amx'],
    devices: [{ kind: 'cpu', model: 'Xeon-8480+', count: 2, memory_gb: 0.25, cores: 1, emulated: 'cpu' }],
    cpus: 4,
    memory_gb: 15,
    isa: ['avx512_bf16', 'amx_bf16'],
    max_time: '1-00:00:00',
  },
  {
    ...gpuKind('v100', { partition: 'scavenge', model: 'V100', count: 2, memory_gb: 0.42 }),
    gres_type: 'a100',
    tier: 'scavenger',
    max_time: '04:00:00',
  },
];

function gpuKind(
  name: string,
  {
    partition,
    model,
    count,
    memory_gb,
  }: { partition: string; model: string; count: number; memory_gb: number },
): Record<string, unknown> {
  return {
    name,
    count: 2,
    partition,
    features: [name],
    gres_type: name,
    devices: [{ kind: 'gpu', model, count, memory_gb, cores: 1, emulated: 'cpu' }],
    cpus: 2 * count,
    memory_gb: 30,
    max_time: '1-00:00:00',
  };
}

beforeAll(async () => {
  lease = await acquireCluster();
  cluster = lease.cluster;
  folder = mkdtempSync('/tmp/hpcserve-e2e-');
  chownSync(folder, cluster.user.uid, cluster.user.gid);
  chmodSync(folder, 0o700);
  site();
  // One of the nodes becomes what this site calls v100: kinds that share no node.
  await features('a2', 'v100,nvlink');
  const shapes = {
    small: [],
    middle: '--embd 512 --heads 8 --heads-kv 4 --ff 2048 --layers 12 --vocab 4000'.split(' '),
    large: '--embd 1024 --heads 16 --heads-kv 8 --ff 4096 --layers 24 --vocab 4000'.split(' '),
  };
  for (const [name, shape] of Object.entries(shapes)) {
    const argv = ['model', 'synth', `${name}.gguf`, '--preset', 'tiny-llama', '--quantization', 'Q4_0'];
    const made = await hpcserve(...argv, ...shape);
    expect(made.code, made.stderr).toBe(0);
  }
}, 120_000);
afterAll(async () => {
  await resume();
  await hpcserve('stop', '--all', '--yes');
  await features('a2', 'a100,nvlink');
  await lease?.release();
  if (folder) rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
});

/** Gives a node other features until the test is over. */
async function features(node: string, names: string): Promise<void> {
  const argv = [
    'scontrol',
    'update',
    `nodename=${node}`,
    `availablefeatures=${names}`,
    `activefeatures=${names}`,
  ];
  const { code, stderr } = await cluster.runAs('root', argv);
  expect(code, stderr).toBe(0);
}

function hpcserve(...argv: string[]): Promise<CommandResult> {
  return cluster.runAs('user', [...hpcserveProgram, ...argv], {
    cwd: folder,
    env: { HOME: folder, HPCSERVE_SITE: join(folder, 'mixed.yaml') },
    timeout_ms: 330_000,
  });
}

/** JSON is YAML. */
function write(name: string, content: unknown): string {
  const path = join(folder, name);
  writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content, null, 1));
  chownSync(path, cluster.user.uid, cluster.user.gid);
  return path;
}

function site(
  more: Record<string, unknown> = {},
  slurm: Record<string, unknown> = {},
  file = 'mixed',
): string {
  return write(`${file}.yaml`, {
    name: 'mixed',
    kind: 'slurm',
    state_dir: '~/.hpcserve',
    slurm: {
      poll_interval_s: 1,
      defaults: { time_limit: '00:30:00' },
      gpu_request: { form: 'gres' },
      signal_s: 30,
      ...slurm,
    },
    node_kinds: nodeKinds,
    gateway: { place: 'login' },
    ...more,
  });
}

const toy = (name: string, more: Record<string, unknown> = {}): Record<string, unknown> => ({
  name,
  source: './small.gguf',
  cpu_threads: 1,
  context_tokens: 512,
  max_sequences: 4,
  ...more,
});

const shop = {
  name: 'shop',
  models: [
    toy('large', {
      source: './large.gguf',
      workload: { rate_per_s: 2, input_tokens: 300, output_tokens: 100 },
    }),
    toy('middle', {
      source: './middle.gguf',
      replicas: 'auto',
      workload: { rate_per_s: 6, input_tokens: 200, output_tokens: 100 },
    }),
    toy('small', { replicas: 3, min_stable_replicas: 2, devices: { kind: 'gpu' } }),
    toy('pinned', { replicas: 2, devices: { node_kinds: ['cpu-amx'] } }),
  ],
};

async function planOf(file: string, ...options: string[]): Promise<Plan & { estimates: unknown[] }> {
  const { code, stdout, stderr } = await hpcserve('plan', file, '--json', ...options);
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout);
}
async function statusOf(name: string): Promise<DeploymentReport> {
  const { code, stdout, stderr } = await hpcserve('status', name, '--json');
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout).deployments[0];
}

/** What one launch is, as far as plan, deployment and Slurm must agree. */
const outline = ({ node_kind, devices_per_node, units }: PlannedLaunch) => ({
  node_kind,
  devices: devices_per_node.count,
  units: units.map(({ unit }) => unit).sort(),
});
const byUnit = (a: { units: string[] }, b: { units: string[] }): number =>
  a.units[0]! < b.units[0]! ? -1 : 1;

/** Replicas of each model on each node kind. */
function counts(launches: readonly PlannedLaunch[]): Record<string, number> {
  const found: Record<string, number> = {};
  for (const { node_kind, units } of launches)
    for (const { model } of units) {
      const key = `${model.name} on ${node_kind}`;
      found[key] = (found[key] ?? 0) + 1;
    }
  return found;
}

/** GPUs of these nodes that no job has now, by Slurm's own count. */
async function freeGpus(...nodes: string[]): Promise<number> {
  const { stdout } = await cluster.runAs('user', [
    'sinfo',
    '--noheader',
    '--Node',
    '--partition=debug',
    `--nodes=${nodes.join(',')}`,
    '--Format=Gres:64,GresUsed:64',
  ]);
  return stdout
    .trim()
    .split('\n')
    .map((line) => [...line.matchAll(/gpu:\w+:(\d+)/g)].map((match) => Number(match[1])))
    .reduce((sum, [all = 0, used = 0]) => sum + all - used, 0);
}

async function drain(nodes: string): Promise<void> {
  const done = await cluster.runAs('root', [
    'scontrol',
    'update',
    `nodename=${nodes}`,
    'state=drain',
    'reason=test',
  ]);
  expect(done.code, done.stderr).toBe(0);
}
async function resume(): Promise<void> {
  await cluster.runAs('root', ['scontrol', 'update', 'nodename=gh1,gh2,a1,a2', 'state=resume']);
}

describe('a plan for several kinds of nodes', () => {
  let file: string;
  let plan: Plan;
  let plannedCounts: Record<string, number>;

  it('places each model where it fits and its workload is met, and says what to expect', async () => {
    file = write('shop.yaml', shop);
    plan = await planOf(file, '--out', 'plan.json');
    expect(plan.search.status).toBe('optimal');
    expect(plan.unplaced).toEqual([]);
    plannedCounts = counts(plan.launches);
    expect(plannedCounts).toMatchObject({ 'large on gh200': 1, 'pinned on cpu-amx': 2 });
    const stable = plan.launches
      .filter(({ tier }) => tier === 'stable')
      .flatMap(({ units }) => units.filter(({ model }) => model.name === 'small'));
    expect(stable.length).toBeGreaterThanOrEqual(2);
    const middle = plan.models.find(({ model }) => model === 'middle')!;
    expect(middle.replicas).toBeGreaterThan(1);
    for (const { groups } of plan.models)
      for (const { predicted } of groups) expect(predicted!.utilization).toBeLessThan(1);
    expect(plan.rejected).toContainEqual(
      expect.objectContaining({ model: 'large', node_kind: 'a100', constraint: 'device_memory' }),
    );
  });

  it.each(objectiveNames)('has a sound answer for objective %s', async (objective) => {
    const other = await planOf(file, '--objective', objective);
    expect(other).toMatchObject({ objective, unplaced: [] });
    expect(other.estimates).toHaveLength(other.launches.length);
    for (const estimate of other.estimates) expect(estimate).toHaveProperty('start_time_ms');
  });

  it('is carried out to the letter', async () => {
    const deployed = await hpcserve(
      'deploy',
      '--yes',
      file,
      '--plan',
      'plan.json',
      '--json',
      '--timeout',
      '300s',
    );
    expect(deployed.code, deployed.stderr + deployed.stdout).toBe(0);
    const state = JSON.parse(
      readFileSync(join(folder, '.hpcserve/mixed/deployments/shop/deployment.json'), 'utf8'),
    );
    const submitted = state.launches.map(({ planned }: { planned: PlannedLaunch }) => outline(planned));
    expect(submitted.sort(byUnit)).toEqual(plan.launches.map(outline).sort(byUnit));
    // Slurm's own records: partition and GPUs of each job.
    const { launches } = await statusOf('shop');
    for (const launch of launches) {
      const { stdout } = await cluster.runAs('user', ['scontrol', 'show', 'job', launch.job_id!]);
      const planned = plan.launches.find(({ units }) => units[0]!.unit === launch.units[0]!.unit)!;
      expect(stdout).toContain(`Partition=${planned.partitions[0]}`);
      const gpus = /gres\/gpu[^=]*=(\d+)/.exec(stdout.replaceAll(/gres:gpu:\w+:/g, 'gres/gpu='))?.[1] ?? '0';
      expect(Number(gpus)).toBe(planned.devices_per_node.count);
    }
  }, 360_000);

  it('is confirmed device by device', async () => {
    const report = await statusOf('shop');
    expect(report.phase).toBe('serving');
    const units = report.launches.flatMap((launch) => launch.units);
    expect(units).toHaveLength(plan.launches.flatMap((launch) => launch.units).length);
    const nodesOf: Record<string, string[]> = {
      gh200: ['gh1', 'gh2'],
      a100: ['a1'],
      'cpu-amx': ['c1', 'c2'],
      v100: ['a2'],
    };
    for (const { unit, planned, actual, matches, differences } of units) {
      expect({ unit, matches, differences }).toEqual({ unit, matches: true, differences: undefined });
      expect(nodesOf[planned.node_kind]).toContain(actual!.node);
      expect(actual!.node_kinds).toContain(planned.node_kind);
      expect(actual!.devices).toHaveLength(planned.device_count);
      for (const device of actual!.devices)
        expect(device).toMatchObject({
          kind: planned.device_kind,
          model: planned.device_model,
          emulated: 'cpu',
        });
    }
    // No two replicas of one job on one device: nothing here had to share.
    for (const launch of report.launches) {
      const places = launch.units.flatMap(({ actual }) => actual!.devices.map(({ index }) => index));
      expect(new Set(places).size).toBe(places.length);
    }
    for (const model of report.models) expect(model.groups[0]!.predicted!.ttft_ms).toBeGreaterThan(0);
    const text = await hpcserve('status', 'shop');
    expect(text.stdout).toContain(
      `as planned: ${units.length} of ${units.length} replicas, device by device`,
    );
    expect(text.stdout).toMatch(/pinned-0 +1× Xeon-8480\+ \(emulated\), on cpu-amx +c[12] +cpu 0: Xeon/);
  });

  it('made again for what runs, keeps every replica where it is', async () => {
    const again = await planOf(file);
    expect(counts(again.launches)).toEqual(plannedCounts);
    const unchanged = await hpcserve('deploy', '--yes', file);
    expect(unchanged.stderr).toMatch(/deployed already and unchanged/);
  });

  it('for a newcomer takes free devices of nodes that are partly taken, before it waits', async () => {
    const free = { a100: await freeGpus('a1'), gh200: await freeGpus('gh1', 'gh2') };
    const taken = 12 - free.a100 - free.gh200 - (await freeGpus('a2'));
    expect(taken).toBe(plan.gpu_count);
    const all = free.a100 + free.gh200;
    const replicas = all;
    // So many that no idle node has room for all of them.
    expect(replicas).toBeGreaterThan(4);
    const guest = write('guest.yaml', {
      name: 'guest',
      models: [toy('guest', { replicas, tier: 'stable', devices: { kind: 'gpu' } })],
    });
    const made = await planOf(guest);
    const placed = counts(made.launches);
    expect(placed['guest on a100'] ?? 0).toBeLessThanOrEqual(free.a100);
    expect(placed['guest on gh200'] ?? 0).toBeLessThanOrEqual(free.gh200);
    const deployed = await hpcserve('deploy', '--yes', guest, '--timeout', '90s');
    expect(deployed.code, deployed.stderr).toBe(0);
    const report = await statusOf('guest');
    expect(report.launches.every(({ job }) => job?.state === 'RUNNING')).toBe(true);
    expect(report.launches.flatMap(({ units }) => units.map(({ matches }) => matches))).toEqual(
      Array(replicas).fill(true),
    );
    expect((await hpcserve('stop', 'guest')).code).toBe(0);
  }, 150_000);

  it('counts who would have to wait where more is asked for than is free', async () => {
    const free = await freeGpus('a1');
    const file = write('crowd.yaml', {
      name: 'crowd',
      models: [toy('crowd', { replicas: 2, devices: { node_kinds: ['a100'] } })],
    });
    expect(free).toBeLessThan(2);
    const { estimates } = await planOf(file);
    const starts = (estimates as { start_time_ms: number }[]).map(({ start_time_ms }) => start_time_ms);
    // The jobs that hold the node may run for half an hour.
    expect(Math.max(...starts)).toBeGreaterThan(Date.now() + 60_000);
  });

  it('tells status where what runs is not what was planned', async () => {
    const path = join(folder, '.hpcserve/mixed/deployments/shop/deployment.json');
    const before = readFileSync(path, 'utf8');
    const state = JSON.parse(before);
    const launch = state.launches.find(({ planned }: { planned: PlannedLaunch }) =>
      planned.units.some(({ model }) => model.name === 'large'),
    );
    launch.planned.node_kind = 'a100';
    launch.planned.devices_per_node.model = 'A100';
    writeFileSync(path, JSON.stringify(state));
    try {
      const report = await statusOf('shop');
      const large = report.launches.flatMap(({ units }) => units).find(({ model }) => model === 'large')!;
      expect(large.matches).toBe(false);
      expect(large.differences).toEqual([
        expect.stringMatching(/^planned on node kind a100; gh[12] is of kind gh200$/),
        expect.stringMatching(/^gpu \d: planned as A100; it is GH200$/),
      ]);
      const { stdout } = await hpcserve('status');
      expect(stdout).toMatch(
        /! large-0 is not as planned: planned on node kind a100; gh[12] is of kind gh200/,
      );
    } finally {
      writeFileSync(path, before);
    }
  });
});

describe('a plan that was written', () => {
  let file: string;
  const refused = async (plan: string, code: string, words: RegExp): Promise<void> => {
    const { code: exit, stdout, stderr } = await hpcserve('deploy', '--yes', file, '--plan', plan);
    expect(exit, stdout).not.toBe(0);
    expect(stderr).toContain(`[${code}]`);
    expect(stderr).toMatch(words);
    expect((await hpcserve('status', 'later')).code).toBe(9);
  };

  beforeAll(async () => {
    await hpcserve('stop', '--all', '--yes');
    file = write('later.yaml', {
      name: 'later',
      models: [toy('later', { replicas: 3, devices: { node_kinds: ['gh200'] } })],
    });
    await planOf(file, '--out', 'later.json');
  });

  it('is refused when its nodes were drained since', async () => {
    await drain('gh1,gh2');
    await refused('later.json', 'E_PLAN_STALE', /gh200: \d nodes of 0/);
    await resume();
    const again = await hpcserve('deploy', '--yes', file, '--plan', 'later.json', '--dry-run');
    expect(again.code, again.stderr).toBe(0);
  });

  it('is refused when the site config says something else', async () => {
    site({ planning: { penalties: { moving: 0.77 } } });
    await refused('later.json', 'E_PLAN_STALE', /site config/);
    site();
  });

  it('is refused when model.yaml or the deployment is another', async () => {
    const other = file;
    file = write('other.yaml', { name: 'other', models: [toy('later')] });
    await refused('later.json', 'E_PLAN_STALE', /it was made for later on mixed, not for other on mixed/);
    file = write('later.yaml', { name: 'later', models: [toy('later', { replicas: 2 })] });
    await refused('later.json', 'E_PLAN_STALE', /model\.yaml/);
    file = write('later.yaml', {
      name: 'later',
      models: [toy('later', { replicas: 3, devices: { node_kinds: ['gh200'] } })],
    });
    expect(file).toBe(other);
  });

  it('is refused when it was edited, cut short, or never was one', async () => {
    const whole = readFileSync(join(folder, 'later.json'), 'utf8');
    const edits: [string, (plan: Plan) => unknown][] = [
      [
        'another node kind',
        (plan) => ({ ...plan, launches: plan.launches.map((each) => ({ ...each, node_kind: 'a100' })) }),
      ],
      ['launches that are none', (plan) => ({ ...plan, launches: [null, 7] })],
      ['no models', ({ models: _, ...plan }) => plan],
      ['of another version', (plan) => ({ ...plan, made_by: '0.0.1' })],
    ];
    for (const [, edit] of edits) {
      write('edited.json', edit(JSON.parse(whole)));
      await refused(
        'edited.json',
        'E_PLAN_FILE',
        /changed after it was written|written by hpcserve "0\.0\.1"/,
      );
    }
    for (const garbage of ['', whole.slice(0, 900), 'null', '[]', '{"format": 1}', '\u0000\u0001']) {
      write('edited.json', garbage);
      await refused('edited.json', 'E_PLAN_FILE', /edited\.json is no plan to carry out/);
    }
    await refused('absent.json', 'E_PLAN_FILE', /ENOENT/);
  }, 120_000);
});

describe('models that have to share a device', () => {
  it('are planned so, run so, and are confirmed one by one', async () => {
    const names = ['one', 'two', 'three'];
    const file = write('dense.yaml', {
      name: 'dense',
      models: names.map((name) =>
        toy(name, { context_tokens: 64, max_sequences: 1, devices: { node_kinds: ['a100'] } }),
      ),
    });
    const made = await planOf(file);
    expect(made.launches).toHaveLength(1);
    expect(made.launches[0]!.devices_per_node.count).toBe(2);
    const deployed = await hpcserve('deploy', '--yes', file, '--timeout', '60s');
    expect(deployed.code, deployed.stderr).toBe(0);
    const [launch] = (await statusOf('dense')).launches;
    expect(launch!.units.map(({ unit, state, matches }) => ({ unit, state, matches }))).toEqual(
      launch!.units.map(({ unit }) => ({ unit, state: 'serving', matches: true })),
    );
    const places = launch!.units.map(({ actual }) => actual!.devices.map(({ index }) => index).join());
    expect([...places].sort()).toEqual(
      made.launches[0]!.units.map(({ first_device }) => String(first_device)).sort(),
    );
    expect(new Set(places).size).toBe(2);
    expect((await hpcserve('stop', 'dense')).code).toBe(0);
  });
});

describe('waiting times in the queue', () => {
  /** Stands before sbatch and notes what it is asked. */
  async function countingSlurm(): Promise<{ bin_dir: string; asked: () => string[] }> {
    const bin_dir = join(folder, 'bin');
    mkdirSync(bin_dir, { recursive: true });
    const { stdout } = await cluster.runAs('user', ['which', 'sbatch']);
    const notes = join(folder, 'asked');
    const program = `#!/bin/sh\necho "$*" >>'${notes}'\nexec ${stdout.trim()} "$@"\n`;
    writeFileSync(join(bin_dir, 'sbatch'), program, { mode: 0o755 });
    write('asked', '');
    chownSync(bin_dir, cluster.user.uid, cluster.user.gid);
    return {
      bin_dir,
      asked: () =>
        readFileSync(notes, 'utf8')
          .split('\n')
          .filter((line) => line.includes('--test-only')),
    };
  }

  it('are asked once a kind where the site wants them weighed, and a refusal is a warning', async () => {
    const { bin_dir, asked } = await countingSlurm();
    const kinds = nodeKinds.map((kind) =>
      // Only a group this user is not in may use it.
      kind.name === 'v100' ? { ...kind, partition: 'staff', max_time: '01:00:00' } : kind,
    );
    const path = site({ planning: { queue_wait: true }, node_kinds: kinds }, { bin_dir }, 'waits');
    const file = write('waits-model.yaml', {
      name: 'waits',
      models: [toy('waits', { devices: { kind: 'gpu' } })],
    });
    const { code, stdout, stderr } = await hpcserve('plan', file, '--json', '--site', path);
    expect(code, stderr).toBe(0);
    const plan: Plan = JSON.parse(stdout);
    // One for each kind, and one for the job of the plan.
    expect(asked()).toHaveLength(nodeKinds.length + plan.launches.length);
    const told = await hpcserve('plan', file, '--site', path, '--progress', 'plain');
    expect(told.stderr).toMatch(/warning: no estimate for v100: .*(group|partition)/i);
    expect(told.stderr).not.toMatch(/no estimate for (gh200|a100|cpu-amx)/);
  });

  it('lead away from nodes that are taken for long', async () => {
    const path = site({ planning: { queue_wait: true } }, {}, 'waits');
    const model = toy('waits', { tier: 'stable', devices: { kind: 'gpu' } });
    const file = write('waits-model.yaml', { name: 'waits', models: [model] });
    const chosen = async (): Promise<string> => {
      const { code, stdout, stderr } = await hpcserve('plan', file, '--json', '--site', path);
      expect(code, stderr).toBe(0);
      return JSON.parse(stdout).launches[0].node_kind;
    };
    const first = await chosen();
    const [partition, gpus, nodes] =
      first === 'a100' ? (['a100', 2, ['a1', 'a2']] as const) : (['gh200', 4, ['gh1', 'gh2']] as const);
    const script = '#!/bin/sh\nsleep 600\n';
    for (const _ of [1, 2]) {
      const job = await cluster.runAs(
        'user',
        [
          'sbatch',
          `--partition=${partition}`,
          `--gres=gpu:${partition}:${gpus}`,
          '--time=10:00:00',
          '--output=/dev/null',
        ],
        { input: script, cwd: folder },
      );
      expect(job.code, job.stderr).toBe(0);
    }
    try {
      await expect.poll(() => freeGpus(...nodes), { timeout: 20_000 }).toBe(0);
      expect(await chosen()).not.toBe(first);
    } finally {
      await cluster.cancelAllJobs();
    }
  });
});
