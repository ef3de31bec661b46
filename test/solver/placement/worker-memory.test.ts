/** Memory that workers have beside the pools of their devices, which their jobs are to have. */
import { expect, test } from 'vitest';
import { place } from '../../../solver/placement/placement.ts';
import type { NodeKindOffer, PlannedLaunch } from '../../../spec/plan.ts';
import { frameMemory_bytes, staging_bytes_max } from '../../../spec/worker-memory.ts';
import { ask, cpus, gguf, gpus } from './support.ts';

const gib = 2 ** 30;
const { host_overhead_bytes } = ask([], []).settings;

const sockets: NodeKindOffer = {
  ...cpus('Xeon-8480+', 4, ['avx512_bf16']),
  devices: { kind: 'cpu', model: 'Xeon-8480+', count: 2, memory_bytes: 96 * gib },
};

function beside_bytes({ memory_bytes_per_node, units }: PlannedLaunch): number {
  const devices_bytes = units.reduce(
    (sum, { memory, device_count }) => sum + memory!.device_bytes * device_count,
    0,
  );
  return memory_bytes_per_node - devices_bytes - host_overhead_bytes;
}

test.each([
  { parallel: undefined, on_each: 0 },
  { parallel: { pipeline: 2 }, on_each: frameMemory_bytes(1) },
  { parallel: { pipeline: { stages_min: 1, stages_max: 2 } }, on_each: frameMemory_bytes(1) },
  { parallel: { pipeline: 4, jobs: 2 }, on_each: frameMemory_bytes(2) },
])('a job on CPUs has memory for frames between stages: $parallel', ({ parallel, on_each }) => {
  const more = parallel ? { parallel } : {};
  const [launch] = place(ask([gguf('m', '8b', more)], [sockets])).launches;
  const { device_count } = launch!.units[0]!;
  expect(beside_bytes(launch!)).toBe(on_each * device_count);
});

test('a job of stages that are lent has it, too', () => {
  const idle: NodeKindOffer = { ...sockets, node_kind: 'idle', tier: 'scavenger' };
  const lender = { ...idle, devices: { ...idle.devices, model: 'Xeon-6454S', memory_bytes: 64 * gib } };
  const parallel = { pipeline: 4, jobs: 2, lenders: 'scavenger' };
  const asked = ask([gguf('m', '8b', { parallel, tier: 'stable' })], [sockets, lender]);
  const [, lent] = place(asked).launches;
  const there = { ...lent!, units: lent!.part!.lends_to };
  expect(there.node_kind).toBe('idle');
  expect(beside_bytes(there)).toBe(2 * frameMemory_bytes(2));
});

test('a node has no memory for more stages than their frames leave', () => {
  const cut = (memory_bytes: number) =>
    place(ask([gguf('m', '1b', { parallel: { pipeline: 2 } })], [{ ...sockets, memory_bytes }]));
  const [launch] = cut(96 * gib).launches;
  const needed = launch!.memory_bytes_per_node;
  expect(cut(needed).launches).toHaveLength(1);
  // Less KV than is wanted would do with less; of the frames nothing can be spared.
  const least = place(
    ask(
      [gguf('m', '1b', { parallel: { pipeline: 2 }, kv_tokens: 16, context_tokens: 16 })],
      [{ ...sockets, memory_bytes: 96 * gib }],
    ),
  ).launches[0]!.memory_bytes_per_node;
  const tight = ask(
    [gguf('m', '1b', { parallel: { pipeline: 2 }, kv_tokens: 16, context_tokens: 16 })],
    [{ ...sockets, memory_bytes: least - 1 }],
  );
  expect(place(tight).rejected).toMatchObject([{ constraint: 'host_memory' }]);
});

test('a job of GPUs has host memory that keys and values go through, also where its share of the node is less', () => {
  const native = { engines: { native: { available: true } } } as const;
  const host = (memory_gib: number): number =>
    place(ask([gguf('m', '1b')], [gpus('A100', 40, 1, { memory_bytes: memory_gib * gib, ...native })]))
      .launches[0]!.memory_bytes_per_node;
  expect(host(64)).toBe(16 * gib);
  expect(host(2)).toBe(host_overhead_bytes + staging_bytes_max);
});
