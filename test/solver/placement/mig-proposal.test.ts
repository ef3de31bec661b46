/** GPUs that are divided for models which are smaller than they are. */
import { describe, expect, it } from 'vitest';
import { deviceNamed } from '../../../solver/catalog/devices.ts';
import { uniformSlices } from '../../../solver/catalog/mig-profiles.ts';
import { proposeSlices } from '../../../solver/placement/mig-proposal.ts';
import type { PlacementModel } from '../../../spec/plan.ts';
import { ask, gpus, llama } from './support.ts';

const small = (name: string, more: object = {}): PlacementModel =>
  llama(name, '1b', {
    engine: 'vllm',
    context_tokens: 2048,
    workload: { rate_per_s: 0.05, input_tokens: 100, output_tokens: 50 },
    ...more,
  });
const large = llama('large', '13b', {
  engine: 'vllm',
  context_tokens: 4096,
  workload: { rate_per_s: 0.1, input_tokens: 200, output_tokens: 100 },
});
const names = ['a', 'b', 'c', 'd', 'e'];

describe('profiles', () => {
  it.each([
    ['A30', '4× 1g.6gb, 2× 2g.12gb'],
    ['A100-SXM4-40GB', '7× 1g.5gb, 4× 1g.10gb, 3× 2g.10gb, 2× 3g.20gb'],
    ['A100-80GB', '7× 1g.10gb, 4× 1g.20gb, 3× 2g.20gb, 2× 3g.40gb'],
    ['H100', '7× 1g.10gb, 4× 1g.20gb, 3× 2g.20gb, 2× 3g.40gb'],
    ['GH200-96GB', '7× 1g.12gb, 4× 1g.24gb, 3× 2g.24gb, 2× 3g.48gb'],
    ['RTX-PRO-6000', '4× 1g.24gb, 2× 2g.48gb'],
    ['V100', ''],
    ['nobody knows it', ''],
  ])('of %s: %s', (gpu, expected) => {
    const said = uniformSlices(gpu).map(({ slices_per_gpu, profile }) => `${slices_per_gpu}× ${profile}`);
    expect(said.join(', ')).toBe(expected);
  });

  it('have no more memory together than their GPU', () => {
    for (const gpu of ['A30', 'A100-80GB', 'H100-NVL', 'H200', 'GH200-144GB', 'B200'])
      for (const { slices_per_gpu, memory_bytes } of uniformSlices(gpu))
        expect(slices_per_gpu * memory_bytes).toBeLessThanOrEqual(deviceNamed(gpu)!.memory_bytes);
  });
});

describe('a proposal', () => {
  it('has small models that want a GPU of their own share one in slices, and large ones keep theirs', () => {
    const proposal = proposeSlices(
      ask([...names.map((name) => small(name)), large], [gpus('A100-40GB', 40, 2)]),
    );
    expect(proposal).toEqual({
      sliced: [
        {
          node_kind: 'a100-40gb',
          profile: '1g.5gb',
          slices_per_gpu: 7,
          gpus: 1,
          slices: 5,
          replicas: names.map((model) => ({ model, count: 1 })),
        },
      ],
      whole: [{ node_kind: 'a100-40gb', gpus: 1 }],
      gpus_undivided: 6,
    });
  });

  it('has models run that whole GPUs do not suffice for', () => {
    const proposal = proposeSlices(
      ask(
        names.map((name) => small(name)),
        [gpus('A100-80GB', 80, 1)],
      ),
    );
    expect(proposal).toMatchObject({ sliced: [{ gpus: 1, slices: 5 }], whole: [] });
    expect(proposal).not.toHaveProperty('gpus_undivided');
  });

  it('counts a node once, whatever it is divided into', () => {
    // Two nodes of one GPU: one for the model that needs all of it, one for the others.
    const models = [...names.map((name) => small(name)), large];
    const proposal = proposeSlices(ask(models, [gpus('A100-40GB', 40, 2, { count: 1 })]));
    expect(proposal).toMatchObject({ sliced: [{ gpus: 1 }], whole: [{ gpus: 1 }] });
    const fewer = proposeSlices(ask(models, [gpus('A100-40GB', 40, 1, { count: 1 })]));
    expect(fewer).toBe('not all models fit, however GPUs are divided');
  });

  it('leaves models alone that ask for a kind of nodes by name', () => {
    const models = names.map((name) => small(name, { devices: { node_kinds: ['a100-80gb'] } }));
    expect(proposeSlices(ask(models, [gpus('A100-80GB', 80, 2)]))).toBe('slices would save no GPU');
  });

  it('is not made where it saves nothing, or GPUs cannot be divided', () => {
    expect(proposeSlices(ask([large], [gpus('A100-80GB', 80, 2)]))).toBe('slices would save no GPU');
    expect(proposeSlices(ask([small('a')], [gpus('V100', 32, 2)]))).toBe('no GPU is known to be divisible');
  });
});
