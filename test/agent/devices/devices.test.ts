import { readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { amdDevices } from '../../../agent/devices/amd.ts';
import {
  type CpuHost,
  cpuDevices,
  plannedCpuDevices,
  readCpuHost,
  shortCpuModel,
  slurmMemoryLimit,
} from '../../../agent/devices/cpu.ts';
import { discoverDevices } from '../../../agent/devices/discover.ts';
import { allottedGpus, emulatedDevices } from '../../../agent/devices/emulated.ts';
import { withCoresOfNvidia } from '../../../agent/devices/near-cores.ts';
import { nvidiaDevices } from '../../../agent/devices/nvidia.ts';
import { assignDevices } from '../../../agent/node/assign-devices.ts';
import { environmentFor } from '../../../agent/node/device-visibility.ts';
import {
  cgroupMemoryLimit,
  cgroupOomKills,
  parseCgroupMount,
  parseMemoryCgroup,
  parseMemoryLimit,
} from '../../../host/cgroup.ts';
import { parseNumberList } from '../../../host/number-list.ts';
import { parseAllowedCores, parseCpuInfo } from '../../../host/processors.ts';
import { readKfdNodes } from '../../../native/kfd.ts';
import type { NvmlGpu } from '../../../native/nvml.ts';
import type { LaunchSpec } from '../../../spec/launch.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { unitOf } from '../support.ts';

const gibibyte = 2 ** 30;

test.each([
  ['0-3,8,10-11', [0, 1, 2, 3, 8, 10, 11]],
  ['5\n', [5]],
  ['', []],
])('parseNumberList(%j)', (text, expected) => expect(parseNumberList(text)).toEqual(expected));

test.each(['1-', 'a', '3-1', '0-99999999'])('parseNumberList(%j) is refused', (text) => {
  expect(() => parseNumberList(text)).toThrow(RangeError);
});

describe('/proc/cpuinfo', () => {
  test('of a Sapphire Rapids host', () => {
    const text = [
      'processor\t: 0',
      'model name\t: Intel(R) Xeon(R) Platinum 8480+',
      'flags\t\t: fpu avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8 notavx2',
    ].join('\n');
    expect(parseCpuInfo(text)).toEqual({
      model_name: 'Intel(R) Xeon(R) Platinum 8480+',
      isa: ['avx2', 'avx512f', 'avx512_vnni', 'avx512_bf16', 'amx_tile', 'amx_int8', 'amx_bf16'],
    });
  });

  test('of a Grace host, which has no model name', () => {
    const text = 'processor\t: 0\nFeatures\t: fp asimd sve sve2 i8mm bf16\nCPU implementer\t: 0x41\n';
    expect(parseCpuInfo(text)).toEqual({ model_name: '', isa: ['neon', 'sve', 'sve2', 'i8mm', 'bf16'] });
    expect(shortCpuModel('')).toBe('CPU');
  });

  test.each([
    ['Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz', 'Xeon Platinum 8480+'],
    ['AMD EPYC 7763 64-Core Processor', 'EPYC 7763'],
  ])('shortCpuModel(%j)', (name, expected) => expect(shortCpuModel(name)).toBe(expected));
});

test('allowed cores come from the affinity mask', () => {
  expect(parseAllowedCores('Cpus_allowed:\tff0\nCpus_allowed_list:\t4-11\nMems_allowed_list:\t0\n')).toEqual([
    4, 5, 6, 7, 8, 9, 10, 11,
  ]);
});

describe('memory limits', () => {
  test.each([
    [{ SLURM_MEM_PER_NODE: '64000' }, 64000 * 2 ** 20],
    [{ SLURM_MEM_PER_NODE: '0', SLURM_MEM_PER_CPU: '2G' }, 4 * 2 * gibibyte],
    [{ SLURM_MEM_PER_NODE: '0' }, undefined],
    [{}, undefined],
  ])('Slurm: %j', (environment, expected) => expect(slurmMemoryLimit(environment, 4)).toBe(expected));

  test('which cgroup', () => {
    expect(parseMemoryCgroup('0::/system.slice/slurmstepd.scope/job_7\n')).toEqual({
      version: 2,
      path: '/system.slice/slurmstepd.scope/job_7',
    });
    expect(parseMemoryCgroup('9:name=systemd:/\n4:memory:/slurm/uid_1/job_7\n0::/\n')).toEqual({
      version: 1,
      path: '/slurm/uid_1/job_7',
    });
    const mounts = '32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n';
    expect(parseCgroupMount(mounts, 1)).toEqual({ mount: '/sys/fs/cgroup/memory', root: '/' });
    expect(parseCgroupMount(mounts, 2)).toBeUndefined();
    expect([
      parseMemoryLimit('max\n'),
      parseMemoryLimit('9223372036854771712'),
      parseMemoryLimit('4096'),
    ]).toEqual([undefined, undefined, 4096]);
  });

  test('the tightest of a cgroup and those above it', async () => {
    await using root = await recordedHost({
      'proc/self/cgroup': '0::/slurm/job_7/step_0\n',
      'proc/self/mountinfo': '24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n',
      'sys/fs/cgroup/slurm/job_7/step_0/memory.max': 'max\n',
      'sys/fs/cgroup/slurm/job_7/memory.max': '1073741824\n',
      'sys/fs/cgroup/slurm/memory.max': '8589934592\n',
    });
    expect(cgroupMemoryLimit(root.path)).toBe(gibibyte);
  });

  test.each([
    ['2', '0::/job_7\n', 'cgroup2 cgroup2 rw', 'memory.events', 'low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\n'],
    ['1', '9:memory:/job_7\n', 'cgroup cgroup rw,memory', 'memory.oom_control', 'under_oom 0\noom_kill 2\n'],
  ])(
    'how often the kernel ended a process for want of memory, version %s',
    async (_, own, mount, file, text) => {
      await using root = await recordedHost({
        'proc/self/cgroup': own,
        'proc/self/mountinfo': `24 1 0:22 / /sys/fs/cgroup rw - ${mount}\n`,
        [`sys/fs/cgroup/job_7/${file}`]: text,
      });
      expect(cgroupOomKills(root.path)).toBe(2);
      await using silent = await recordedHost({ 'proc/self/cgroup': own });
      expect(cgroupOomKills(silent.path)).toBeUndefined();
    },
  );
});

async function recordedHost(files: Record<string, string>): Promise<AsyncDisposable & { path: string }> {
  const root = await scratchFolder();
  for (const [path, content] of Object.entries(files)) {
    await mkdir(dirname(join(root.path, path)), { recursive: true });
    await writeFile(join(root.path, path), content);
  }
  return root;
}

describe('CPU devices', () => {
  test('one a socket, with the job’s share of memory', async () => {
    await using root = await recordedHost({
      'proc/cpuinfo': 'model name\t: AMD EPYC 7763 64-Core Processor\nflags\t: avx2\n',
      'proc/self/status': 'Cpus_allowed_list:\t2-3,64-65\n',
      'proc/meminfo': 'MemTotal: 402653184 kB\n',
      'sys/devices/system/cpu/cpu2/topology/physical_package_id': '0\n',
      'sys/devices/system/cpu/cpu3/topology/physical_package_id': '0\n',
      'sys/devices/system/cpu/cpu64/topology/physical_package_id': '1\n',
      'sys/devices/system/cpu/cpu65/topology/physical_package_id': '1\n',
      'sys/devices/system/node/node0/cpulist': '0-63\n',
      'sys/devices/system/node/node0/meminfo': 'Node 0 MemTotal:       268435456 kB\n',
      'sys/devices/system/node/node1/cpulist': '64-127\n',
      'sys/devices/system/node/node1/meminfo': 'Node 1 MemTotal:       134217728 kB\n',
    });
    const host = readCpuHost({ SLURM_MEM_PER_NODE: String(96 * 1024) }, root.path);
    expect(host.memory_total_bytes).toBe(384 * gibibyte);
    expect(cpuDevices(host)).toEqual([
      { kind: 'cpu', model: 'EPYC 7763', isa: ['avx2'], cores: [2, 3], memory_bytes: 64 * gibibyte },
      { kind: 'cpu', model: 'EPYC 7763', isa: ['avx2'], cores: [64, 65], memory_bytes: 32 * gibibyte },
    ]);
  });

  test('are as many as the plan counts, each with the same share of neighbouring cores', () => {
    const host: CpuHost = {
      model_name: 'x',
      isa: [],
      allowed_cores: [0, 1, 2, 3, 4, 5, 6, 7],
      package_of: new Map([0, 1, 2, 3, 4, 5, 6, 7].map((core) => [core, core % 2])),
      numa_nodes: [
        { id: 0, cores: [0, 4], memory_bytes: gibibyte },
        { id: 1, cores: [1, 5], memory_bytes: gibibyte },
        { id: 2, cores: [2, 6], memory_bytes: gibibyte },
        { id: 3, cores: [3, 7], memory_bytes: gibibyte },
      ],
      memory_total_bytes: 4 * gibibyte,
    };
    const cores = (count: number | undefined) => plannedCpuDevices(host, count).map((device) => device.cores);
    expect(cores(undefined)).toEqual([
      [0, 2, 4, 6],
      [1, 3, 5, 7],
    ]);
    expect(cores(2)).toEqual(cores(undefined));
    expect(cores(1)).toEqual([[0, 4, 2, 6, 1, 5, 3, 7]]);
    expect(cores(4)).toEqual([
      [0, 4],
      [2, 6],
      [1, 5],
      [3, 7],
    ]);
    expect(plannedCpuDevices(host, 4).map((device) => device.memory_bytes)).toEqual(Array(4).fill(gibibyte));
    // There are no nine devices in eight cores: it is left to who counts on them to fail.
    expect(cores(9)).toEqual(cores(undefined));
  });

  test('are made of the cores that are the launch’s own', () => {
    const [first] = readCpuHost({}).allowed_cores;
    const launch = { cores: [first], cpu_devices_per_node: 1, units: [] } as unknown as LaunchSpec;
    const { cpu, host } = discoverDevices(launch, 0, {});
    expect(cpu.map((device) => device.description.cores)).toEqual([[first]]);
    expect(host.allowed_cores).toEqual([first]);
    const elsewhere = { ...launch, cores: [9999] } as LaunchSpec;
    expect(discoverDevices(elsewhere, 0, {}).host.allowed_cores).toEqual(readCpuHost({}).allowed_cores);
  });

  test('of this host', () => {
    const host = readCpuHost({});
    expect(host.allowed_cores.length).toBeGreaterThan(0);
    const devices = cpuDevices(host);
    expect(devices.flatMap((device) => device.cores ?? []).length).toBe(host.allowed_cores.length);
    expect(devices[0]!.memory_bytes).toBeGreaterThan(2 ** 28);
    expect(devices[0]!.isa.length).toBeGreaterThan(0);
  });
});

const gpu = (index: number, change: Partial<NvmlGpu> = {}): NvmlGpu => ({
  index,
  name: 'NVIDIA A100-SXM4-40GB',
  uuid: `GPU-${index}000`,
  memory_bytes: 40 * gibibyte,
  compute_capability: '8.0',
  pci_bus_id: `00000000:0${index}:00.0`,
  mig_enabled: false,
  mig_slices: [],
  ...change,
});
const sliced = gpu(1, {
  mig_enabled: true,
  mig_slices: [1, 2].map((index) => ({
    index,
    name: 'NVIDIA A100-SXM4-40GB MIG 3g.20gb',
    uuid: `MIG-${index}`,
    memory_bytes: 20 * gibibyte,
  })),
});

describe('NVIDIA GPUs', () => {
  const tokens = (visible: string | undefined, gpus = [gpu(0), sliced, gpu(2)]) =>
    nvidiaDevices(gpus, visible).map((device) => device.visibility_token);

  test('all of them where nothing is said, slices instead of a sliced GPU', () => {
    expect(tokens(undefined)).toEqual(['0', 'MIG-1', 'MIG-2', '2']);
    expect(nvidiaDevices([gpu(0), sliced], undefined).map((device) => device.description)).toEqual([
      { kind: 'gpu', model: 'A100-SXM4-40GB', memory_bytes: 40 * gibibyte, isa: ['sm_80'], uuid: 'GPU-0000' },
      ...[1, 2].map((index) => ({
        kind: 'mig',
        model: 'A100-SXM4-40GB MIG 3g.20gb',
        memory_bytes: 20 * gibibyte,
        isa: ['sm_80'],
        uuid: `MIG-${index}`,
        link: 'GPU-1000',
      })),
    ]);
  });

  test.each([
    ['2,0', ['2', '0']],
    ['GPU-2', ['GPU-2']],
    ['MIG-2,MIG-1', ['MIG-2', 'MIG-1']],
    ['1', ['MIG-1']],
    ['0,7,2', ['0']], // as in CUDA, the first that names nothing ends the list
    ['GPU-', []], // not unambiguous
    ['', []],
    ['NoDevFiles', []],
  ])('CUDA_VISIBLE_DEVICES=%s', (visible, expected) => expect(tokens(visible)).toEqual(expected));

  test('by number, as far as a number means them: of a GPU with slices, the first', () => {
    const numbers = (visible: string) =>
      nvidiaDevices([gpu(0), sliced, gpu(2)], visible).map((device) => device.visibility_number);
    expect(numbers('2,0')).toEqual(['2', '0']);
    expect(numbers('GPU-2')).toEqual(['2']);
    expect(numbers('MIG-1,MIG-2')).toEqual(['1', undefined]);
  });

  test('that do not answer are left out, and the numbers of the others stay as they are', () => {
    const gpus = [gpu(0), undefined, gpu(2)];
    const left = (visible: string | undefined) =>
      nvidiaDevices(gpus, visible).map((device) => device.visibility_token);
    expect(left(undefined)).toEqual(['0', '2']);
    expect(left('2,1,0')).toEqual(['2', '0']);
    expect(left('GPU-1000,GPU-2')).toEqual(['GPU-2']);
    expect(left('0,3,2')).toEqual(['0']);
    const devices = withCoresOfNvidia(nvidiaDevices(gpus, undefined), gpus, (bus_id) => [Number(bus_id[10])]);
    expect(devices.map(({ near_cores }) => near_cores)).toEqual([[0], [2]]);
  });
});

test('AMD GPUs from the kernel’s topology', () => {
  const cpu = { name: '', properties: 'cpu_cores_count 64\nsimd_count 0\n', memory_banks: [] };
  const mi250 = {
    name: 'aldebaran\n',
    properties: 'simd_count 440\ngfx_target_version 90010\n',
    memory_banks: [`heap_type 1\nsize_in_bytes ${64 * gibibyte}\n`],
  };
  expect(amdDevices([cpu, mi250, mi250], { ROCR_VISIBLE_DEVICES: '1' })).toEqual([
    {
      description: { kind: 'gpu', model: 'aldebaran', memory_bytes: 64 * gibibyte, isa: ['gfx90a'] },
      visibility_token: '1',
      visibility_variable: 'ROCR_VISIBLE_DEVICES',
    },
  ]);
  expect(amdDevices([cpu, mi250, mi250], {})).toHaveLength(2);
});

describe('AMD GPUs that a job may use', () => {
  const nodes = [10n, 11n, 12n, 13n].map((id) => ({
    name: `gpu ${id}`,
    properties: `simd_count 440\nunique_id ${id}\n`,
    memory_banks: [],
  }));
  test.each([
    [{ ROCR_VISIBLE_DEVICES: '3,1' }, ['3', '1']],
    [{ ROCR_VISIBLE_DEVICES: 'GPU-000000000000000c' }, ['2']],
    // HIP counts within what ROCR shows; the same list in both is meant once.
    [{ ROCR_VISIBLE_DEVICES: '3,1', HIP_VISIBLE_DEVICES: '1' }, ['1']],
    [{ ROCR_VISIBLE_DEVICES: '2,3', HIP_VISIBLE_DEVICES: '2,3', CUDA_VISIBLE_DEVICES: '2,3' }, ['2', '3']],
    [{ HIP_VISIBLE_DEVICES: '2' }, ['2']],
    [{ CUDA_VISIBLE_DEVICES: '1,2' }, ['1', '2']],
    [{ ROCR_VISIBLE_DEVICES: '1,7,2' }, ['1']],
    [{ ROCR_VISIBLE_DEVICES: '' }, []],
  ])('%j', (visible, expected) =>
    expect(amdDevices(nodes, visible).map((device) => device.visibility_token)).toEqual(expected),
  );

  test('are not those that the kernel keeps from it', async () => {
    await using root = await scratchFolder();
    const folder = join(root.path, 'sys/class/kfd/kfd/topology/nodes');
    for (const node of ['0', '1', '2']) {
      await mkdir(join(folder, node), { recursive: true });
      await writeFile(join(folder, node, 'name'), `n${node}\n`);
      await writeFile(join(folder, node, 'properties'), 'simd_count 4\n');
    }
    const read = (path: string): string => {
      if (path.includes('/nodes/1/')) throw Object.assign(new Error('not permitted'), { code: 'EPERM' });
      return readFileSync(path, 'utf8');
    };
    expect(readKfdNodes(root.path, read).map(({ name }) => name)).toEqual(['n0\n', 'n2\n']);
    const broken = () => readKfdNodes(root.path, () => readFileSync(join(folder, 'none'), 'utf8'));
    expect(broken).toThrow(/ENOENT/);
  });
});

describe('devices that cores stand in for', () => {
  test.each([
    [{ SLURM_JOB_GPUS: '0,1,2' }, 3],
    [{ SLURM_STEP_GPUS: '1', SLURM_JOB_GPUS: '0,1' }, 1],
    [{ SLURM_GPUS_ON_NODE: '4' }, 4],
    [{ CUDA_VISIBLE_DEVICES: 'NoDevFiles' }, undefined],
    [{}, undefined],
  ])('allotted by %j', (environment, expected) => expect(allottedGpus(environment)).toBe(expected));

  test('say so, and share the cores', () => {
    const devices = emulatedDevices(
      2,
      { kind: 'gpu', model: 'A100-40GB', memory_bytes: gibibyte },
      { isa: ['avx2'], cores: [0, 1, 2, 3, 4], memory_bytes: 8 * gibibyte },
    );
    expect(devices.map((device) => device.description.cores)).toEqual([
      [0, 1],
      [2, 3, 4],
    ]);
    expect(devices[0]!.description).toMatchObject({ kind: 'gpu', emulated: 'cpu', model: 'A100-40GB' });
  });

  test('are slices of as few GPUs as have room for them, whose links they share', () => {
    const linksOf = (kind: 'gpu' | 'mig', model: string): (string | undefined)[] =>
      emulatedDevices(
        5,
        { kind, model, memory_bytes: gibibyte },
        { isa: [], cores: [0], memory_bytes: gibibyte },
      ).map(({ description }) => description.link);
    expect(linksOf('mig', 'GH200-96GB-3g.48gb')).toEqual(['GPU 0', 'GPU 0', 'GPU 1', 'GPU 1', 'GPU 2']);
    expect(linksOf('mig', 'of tomorrow 3g.48gb')).toEqual(Array(5).fill(undefined));
    expect(linksOf('gpu', 'GH200')).toEqual(Array(5).fill(undefined));
  });

  test('are as many as the launch needs where there is no Slurm', () => {
    const units = [unitOf({ name: 'm' }, { device_kind: 'gpu', first_device: 1, device_count: 2 })];
    const launch = { emulated: 'cpu', device_model: 'GH200', units } as unknown as LaunchSpec;
    const { gpu: found } = discoverDevices(launch, 0, {});
    expect(found.map((device) => [device.description.model, device.description.emulated])).toEqual(
      Array(3).fill(['GH200', 'cpu']),
    );
  });
});

describe('CPUs of another model that this one stands in for', () => {
  test('are as many as the units need, and the only CPU devices', () => {
    const units = [0, 1].map((first_device) => unitOf({ name: 'm' }, { device_kind: 'cpu', first_device }));
    const launch = {
      emulated: 'cpu',
      device_model: 'Xeon-8480+',
      device_memory_bytes: gibibyte,
      units,
    } as unknown as LaunchSpec;
    const { cpu, gpu: none } = discoverDevices(launch, 0, { SLURM_GPUS_ON_NODE: '4' });
    expect(none).toEqual([]);
    expect(cpu.map((device) => device.description)).toEqual(
      [0, 1].map(() =>
        expect.objectContaining({
          kind: 'cpu',
          model: 'Xeon-8480+',
          emulated: 'cpu',
          memory_bytes: gibibyte,
        }),
      ),
    );
  });
});

describe('allotting devices to units', () => {
  const host: CpuHost = {
    model_name: 'x',
    isa: [],
    allowed_cores: [0, 1, 2, 3],
    package_of: new Map(),
    numa_nodes: [],
    memory_total_bytes: gibibyte,
  };
  const devices = {
    cpu: cpuDevices(host).map((description) => ({ description })),
    gpu: nvidiaDevices([gpu(0), gpu(1), gpu(2)], '2,0').map((device) => ({
      ...device,
      ggml_device: 'CUDA0',
    })),
    mig: [],
    host,
    warnings: [],
  };

  test('native units of one device share a worker, wrapped engines do not; the rest is reported', () => {
    const { groups, failed, unused } = assignDevices(
      [
        unitOf({ name: 'a' }, { engine: 'native', device_kind: 'gpu', first_device: 1 }),
        unitOf({ name: 'b' }, { engine: 'native', device_kind: 'gpu', first_device: 1 }),
        unitOf({ name: 'c' }, { engine: 'vllm', device_kind: 'gpu', first_device: 1 }),
        unitOf({ name: 'd' }, { engine: 'vllm', device_kind: 'gpu', first_device: 1, device_count: 2 }),
        unitOf({ name: 'e' }, { engine: 'native', device_kind: 'mig' }),
      ],
      devices,
    );
    expect(groups.map((group) => [group.name, group.units.length])).toEqual([
      ['a-0', 2],
      ['c-0', 1],
    ]);
    expect(groups[0]!.devices.map((device) => device.visibility_token)).toEqual(['0']);
    expect(groups[0]!.first_device).toBe(1);
    expect(failed.map(({ unit, error }) => [unit.unit, error.code])).toEqual([
      ['d-0', 'E_AGENT_DEVICES'],
      ['e-0', 'E_AGENT_DEVICES'],
    ]);
    expect(unused.map((device) => device.visibility_token)).toEqual(['2']);
  });

  test('a device that no backend of ggml computes on is no device of the native engine', () => {
    const strange = { ...devices, gpu: nvidiaDevices([gpu(0)], undefined), warnings: ['no libcudart.so.13'] };
    const units = (['native', 'vllm'] as const).map((engine) =>
      unitOf({ name: engine }, { engine, device_kind: 'gpu' }),
    );
    const { groups, failed } = assignDevices(units, strange);
    expect(groups.map(({ name }) => name)).toEqual(['vllm-0']);
    expect(failed.map(({ error }) => error)).toMatchObject([
      { code: 'E_NATIVE_LIBRARY', because: expect.arrayContaining(['no libcudart.so.13']) },
    ]);
  });

  test('threads of all device workers together never exceed the cores', () => {
    const units = [0, 1].map((first_device) =>
      unitOf(
        { name: `m${first_device}` },
        { engine: 'native', device_kind: 'gpu', first_device, threads: 4 },
      ),
    );
    expect(assignDevices(units, devices).groups.map((group) => group.threads)).toEqual([2, 2]);
  });

  test('a child sees its devices and no other', () => {
    const base = { PATH: '/bin', CUDA_VISIBLE_DEVICES: '2,0' };
    expect(environmentFor(devices.gpu.slice(1), base).CUDA_VISIBLE_DEVICES).toBe('0');
    expect(environmentFor(devices.cpu, base).CUDA_VISIBLE_DEVICES).toBe('');
    const amd = amdDevices([{ name: 'x', properties: 'simd_count 1\n', memory_banks: [] }], {});
    const seen = environmentFor(amd, { ...base, HIP_VISIBLE_DEVICES: '2', GPU_DEVICE_ORDINAL: '2' });
    expect(seen.ROCR_VISIBLE_DEVICES).toBe('0');
    for (const name of ['CUDA_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES', 'GPU_DEVICE_ORDINAL'])
      expect(seen).not.toHaveProperty(name);
  });
});
