import { describe, expect, test } from 'vitest';
import { containerLaunch } from '../../slurm/container.ts';
import { buildDirectives, type DirectiveInput, jobComment, launchOfComment } from '../../slurm/directives.ts';
import { buildJobScript } from '../../slurm/job-script.ts';
import { type SlurmOverrides, slurmOverridesSchema } from '../../spec/model-yaml.ts';
import { type SiteInput, siteSchema } from '../../spec/site.ts';
import { containerSchema } from '../../spec/site-runtime.ts';

const base: SiteInput = {
  name: 'x',
  kind: 'slurm',
  slurm: { defaults: { partition: 'batch', account: 'acc', time_limit: '02:00:00' } },
  node_kinds: [{ name: 'a100', gres_type: 'a100' }],
};

function input(
  site: SiteInput,
  overrides: Partial<SlurmOverrides> = {},
  request: Partial<DirectiveInput['request']> = {},
): DirectiveInput {
  const parsed = siteSchema.parse(site);
  return {
    site: parsed,
    node_kind: parsed.node_kinds[0]!,
    overrides: slurmOverridesSchema.parse(overrides),
    request: {
      job_name: 'j',
      nodes: 2,
      gpus_per_node: 4,
      log_file: '/l/job.log',
      working_folder: '/l',
      launch_id: 'ab',
      tier: 'stable',
      ...request,
    },
  };
}

function options(given: DirectiveInput): Record<string, string | true> {
  return Object.fromEntries(buildDirectives(given).typed.map(({ name, value }) => [name, value ?? true]));
}

describe('precedence', () => {
  test('model.yaml before node kind before site, each with its place', () => {
    const site: SiteInput = {
      ...base,
      node_kinds: [{ name: 'a100', partition: ['gpu', 'gpu2'], slurm: { qos: 'fast', account: 'kind' } }],
    };
    const given = input(site, { qos: 'mine' });
    given.locateSite = (keyPath) => `site.yaml@${keyPath}`;
    given.locateOverrides = (keyPath) => `model.yaml@${keyPath}`;
    const found = Object.fromEntries(
      buildDirectives(given).typed.map((directive) => [directive.name, directive]),
    );
    expect(found.qos).toEqual({ name: 'qos', value: 'mine', source: 'model.yaml@slurm.qos slurm.qos' });
    expect(found.account?.source).toBe('site.yaml@node_kinds.0.slurm.account node_kinds[a100].slurm.account');
    expect(found.partition).toMatchObject({
      value: 'gpu,gpu2',
      source: 'site.yaml@node_kinds.0.partition node_kinds[a100].partition',
    });
    expect(found.time?.source).toBe('site.yaml@slurm.defaults.time_limit slurm.defaults.time_limit');
  });

  test('what sbatch would take from the environment is taken openly, and only where nothing else is said', () => {
    const given = input(base);
    given.environment = { SBATCH_ACCOUNT: 'env', SBATCH_QOS: 'envq', SBATCH_PARTITION: '' };
    const found = buildDirectives(given).typed;
    expect(found.find(({ name }) => name === 'qos')).toEqual({
      name: 'qos',
      value: 'envq',
      source: '$SBATCH_QOS',
    });
    expect(found.find(({ name }) => name === 'account')?.value).toBe('acc');
  });
});

describe('GPUs', () => {
  test.each([
    [{ form: 'gres' as const }, { gres: 'gpu:a100:4' }],
    [{ form: 'gres' as const, with_type: false }, { gres: 'gpu:4' }],
    [{ form: 'gpus-per-node' as const }, { 'gpus-per-node': 'a100:4' }],
    [{ form: 'gpus' as const, with_type: false }, { gpus: '8' }],
  ])('%j', (gpu_request, wanted) => {
    expect(options(input({ ...base, slurm: { gpu_request } }))).toMatchObject(wanted);
  });

  test('MIG slices by their type, and GPUs of another name', () => {
    const migs = (gpu_request: object): Record<string, string | true> =>
      options(
        input({
          ...base,
          node_kinds: [{ name: 'a100', gres_type: '1g.10gb', gpu_request }],
        }),
      );
    expect(migs({})).toMatchObject({ gres: 'gpu:1g.10gb:4' });
    expect(migs({ form: 'gpus-per-node' })).toMatchObject({ 'gpus-per-node': '1g.10gb:4' });
    expect(migs({ gres_name: 'mig' })).toMatchObject({ gres: 'mig:1g.10gb:4' });
  });

  test('whole-node sites and CPU jobs ask for none', () => {
    for (const found of [
      options(input({ ...base, slurm: { gpu_request: { form: 'none' } } })),
      options(input(base, {}, { gpus_per_node: 0 })),
    ])
      for (const name of ['gres', 'gpus', 'gpus-per-node']) expect(found).not.toHaveProperty(name);
  });
});

test('features of the node kind and a constraint are both asked for', () => {
  const site: SiteInput = { ...base, node_kinds: [{ name: 'k', features: ['gpu', 'ib'] }] };
  expect(options(input(site)).constraint).toBe('gpu&ib');
  expect(options(input(site, { constraint: 'new' })).constraint).toBe('gpu&ib&new');
  expect(options(input(site, { constraint: 'a|b' })).constraint).toBe('gpu&ib&(a|b)');
  expect(options(input(base, { constraint: '[r1|r2]' })).constraint).toBe('[r1|r2]');
});

test('options are removed, and extras stand last, the strongest at the end', () => {
  const site: SiteInput = { ...base, slurm: { defaults: { extra: ['--hint=site'], remove: ['--mem'] } } };
  const built = buildDirectives(
    input(site, { extra: ['--hint=mine'], remove: ['comment'] }, { memory_mb_per_node: 100 }),
  );
  expect(built.typed.map(({ name }) => name)).not.toContain('mem');
  expect(built.typed.map(({ name }) => name)).not.toContain('comment');
  expect(built.extra.map(({ value }) => value)).toEqual(['--hint=site', '--hint=mine']);
});

test('a time over the limit of the node kind is refused before Slurm is asked, with both places', () => {
  const site: SiteInput = { ...base, node_kinds: [{ name: 'k', max_time: '01:00:00' }] };
  expect(() => buildDirectives(input(site))).toThrowError(
    expect.objectContaining({ code: 'E_SLURM_TIME_LIMIT' }),
  );
  expect(options(input({ ...site, slurm: {} })).time).toBe('01:00:00');
});

test('requeue follows the tier; signal, backfill and comment', () => {
  expect(options(input(base))).toMatchObject({
    'no-requeue': true,
    signal: 'B:USR1@120',
    comment: 'hpcserve:ab',
  });
  const scavenger = options(input(base, {}, { tier: 'scavenger', time_limit_s: 7200, time_min_s: 600 }));
  expect(scavenger).toMatchObject({ requeue: true, time: '02:00:00', 'time-min': '00:10:00' });
  expect(options(input({ ...base, slurm: { signal_s: 0, comment: false } }))).not.toHaveProperty('signal');
  expect(launchOfComment(jobComment('ab'))).toBe('ab');
  expect(launchOfComment('mine')).toBeUndefined();
});

test('a log path with % is not taken as a pattern, one with a backslash is refused', () => {
  expect(options(input(base, {}, { log_file: '/a%j/b' })).output).toBe('/a%%j/b');
  expect(() => buildDirectives(input(base, {}, { log_file: '/a\\b' }))).toThrowError();
});

describe('containers', () => {
  const launch = (
    container: Parameters<typeof containerSchema.parse>[0],
    folders = ['/opt/h/'],
  ): ReturnType<typeof containerLaunch> =>
    containerLaunch({ container: containerSchema.parse(container), folders, environment_names: ['HF_HOME'] });

  test('each runtime', () => {
    expect(launch({})).toEqual({ srun_args: [], prefix: [] });
    expect(
      launch({ runtime: 'apptainer', image: '/i.sif', binds: ['/s:/t:ro'], flags: ['--nv'] }).prefix,
    ).toEqual(['apptainer', 'exec', '--bind=/s:/t:ro', '--bind=/opt/h:/opt/h', '--nv', '/i.sif']);
    expect(
      launch({ runtime: 'enroot-pyxis', image: 'nvcr.io#nvidia/pytorch:24.10', binds: ['/s'] }).srun_args,
    ).toEqual(['--container-image=nvcr.io#nvidia/pytorch:24.10', '--container-mounts=/s:/s,/opt/h:/opt/h']);
    expect(launch({ runtime: 'podman', command: 'podman-hpc', image: 'i', flags: ['--gpu'] }).prefix).toEqual(
      [
        'bash',
        '-c',
        expect.stringContaining('"$podman" run --detach'),
        'hpcserve-podman',
        'podman-hpc',
        '--network=host',
        '--volume=/opt/h:/opt/h',
        '--env=SLURM_*',
        '--env=SLURMD_NODENAME',
        '--env=CUDA_VISIBLE_DEVICES',
        '--env=ROCR_VISIBLE_DEVICES',
        '--env=HIP_VISIBLE_DEVICES',
        '--env=ZE_AFFINITY_MASK',
        '--env=SLINGSHOT_*',
        '--env=TMPDIR',
        '--env=HF_HOME',
        '--gpu',
        'i',
      ],
    );
    expect(launch({ runtime: 'edf', image: 'vllm' })).toEqual({
      srun_args: ['--environment=vllm'],
      prefix: [],
    });
  });

  /** From `--network=host` on, without the variables. */
  const podman = (flags: string[], binds: string[] = []): string[] => {
    const { prefix } = launch({ runtime: 'podman', image: 'i', binds, flags });
    return prefix.slice(5).filter((word) => !word.startsWith('--env='));
  };

  test.each([
    [
      'NVIDIA by CDI, and shared memory for collectives',
      ['--device=nvidia.com/gpu=all', '--ipc=host', '--security-opt=label=disable'],
    ],
    ['AMD by its device files', ['--device=/dev/kfd', '--device=/dev/dri', '--group-add=keep-groups']],
    ['Slingshot by a hook', ['--annotation=com.hooks.cxi.enabled=true', '--device=/dev/cxi0']],
  ])('podman: %s', (_, flags) => {
    expect(podman(flags, ['/opt/cray/libfabric:/opt/cray/libfabric:ro'])).toEqual([
      '--network=host',
      '--volume=/opt/cray/libfabric:/opt/cray/libfabric:ro',
      '--volume=/opt/h:/opt/h',
      ...flags,
      'i',
    ]);
  });

  test.each([
    ['NVIDIA', ['--nv']],
    ['AMD', ['--rocm']],
    ['NVIDIA by CDI', ['--device', 'nvidia.com/gpu=all']],
    ['Slingshot by a variable of its hook', ['--nv', '--env=CXI_FORK_SAFE=1']],
  ])('apptainer: %s', (_, flags) => {
    const binds = ['/opt/cray', '/var/spool/slurmd:/var/spool/slurmd:ro'];
    expect(
      launch({ runtime: 'apptainer', command: 'singularity', image: '/i.sif', binds, flags }).prefix,
    ).toEqual([
      'singularity',
      'exec',
      '--bind=/opt/cray:/opt/cray',
      '--bind=/var/spool/slurmd:/var/spool/slurmd:ro',
      '--bind=/opt/h:/opt/h',
      ...flags,
      '/i.sif',
    ]);
  });

  test('a bind of the site stands for a folder of ours: each target is bound once', () => {
    const given = { runtime: 'apptainer', image: 'i', binds: ['/lustre/h:/opt/h:ro'] } as const;
    expect(launch(given).prefix).toEqual(['apptainer', 'exec', '--bind=/lustre/h:/opt/h:ro', 'i']);
  });

  test('what cannot be said is refused, not ignored', () => {
    expect(() => launch({ runtime: 'edf', image: 'vllm', binds: ['/s'] })).toThrowError(
      expect.objectContaining({ code: 'E_CONFIG_CONFLICT' }),
    );
    expect(() => launch({ runtime: 'apptainer', image: 'i' }, ['/a,b'])).toThrowError(
      expect.objectContaining({ code: 'E_SLURM_SCRIPT' }),
    );
    expect(() => launch({ runtime: 'apptainer', image: 'i' }, ['/a:b'])).toThrowError();
    expect(() => launch({ runtime: 'apptainer' })).toThrowError(
      expect.objectContaining({ code: 'E_CONFIG_MISSING' }),
    );
  });
});

test.each(['HF_TOKEN', 'OPENAI_API_KEY', 'aws_secret_access_key', 'DB_PASSWORD'])(
  '%s does not get into a script',
  (name) => {
    const given = input({ ...base, runtime: { environment: { [name]: 'x' } } });
    expect(() =>
      buildJobScript({ ...given, role: 'agent', deployment: 'd', version: '0', command: ['x'] }),
    ).toThrowError(expect.objectContaining({ code: 'E_SLURM_SECRET' }));
  },
);
