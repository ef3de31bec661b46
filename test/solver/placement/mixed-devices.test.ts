/** One model on CPUs and GPUs at once: `devices.kind: any` may mix. */
import { expect, it } from 'vitest';
import { place } from '../../../solver/placement/placement.ts';
import type { NodeKindOffer, Placement } from '../../../spec/plan.ts';
import { ask, cpus, gguf, gpus, where } from './support.ts';

const amx = ['avx2', 'avx512f', 'avx512_bf16', 'amx_tile', 'amx_int8', 'amx_bf16'];
const offers = (cpu_nodes: number): NodeKindOffer[] => [
  cpus('Xeon-8480', cpu_nodes, amx),
  gpus('A100-80GB', 80, 1, { engines: { native: { available: true } }, count: 2 }),
];

function planned(rate_per_s: number, cpu_nodes: number, kind = 'any'): Placement {
  const workload = { rate_per_s, input_tokens: 256, output_tokens: 64 };
  const bounded = { context_tokens: 4096, kv_tokens: 65_536, slo: { ttft_ms: 4000, tpot_ms: 250 } };
  const model = gguf('m', '8b', { ...bounded, replicas: 'auto', workload, devices: { kind } });
  return place(ask([model], offers(cpu_nodes), { objective: 'gpu-hours' }));
}

it('CPUs carry what they can within the SLO, and GPUs the rest', () => {
  expect(Object.keys(where(planned(0.1, 2), 'm'))).toEqual(['xeon-8480']);
  const mixed = planned(8, 2);
  expect(Object.keys(where(mixed, 'm')).sort()).toEqual(['a100-80gb', 'xeon-8480']);
  const groups = mixed.models[0]!.groups;
  expect(groups).toHaveLength(2);
  expect(groups.reduce((sum, { traffic_share }) => sum + traffic_share, 0)).toBeCloseTo(1, 6);
  // All of them are native replicas of one name, between which gateways choose and streams move.
  const units = mixed.launches.flatMap((launch) => launch.units);
  expect(new Set(units.map(({ engine }) => engine))).toEqual(new Set(['native']));
  expect(new Set(units.map(({ device_kind }) => device_kind))).toEqual(new Set(['cpu', 'gpu']));
  expect(Object.keys(where(planned(8, 2, 'gpu'), 'm'))).toEqual(['a100-80gb']);
});
