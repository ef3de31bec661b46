import { describe, expect, test } from 'vitest';
import { rearrange } from '../../../solver/keeping/rearrange.ts';
import { checkPlacement } from '../../../solver/placement/check.ts';
import { place } from '../../../solver/placement/placement.ts';
import { poolsOf } from '../../../solver/placement/pools.ts';
import { plannedNameOf } from '../../../spec/model-pools.ts';
import type { Placement, PlacementQuestion } from '../../../spec/plan.ts';
import { ask, cpus, gguf, gpus } from './support.ts';

const workload = { rate_per_s: 0.05, input_tokens: 2000, output_tokens: 300 };
const kinds = [cpus('Xeon-8480+', 3, ['amx_int8']), { ...cpus('EPYC-9654', 3, []), node_kind: 'epyc' }];

function asked(pools: object, more: Record<string, unknown> = {}): PlacementQuestion {
  return ask(poolsOf(gguf('chat', '1b', { pools, workload, ...more })), kinds);
}

function units({ launches }: Placement): string[] {
  return launches
    .flatMap(({ node_kind, units }) => units.map((unit) => `${unit.unit} ${unit.pool} on ${node_kind}`))
    .sort();
}

describe('pools of a model', () => {
  const question = asked({
    prefill: { replicas: 1, devices: { models: ['Xeon-8480+'] }, prefill_chunk_tokens: 1024 },
    decode: { replicas: 2, devices: { node_kinds: ['epyc'] }, max_sequences: 48 },
  });
  const plan = place(question);

  test('are placed on devices of their own, under the name that clients know', () => {
    expect(units(plan)).toEqual([
      'chat+decode-0 decode on epyc',
      'chat+decode-1 decode on epyc',
      'chat+prefill-0 prefill on xeon-8480+',
    ]);
    const all = plan.launches.flatMap((launch) => launch.units);
    expect(new Set(all.map(({ model }) => model.name))).toEqual(new Set(['chat']));
    expect(new Set(all.map(({ engine }) => engine))).toEqual(new Set(['native']));
    const of = (pool: string) => all.find((unit) => unit.pool === pool)!;
    expect(of('prefill').model.prefill_chunk_tokens).toBe(1024);
    expect(of('decode').max_sequences).toBe(48);
    // More replicas of one pool change nothing of the other's.
    expect(of('prefill').model).not.toHaveProperty('pools');
  });

  test('are predicted for their part of a request', () => {
    const predicted = (name: string) =>
      plan.models.find(({ model }) => model === name)!.groups[0]!.predicted!;
    const prompts = predicted('chat (prefill)');
    const answers = predicted('chat (decode)');
    expect(prompts.ttft_ms).toBeGreaterThan(0);
    expect(prompts).toMatchObject({ tpot_ms: 0 });
    expect(answers).toMatchObject({ ttft_ms: 0 });
    expect(answers.tpot_ms).toBeGreaterThan(0);
    const reasons = plan.models.flatMap((model) => model.reasons).join('\n');
    expect(reasons).toMatch(/sends their KV to chat \(decode\) while it computes: \d+ MiB for 2000 tokens/);
    expect(reasons).toMatch(/goes on with answers whose prompts chat \(prefill\) has computed/);
  });

  test('do not share a device', () => {
    const one = [cpus('Xeon-8480+', 1, ['amx_int8'])];
    const crowded = place({
      ...question,
      models: poolsOf(gguf('chat', '1b', { workload, pools: { prefill: {}, decode: {} } })),
      node_kinds: one,
    });
    expect(crowded.unplaced).toHaveLength(1);
    expect(crowded.launches.flatMap((launch) => launch.units)).toHaveLength(1);
  });

  test('are held against what was asked, each by itself', () => {
    const [launch, ...others] = plan.launches;
    const wrong = structuredClone(plan);
    for (const unit of wrong.launches.flatMap((each) => each.units)) unit.pool = 'decode';
    expect(checkPlacement(question, plan)).toEqual([]);
    expect(checkPlacement(question, wrong).join('\n')).toMatch(
      /chat \(prefill\): 0 placed and 0 unplaced of 1/,
    );
    expect(checkPlacement(question, { ...plan, launches: others }).join('\n')).toContain(
      `${plannedNameOf(launch!.units[0]!)}:`,
    );
  });

  test('are on GPUs as on CPUs, on each or both', () => {
    const gpu = gpus('A100', 80, 2, { engines: { native: { available: true } } });
    const on = (node_kinds: PlacementQuestion['node_kinds'], pools: object): string[] => {
      const question_of = {
        ...question,
        models: poolsOf(gguf('chat', '1b', { workload, pools })),
        node_kinds,
      };
      const found = place(question_of);
      expect(found.unplaced).toEqual([]);
      expect(checkPlacement(question_of, found)).toEqual([]);
      return units(found);
    };
    expect(on([gpu], { prefill: {}, decode: {} })).toEqual([
      'chat+decode-0 decode on a100',
      'chat+prefill-0 prefill on a100',
    ]);
    const prefill = { devices: { kind: 'gpu' } };
    const decode = { devices: { kind: 'cpu' } };
    expect(on([gpu, ...kinds], { prefill, decode }).join()).toMatch(
      /^chat\+decode-0 decode on (xeon-8480\+|epyc),chat\+prefill-0 prefill on a100$/,
    );
  });

  test('keep their replicas apart when a plan is made again', () => {
    const standing = plan.launches.map((planned, at) => ({ launch_id: String(at), planned }));
    const more = place(
      asked({
        prefill: { replicas: 2, devices: { models: ['Xeon-8480+'] }, prefill_chunk_tokens: 1024 },
        decode: { replicas: 1, devices: { node_kinds: ['epyc'] }, max_sequences: 48 },
      }),
    );
    const { staying, leaving, starting } = rearrange(standing, more.launches);
    expect(staying).toHaveLength(2);
    expect(leaving).toHaveLength(1);
    expect(starting.flatMap((launch) => launch.units.map(({ unit }) => unit))).toEqual(['chat+prefill-1']);
  });
});

test('a model without pools is asked for as it is', () => {
  const model = gguf('chat', '1b');
  expect(poolsOf(model)).toEqual([model]);
});
