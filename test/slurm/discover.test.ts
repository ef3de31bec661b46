/** discoverSite on clusters of other kinds than the one the end-to-end test has. */
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import type { HostFacts } from '../../host/host-facts.ts';
import { isSharedFilesystem, mountTypeOf, parseMountInfo } from '../../host/mounts.ts';
import type { SlurmClient } from '../../slurm/client.ts';
import {
  type NodeGroup,
  type Partition,
  parseControllerConfig,
  parseGres,
} from '../../slurm/cluster-facts.ts';
import { buildDirectives } from '../../slurm/directives.ts';
import { discoverSite } from '../../slurm/discover.ts';
import { recognizeDevice } from '../../slurm/gpu-memory.ts';
import type { ClusterName, Permissions } from '../../slurm/permissions.ts';
import { renderSiteDraft } from '../../slurm/site-draft-yaml.ts';
import { parseSlurmVersion } from '../../slurm/version.ts';
import { type SiteConfig, siteSchema } from '../../spec/site.ts';

function group(
  partition: string,
  nodes: string[],
  gres: string,
  features: string[],
  facts: Partial<NodeGroup> = {},
): NodeGroup {
  return {
    partition,
    nodes,
    node_list: nodes.join(','),
    states: ['idle'],
    features,
    gres: parseGres(gres),
    gres_used: [],
    cpus: 64,
    sockets: 2,
    cores_per_socket: 32,
    threads_per_core: 1,
    memory_mb: 500_000,
    cpu_counts: { allocated: 0, idle: 64, other: 0, total: 64 },
    ...facts,
  };
}

function partition(name: string, facts: Partial<Partition> = {}): Partition {
  return {
    name,
    is_default: false,
    state: 'UP',
    node_list: '',
    max_time_s: 86_400,
    preempt_mode: 'OFF',
    priority_tier: 1,
    grace_time_s: 0,
    max_nodes: Number.POSITIVE_INFINITY,
    exclusive: false,
    ...facts,
  };
}

const host: HostFacts = {
  environment: { HOME: '/home/ada', USER: 'ada' },
  mounts: [{ mount_point: '/', type: 'ext4' }],
  writableFolder: (path) => (path === '/home/ada' ? path : undefined),
};

async function discovered(
  groups: NodeGroup[],
  partitions: Partition[],
  config = '',
  facts: Partial<HostFacts> = {},
  permissions: Permissions = { enforced: { associations: false, qos: false } },
  clusters?: ClusterName[],
): Promise<{ site: SiteConfig; text: string; warnings: string[] }> {
  const client: Pick<
    SlurmClient,
    'version' | 'config' | 'partitions' | 'nodeGroups' | 'permissions' | 'clusters'
  > = {
    permissions: async () => permissions,
    clusters: async () => clusters,
    version: async () => parseSlurmVersion('slurm 23.11.4'),
    config: async () => parseControllerConfig(`ClusterName = My_Cluster 9\n${config}`),
    partitions: async () => partitions,
    nodeGroups: async () => groups,
  };
  const draft = await discoverSite(client as SlurmClient, { ...host, ...facts });
  const text = renderSiteDraft(draft);
  return { site: siteSchema.parse(parse(text)), text, warnings: draft.warnings };
}

test('what no cluster says stands there to take the # away from', async () => {
  const { text, site } = await discovered([group('gpu', ['n1'], 'gpu:a100:4', [])], [partition('gpu')]);
  expect(site).toMatchObject({ network: { private_fabric: false }, model_aliases: {} });
  const [said, stubs] = text.split('\n## Slurm does not say these.');
  const taken = stubs!
    .split('\n')
    .filter((line) => line.startsWith('# '))
    .map((line) => line.slice(2));
  const filled = siteSchema.parse(parse([said, ...taken].join('\n')));
  expect(filled.runtime).toMatchObject({ modules: ['cuda', 'python'], engines: { vllm: true } });
  expect(filled).toMatchObject({
    network: { prefer: 'hsn0' },
    models_dir: expect.any(String),
    model_aliases: { small: expect.any(String) },
  });
  expect(text).toContain('account: proj42');
});

test.each([
  [1800, '00:30:00'],
  [2 * 3600, '02:00:00'],
  [4 * 3600, '04:00:00'],
  [Number.POSITIVE_INFINITY, '04:00:00'],
])('jobs ask for no more time than a partition with a limit of %d s has', async (max_time_s, expected) => {
  const nodes = group('gpu', ['n1'], 'gpu:a100:4', []);
  const { site } = await discovered([nodes], [partition('gpu', { max_time_s })]);
  const [node_kind] = site.node_kinds;
  const request = { job_name: 'j', nodes: 1, gpus_per_node: 1, log_file: '/l', working_folder: '/w' };
  const { typed } = buildDirectives({
    site,
    node_kind: node_kind!,
    request: { ...request, launch_id: '0', tier: 'stable' },
  });
  expect(typed.find(({ name }) => name === 'time')?.value).toBe(expected);
});

describe('node kinds', () => {
  test('MIG slices, and GPUs without a type', async () => {
    const mig = await discovered([group('gpu', ['n1'], 'gpu:a100_1g.10gb:7', [])], [partition('gpu')]);
    expect(mig.site.node_kinds[0]?.devices).toEqual([
      { kind: 'mig', model: 'a100_1g.10gb', count: 7, memory_gb: 10 },
    ]);
    const plain = await discovered([group('gpu', ['n1'], 'gpu:4', ['v100', 'ib'])], [partition('gpu')]);
    expect(plain.site.node_kinds[0]).toMatchObject({
      name: 'v100',
      devices: [{ model: 'V100', count: 4, memory_gb: 16 }],
    });
    expect(plain.site.slurm?.gpu_request.with_type).toBe(false);
    expect(plain.text).toContain('16 or 32 GB');
    const unknown = await discovered([group('gpu', ['n1'], 'gpu:4', [])], [partition('gpu')]);
    expect(unknown.warnings.join('\n')).toContain('how much memory');
  });

  test('select/linear gives whole nodes: GPUs are not asked for, and the draft says why', async () => {
    const config = 'SelectType = select/linear';
    const { site, text } = await discovered(
      [group('gpu', ['n1'], 'gpu:a100:4', [])],
      [partition('gpu')],
      config,
    );
    expect(site.slurm?.gpu_request.form).toBe('none');
    expect(text).toMatch(/select\/linear gives whole nodes/);
  });

  test('whole-node partitions ask for exclusive nodes; preemption by QoS makes no scavenger tier', async () => {
    const { site } = await discovered(
      [group('all', ['n1'], '(null)', ['avx512_bf16', 'amx_bf16'])],
      [partition('all', { exclusive: true, preempt_mode: 'REQUEUE', max_time_s: Number.POSITIVE_INFINITY })],
      'PreemptType = preempt/qos',
    );
    expect(site.node_kinds).toMatchObject([
      { name: 'cpu', tier: 'stable', slurm: { exclusive: true }, isa: ['avx512_bf16', 'amx_bf16'] },
    ]);
    expect(site.node_kinds[0]?.max_time).toBeUndefined();
    expect(site.slurm?.gpu_request.form).toBe('none');
    expect(site.name).toBe('my-cluster-9');
  });

  test('nodes that nothing tells apart are said to be so', async () => {
    const { warnings } = await discovered(
      [group('mix', ['n1'], '(null)', []), group('mix', ['n2'], '(null)', [], { memory_mb: 1_000_000 })],
      [partition('mix')],
    );
    expect(warnings.join('\n')).toContain('no feature tells them apart');
  });

  test('a test partition is taken only where there is nothing else', async () => {
    const nodes = group('debug', ['n1'], '(null)', []);
    const both = await discovered(
      [nodes, { ...nodes, partition: 'main' }],
      [partition('debug', { max_time_s: 900 }), partition('main')],
    );
    expect(both.site.node_kinds.map((kind) => kind.partition)).toEqual(['main']);
    expect(both.text).toContain('Also in partition debug, at most 00:15:00.');
  });

  test('no open partition is an error with what there is', async () => {
    await expect(discovered([], [partition('x', { state: 'DOWN' })])).rejects.toMatchObject({
      code: 'E_CONFIG_MISSING',
      because: ['x is DOWN'],
    });
  });
});

describe('folders', () => {
  test('a home that compute nodes may not see: the state goes to a shared folder', async () => {
    const { site } = await discovered([group('p', ['n1'], '(null)', [])], [partition('p')], '', {
      environment: { HOME: '/home/ada', USER: 'ada', WORK: '/gpfs/work/ada' },
      mounts: [
        { mount_point: '/', type: 'ext4' },
        { mount_point: '/gpfs', type: 'gpfs' },
      ],
      writableFolder: (path) => path,
    });
    expect(site).toMatchObject({ state_dir: '$WORK/.hpcserve', scratch_dir: '$WORK/hpcserve' });
  });

  test('no shared folder at all is a warning', async () => {
    const { site, warnings } = await discovered([group('p', ['n1'], '(null)', [])], [partition('p')]);
    expect(site.state_dir).toBe('~/.hpcserve');
    expect(warnings.join('\n')).toContain('compute nodes may not see');
  });

  test('mounts of the kernel’s table', () => {
    const mounts = parseMountInfo(
      '21 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 21 0:40 / /home rw shared:1 - nfs4 srv:/home rw\n31 21 0:41 / /my\\040data rw master:2 - lustre x rw\n32 30 0:42 / /home rw - autofs y rw\n',
    );
    expect(mountTypeOf('/my data/x', mounts)).toBe('lustre');
    expect(mountTypeOf('/homework', mounts)).toBe('ext4');
    expect(mountTypeOf('/home/ada', mounts)).toBe('autofs');
    expect(['nfs', 'nfs4', 'lustre', 'gpfs', 'beegfs'].every(isSharedFilesystem)).toBe(true);
    expect(['ext4', 'tmpfs', 'xfs', 'overlay', undefined].some(isSharedFilesystem)).toBe(false);
  });
});

test.each([
  ['nvidia_h100_80gb_hbm3', 'H100', 80],
  ['a100-sxm4-80gb', 'A100', 80],
  ['gh200', 'GH200', 96],
  ['mi250', 'MI250X', 64],
  ['l40s', 'L40S', 48],
])('%s', (name, model, memory_gb) => {
  expect(recognizeDevice(name)).toMatchObject({ kind: 'gpu', model, memory_gb });
});

test('accounts, QoS, reservations and other clusters stand beside the keys they are for', async () => {
  const associations = [
    { cluster: 'my_cluster', account: 'chat', qos: ['normal', 'brief'], is_default: true },
    { cluster: 'my_cluster', account: 'physics', qos: [], is_default: false },
  ];
  const reservations = [{ name: 'course', start_time_ms: 0, end_time_ms: 1, nodes: ['c1', 'c2'] }];
  const { text } = await discovered(
    [group('cpu', ['c1'], '(null)', [])],
    [partition('cpu')],
    '',
    {},
    {
      enforced: { associations: true, qos: true },
      associations,
      reservations,
    },
    [{ name: 'My_Cluster 9' }, { name: 'east', controller: 'e1', federation: 'all' }, { name: 'west' }],
  );
  expect(text).toContain('Your accounts: chat (charged where none is named), QoS normal brief; physics.');
  expect(text).toContain('Reservations: course (2 nodes).');
  expect(text).toContain('by "cluster: NAME": east (federation all), west.');
});
