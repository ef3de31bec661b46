/** Which cores the processes of a node keep to: by decision, and as the kernel says of real processes. */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { vllm } from '../../../agent/adapters/vllm.ts';
import { amdDevices } from '../../../agent/devices/amd.ts';
import { coresNearPci, withCoresOfAmd, withCoresOfNvidia } from '../../../agent/devices/near-cores.ts';
import type { NodeDevice } from '../../../agent/devices/node-device.ts';
import { assignCores, physicalCores } from '../../../agent/node/assign-cores.ts';
import type { UnitGroup } from '../../../agent/node/assign-devices.ts';
import { parseAllowedCores } from '../../../host/processors.ts';
import type { NvmlGpu } from '../../../native/nvml.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { fixtureUnit, Site, unitOf } from '../support.ts';

const range = (first: number, end: number): number[] =>
  Array.from({ length: end - first }, (_, at) => first + at);

function device(kind: 'cpu' | 'gpu', more: { cores?: number[]; near_cores?: number[] } = {}): NodeDevice {
  const { cores, near_cores } = more;
  const description = { kind, model: 'x', memory_bytes: 1, isa: [], cores };
  return { description, near_cores } as NodeDevice;
}

function group(name: string, devices: NodeDevice[], more: Partial<UnitGroup> = {}): UnitGroup {
  return { name, engine: 'vllm', units: [], devices, first_device: 0, threads: 1, ...more };
}

/** Two hardware threads each: 0 and n/2, 1 and n/2 + 1, … */
function hyperThreads(count: number): Map<number, number[]> {
  const half = count / 2;
  return new Map(range(0, count).map((core) => [core, [core % half, (core % half) + half]]));
}

describe('cores of engines', () => {
  const named = (groups: UnitGroup[], host: Parameters<typeof assignCores>[1]) =>
    Object.fromEntries([...assignCores(groups, host)].map(([{ name }, cores]) => [name, cores]));

  test('on CPU devices: those of its devices', () => {
    const [left, right] = [device('cpu', { cores: [0, 1] }), device('cpu', { cores: [2, 3] })];
    expect(
      named([group('a', [left]), group('b', [right]), group('w', [right], { engine: 'native' })], {
        allowed_cores: [0, 1, 2, 3],
      }),
    ).toEqual({ a: [0, 1], b: [2], w: [3] });
  });

  test('several on one device share it by their threads, and physical cores stay whole', () => {
    const all = device('cpu', { cores: range(0, 16) });
    const groups = [group('a', [all], { threads: 3 }), group('b', [all], { threads: 1 })];
    expect(named(groups, { allowed_cores: range(0, 16), siblings_of: hyperThreads(16) })).toEqual({
      a: [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13],
      b: [6, 7, 14, 15],
    });
  });

  test('beside GPUs: near it, an even share each, and none that a CPU device has', () => {
    const near = (first: number, end: number) => device('gpu', { near_cores: range(first, end) });
    const [a, b, c] = [near(0, 8), near(0, 8), near(8, 16)];
    const cpu = device('cpu', { cores: [14, 15] });
    expect(
      named(
        [
          group('a', [a]),
          group('b', [b]),
          group('c', [c]),
          group('w', [cpu], { engine: 'native', threads: 2 }),
        ],
        { allowed_cores: range(0, 16) },
      ),
    ).toEqual({ a: [0, 1, 2, 3], b: [4, 5, 6, 7], c: range(8, 14), w: [14, 15] });
  });

  test('beside GPUs whose cores the job did not get, or that nobody knows: what it did get', () => {
    const far = device('gpu', { near_cores: [90, 91] });
    const host = { allowed_cores: [4, 5, 6, 7] };
    expect(named([group('a', [far]), group('b', [device('gpu')])], host)).toEqual({ a: [4, 5], b: [6, 7] });
  });

  test('a replica on four GPUs of two sockets has the cores of both', () => {
    const gpus = [0, 1, 2, 3].map((at) => device('gpu', { near_cores: at < 2 ? [0, 1] : [2, 3] }));
    expect(named([group('a', gpus)], { allowed_cores: [0, 1, 2, 3] })).toEqual({ a: [0, 1, 2, 3] });
  });

  test('fewer cores than engines, or cores that only stand in for devices: nobody is bound', () => {
    const gpus = [device('gpu'), device('gpu')];
    expect(named([group('a', [gpus[0]!]), group('b', [gpus[1]!])], { allowed_cores: [3] })).toEqual({});
    const emulated = {
      description: { ...device('gpu', { cores: [0] }).description, emulated: 'cpu' as const },
    };
    expect(named([group('a', [emulated])], { allowed_cores: [0, 1] })).toEqual({});
  });

  test('whatever the node: within the job, and no core twice', () => {
    const arbitrary = fc.record({
      allowed: fc.uniqueArray(fc.nat(31), { minLength: 1 }),
      isThreaded: fc.boolean(),
      gpus: fc.array(fc.option(fc.uniqueArray(fc.nat(31)), { nil: undefined }), { maxLength: 6 }),
      cpu_engines: fc.nat(3),
    });
    fc.assert(
      fc.property(arbitrary, ({ allowed, isThreaded, gpus, cpu_engines }) => {
        const socket = device('cpu', { cores: allowed.slice(0, Math.ceil(allowed.length / 2)) });
        const groups = [
          ...range(0, cpu_engines).map((at) => group(`c${at}`, [socket], { threads: at + 1 })),
          ...gpus.map((near_cores, at) => group(`g${at}`, [device('gpu', { near_cores: near_cores! })])),
        ];
        const siblings_of = isThreaded ? hyperThreads(32) : new Map();
        const found = assignCores(groups, { allowed_cores: allowed, siblings_of });
        const cpus = [...found].filter(([{ name }]) => name.startsWith('c')).flatMap(([, cores]) => cores);
        expect(new Set(cpus).size).toBe(cpus.length);
        for (const [{ name }, cores] of found) {
          expect(cores.length).toBeGreaterThan(0);
          expect(cores.every((core) => allowed.includes(core))).toBe(true);
          const isFree = allowed.some((core) => !cpus.includes(core));
          if (name.startsWith('g') && isFree) expect(cores.some((core) => cpus.includes(core))).toBe(false);
        }
      }),
    );
  });
});

test('what the kernel says of a PCI device, by NVML’s address and by its own', async () => {
  await using scratch = await scratchFolder();
  const folder = join(scratch.path, 'sys/bus/pci/devices/0000:c7:00.0');
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, 'local_cpulist'), '48-51,112-115\n');
  const cores = [48, 49, 50, 51, 112, 113, 114, 115];
  expect(coresNearPci('00000000:C7:00.0', scratch.path)).toEqual(cores);
  expect(coresNearPci('0000:c7:00.0', scratch.path)).toEqual(cores);
  expect(coresNearPci('0000:01:00.0', scratch.path)).toBeUndefined();
  expect(coresNearPci('../../../etc/passwd', scratch.path)).toBeUndefined();
});

test('devices have the cores next to their GPU: a slice those of the whole, AMD’s by where they are on the bus', () => {
  const nearCores = (bus_id: string) => ({ '00000000:c7:00.0': [1], '0001:c1:00.1': [2] })[bus_id];
  const gpu = { uuid: 'GPU-1', pci_bus_id: '00000000:c7:00.0', mig_slices: [{ uuid: 'MIG-1' }] };
  const named = (uuid: string): NodeDevice => ({ description: { ...device('gpu').description, uuid } });
  const nvidia = withCoresOfNvidia(['GPU-1', 'MIG-1', 'GPU-2'].map(named), [gpu as NvmlGpu], nearCores);
  expect(nvidia.map(({ near_cores }) => near_cores)).toEqual([[1], [1], undefined]);
  const cpu = { name: '', properties: 'simd_count 0\nlocation_id 0\n', memory_banks: [] };
  const mi300 = { name: 'x', properties: 'simd_count 304\nlocation_id 49409\ndomain 1\n', memory_banks: [] };
  const amd = withCoresOfAmd(
    amdDevices([cpu, mi300], { ROCR_VISIBLE_DEVICES: '0' }),
    [cpu, mi300],
    nearCores,
  );
  expect(amd.map(({ near_cores }) => near_cores)).toEqual([[2]]);
});

describe('vLLM on CPUs is told', () => {
  const lists = (unit: Parameters<typeof unitOf>[1], cores: number[][]) =>
    vllm.threadEnvironment!(unitOf({ name: 'm' }, unit), cores).VLLM_CPU_OMP_THREADS_BIND;

  test.each([
    [1, [[3]], '3'],
    [1, [[0], [1], [2], [3]], '0,1,2'], // the last one is left to its scheduler
    [2, [[0], [1], [2], [3], [4]], '0,1|2,3'],
    [2, [[0], [1]], '0|1'],
    [4, [[0], [1]], 'nobind'],
  ])('with %i rank(s) on %j: %s', (tensor, cores, expected) =>
    expect(lists({ tensor }, cores)).toBe(expected),
  );

  test('over several nodes, one list for each rank of this node', () => {
    const cores = [[0], [1], [2]];
    expect(lists({ tensor: 1, pipeline: 2, nodes: 2 }, cores)).toBe('0,1');
    expect(lists({ tensor: 2, pipeline: 2, nodes: 2 }, cores)).toBe('0|1');
  });

  test('one hardware thread of each physical core', () => {
    const cores = physicalCores(range(0, 8), { siblings_of: hyperThreads(8) });
    expect(cores).toEqual([
      [0, 4],
      [1, 5],
      [2, 6],
      [3, 7],
    ]);
    expect(lists({}, cores)).toBe('0,1,2');
  });
});

test('two engines of a node never share a core, nor does what they start; what model.yaml says is stronger', async () => {
  await using site = await Site.open();
  const allowed = parseAllowedCores(await readFile('/proc/self/status', 'utf8'));
  const environment = { OMP_NUM_THREADS: '7' };
  const [a, b] = [fixtureUnit('a', ['--child']), fixtureUnit('b', ['--child'])];
  const agent = await site.start([a, { ...b, model: { ...b.model, environment } }]);
  const coresOf = async (name: string): Promise<number[]> => {
    const pid = await agent.pidOf(await site.serving(name));
    const child = (await agent.engineLog(`${name}-0`)).find((line) => line.startsWith('child '))!.slice(6);
    const [own, inherited] = await Promise.all(
      [String(pid), child].map(async (id) => parseAllowedCores(await readFile(`/proc/${id}/status`, 'utf8'))),
    );
    expect(inherited).toEqual(own);
    return own!;
  };
  const [ofA, ofB] = await Promise.all([coresOf('a'), coresOf('b')]);
  if (allowed.length === 1) expect([ofA, ofB]).toEqual([allowed, allowed]);
  else {
    expect(ofA.filter((core) => ofB.includes(core))).toEqual([]);
    expect([...ofA, ...ofB].sort((x, y) => x - y)).toEqual(allowed);
  }
  const { sessions } = await agent.stateWhere(({ phase }) => phase === 'serving', 'both serve');
  expect(sessions.find(({ unit }) => unit === 'a-0')!.cores).toEqual(allowed.length === 1 ? undefined : ofA);
  const threads = async (pid: number): Promise<string | undefined> =>
    (await readFile(`/proc/${pid}/environ`, 'latin1'))
      .split('\0')
      .find((line) => line.startsWith('OMP_NUM_THREADS='));
  expect(await threads(await agent.pidOf(await site.serving('b')))).toBe('OMP_NUM_THREADS=7');
  if (allowed.length > 1)
    expect(await threads(await agent.pidOf(await site.serving('a')))).toBe('OMP_NUM_THREADS=1');
});
