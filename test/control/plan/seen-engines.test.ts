/** What engines said of their limits is what the next plan counts with, and what it asks for stays the same. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { seenEngines } from '../../../control/plan/seen-engines.ts';
import { place } from '../../../solver/placement/placement.ts';
import type { EngineLimits } from '../../../spec/agent-state.ts';
import type { UnitSpec } from '../../../spec/launch.ts';
import type { EngineSeen } from '../../../spec/plan.ts';
import { ask, cpus, gpus, llama } from '../../solver/placement/support.ts';
import { deploymentState, launchRecord, plannedLaunch, temporaryStore } from '../support.ts';

it('is read from the files of the agents, by model', () => {
  const { store, dispose } = temporaryStore();
  try {
    const planned = plannedLaunch('m-1');
    const units = [{ ...planned.units[0]!, engine: 'vllm' as const, max_sequences: 256 }];
    const state = deploymentState([
      launchRecord(1, { phase: 'submitted', planned: { ...planned, units } }),
      launchRecord(2, { phase: 'submitted' }),
    ]);
    expect(seenEngines(state, store)).toEqual(new Map());
    const folder = store.launchFolder(state.name, state.launches[0]!.launch_id);
    mkdirSync(folder, { recursive: true });
    const write = (node: string, updated_at_ms: number, limits?: EngineLimits): void =>
      writeFileSync(
        join(folder, `${node}.state.json`),
        JSON.stringify({
          format: 1,
          node,
          node_index: 0,
          phase: 'serving',
          started_at_ms: 0,
          updated_at_ms,
          devices: [],
          sessions: [{ engine: 'vllm', unit: 'm-1', models: [], limits }],
        }),
      );
    write('old', 1, { kv_tokens: 1, max_sequences: 1 });
    write('new', 2, { kv_tokens: 34_952 });
    const where = { node_kind: 'cpu', engine: 'vllm', tensor: 1, pipeline: 1 };
    expect(seenEngines(state, store)).toEqual(
      new Map([['m', [{ ...where, max_sequences: 256, kv_tokens: 34_952 }]]]),
    );
  } finally {
    dispose();
  }
});

it('has what batches take at the stages of a pipeline, as its coordinator said', () => {
  const { store, dispose } = temporaryStore();
  try {
    const planned = plannedLaunch('m-0');
    const stages = [
      { begin: 0, end: 5 },
      { begin: 5, end: 10 },
    ];
    const units = [{ ...planned.units[0]!, engine: 'native' as const, pipeline: 2, stages }];
    const state = deploymentState([launchRecord(1, { phase: 'submitted', planned: { ...planned, units } })]);
    const folder = store.launchFolder(state.name, state.launches[0]!.launch_id);
    mkdirSync(folder, { recursive: true });
    // Of the second one, its operators too, in batches that took longer.
    const took = [
      { ...stages[0]!, computed_us: 1500 },
      { ...stages[1]!, computed_us: 3000, operators_us: [3000, 1000, 500, 500, 1000] },
    ];
    const session = { engine: 'native', unit: 'w', units: ['m-0'], models: [], stage_times: { m: took } };
    writeFileSync(
      join(folder, 'n.state.json'),
      JSON.stringify({
        format: 1,
        node: 'n',
        node_index: 0,
        phase: 'serving',
        started_at_ms: 0,
        updated_at_ms: 1,
        devices: [],
        sessions: [session, { engine: 'native', unit: 'v', units: [], models: [] }],
      }),
    );
    const seen = [
      { ...stages[0]!, compute_s: 0.0015 },
      { ...stages[1]!, compute_s: 0.003, operators_s: [0.0015, 0.0005, 0.00025, 0.00025, 0.0005] },
    ];
    expect(seenEngines(state, store).get('m')).toEqual([
      { node_kind: 'cpu', engine: 'native', tensor: 1, pipeline: 2, stages: seen },
    ]);
  } finally {
    dispose();
  }
});

it('has what a device reads of host memory, of models whose weights are streamed, roughly', () => {
  const { store, dispose } = temporaryStore();
  try {
    const planned = plannedLaunch('m-0');
    const memory = { device_bytes: 100, kv_bytes: 10, arena_bytes: 20, share: 0.1 };
    const units = [{ ...planned.units[0]!, engine: 'native' as const, memory }];
    const state = deploymentState([launchRecord(1, { phase: 'submitted', planned: { ...planned, units } })]);
    const folder = store.launchFolder(state.name, state.launches[0]!.launch_id);
    mkdirSync(folder, { recursive: true });
    const streamed = { arena_bytes: 20, resident_bytes: 0, step_bytes: 100, link_bytes_per_s: 1_234_567_890 };
    const session = { engine: 'native', unit: 'w', units: ['m-0'], models: [], streamed: { m: streamed } };
    const agent = {
      node: 'n',
      node_index: 0,
      phase: 'serving',
      started_at_ms: 0,
      updated_at_ms: 1,
      devices: [],
    };
    writeFileSync(join(folder, 'n.state.json'), JSON.stringify({ format: 1, ...agent, sessions: [session] }));
    const where = { node_kind: 'cpu', engine: 'native', tensor: 1, pipeline: 1 } as const;
    expect(seenEngines(state, store).get('m')).toEqual([{ ...where, link_bytes_per_s: 1.2e9 }]);
    // Begun anew on another node, it has measured nothing yet: what was known stays.
    const anew = { ...agent, node: 'o', updated_at_ms: 2 };
    const empty = { ...session, streamed: {} };
    writeFileSync(join(folder, 'o.state.json'), JSON.stringify({ format: 1, ...anew, sessions: [empty] }));
    expect(seenEngines(state, store).get('m')).toEqual([{ ...where, link_bytes_per_s: 1.2e9 }]);
  } finally {
    dispose();
  }
});

it('has what the processes of a replica on CPUs took beside its weights and KV', () => {
  const { store, dispose } = temporaryStore();
  try {
    const planned = plannedLaunch('m-1');
    const gib = 2 ** 30;
    const unit = {
      ...planned.units[0]!,
      engine: 'vllm' as const,
      device_count: 2,
      weight_bytes: 6 * gib,
      memory: { device_bytes: 9 * gib, kv_bytes: 2 * gib, share: 0.5 },
    };
    const programsSeen = (host_bytes: number, change: Partial<UnitSpec> = {}): number | undefined => {
      const launch = launchRecord(1, {
        phase: 'submitted',
        planned: { ...planned, units: [{ ...unit, ...change }] },
      });
      const folder = store.launchFolder('demo', launch.launch_id);
      mkdirSync(folder, { recursive: true });
      writeFileSync(
        join(folder, 'n.state.json'),
        JSON.stringify({
          format: 1,
          node: 'n',
          node_index: 0,
          phase: 'serving',
          started_at_ms: 0,
          updated_at_ms: 1,
          devices: [],
          sessions: [{ engine: 'vllm', unit: 'm-1', models: [], limits: {}, host_bytes }],
        }),
      );
      return seenEngines(deploymentState([launch]), store).get('m')?.[0]?.programs_bytes;
    };
    // 17 GiB less 6 of weights and 2 of KV on each of 2 devices, in steps of 256 MiB.
    expect(programsSeen(17 * gib)).toBe(3.5 * gib);
    expect(programsSeen(17 * gib - 1)).toBe(3.5 * gib);
    // Of a container whose processes are not seen.
    expect(programsSeen(gib)).toBeUndefined();
    expect(programsSeen(17 * gib, { device_kind: 'gpu' })).toBeUndefined();
  } finally {
    dispose();
  }
});

it('has a next plan leave more memory to the processes of an engine, and less only where nothing fits else', () => {
  const gib = 2 ** 30;
  const model = llama('m', '8b', { engine: 'vllm', devices: { kind: 'cpu' } });
  const planOf = (memory_gib: number, programs_gib?: number) => {
    const seen: EngineSeen = { node_kind: 'cpu', engine: 'vllm', tensor: 1, pipeline: 1 };
    if (programs_gib !== undefined) seen.programs_bytes = programs_gib * gib;
    const kind = cpus('Xeon', 1, ['avx512_bf16'], {
      node_kind: 'cpu',
      devices: { kind: 'cpu', model: 'Xeon', count: 1, memory_bytes: memory_gib * gib },
      memory_bytes: 2 * memory_gib * gib,
      engines: { vllm: { available: true } },
    });
    const { launches } = place(ask([{ ...model, seen: [seen] }], [kind]));
    return launches[0]?.units[0]?.memory;
  };
  const usual = planOf(64)!;
  expect(planOf(64, 1)).toEqual(usual);
  expect(planOf(64, 5)!.device_bytes).toBe(usual.device_bytes + 3 * gib);
  // Weights take 15 GiB, KV of one sequence 1.
  expect([planOf(18.5), planOf(18.5, 1)]).toEqual([undefined, expect.anything()]);
});

it('changes what is predicted, and nothing of what is planned', () => {
  const model = llama('m', '8b');
  const seen: EngineSeen = { node_kind: 'h100', engine: 'vllm', tensor: 1, pipeline: 1, max_sequences: 8 };
  const planOf = (...of: EngineSeen[]) => place(ask([{ ...model, seen: of }], [gpus('H100', 80, 1)]));
  const rate = (plan: ReturnType<typeof place>) => plan.models[0]!.groups[0]!.predicted!.max_rate_per_s;
  const [before, after] = [planOf(), planOf(seen)];
  expect(after.launches).toEqual(before.launches);
  expect(rate(after)).toBeLessThan(0.3 * rate(before));
  expect(after.models[0]!.reasons.join('\n')).toMatch(
    /vllm computes up to 8 sequences at once \(as it says\)/,
  );
  expect(before.models[0]!.reasons.join('\n')).toMatch(
    /up to 1024 sequences at once \(its default\), 8192 tokens/,
  );
  // Of other nodes, and split otherwise, nothing was said.
  expect(rate(planOf({ ...seen, node_kind: 'a100' }))).toBe(rate(before));
  expect(rate(planOf({ ...seen, tensor: 2 }))).toBe(rate(before));
});
