/** Wrapped engines that may sleep share a GPU: one is awake, the others are in the memory of the node. */
import { expect, it } from 'vitest';
import { place } from '../../../solver/placement/placement.ts';
import { ask, gpus, llama } from './support.ts';

const workload = (rate_per_s: number) => ({ rate_per_s, input_tokens: 512, output_tokens: 128 });
const sleeper = (name: string, rate_per_s: number) =>
  llama(name, '8b', {
    engine: 'vllm',
    engine_args: ['--enable-sleep-mode'],
    parallel: { tensor: 1 },
    workload: workload(rate_per_s),
  });
const gib = 2 ** 30;

it('is planned for those that are asked rarely, with host memory for all of them', () => {
  const names = ['a', 'b', 'c', 'd'];
  const plan = place(
    ask(
      names.map((name) => sleeper(name, 0.01)),
      [gpus('A100-80GB', 80, 1)],
    ),
  );
  expect(plan.gpu_count).toBe(1);
  const [launch] = plan.launches;
  expect(launch!.units.map(({ first_device }) => first_device)).toEqual([0, 0, 0, 0]);
  // A quarter of the node would be 128 GiB; four times 16 GB and what is beside them are less.
  expect(launch!.memory_bytes_per_node).toBe(128 * gib);
  // A job of one device of many has less than they need by its share.
  const wide = place(
    ask(
      names.map((name) => sleeper(name, 0.01)),
      [gpus('A100-80GB', 80, 1, { memory_bytes: 160 * gib })],
    ),
  );
  expect(wide.launches[0]!.memory_bytes_per_node).toBeGreaterThan(4 * 2 * 8.03e9);
  const small = place(
    ask(
      names.map((name) => sleeper(name, 0.01)),
      [gpus('A100-80GB', 80, 1, { memory_bytes: 40 * gib })],
    ),
  );
  // Two of them at most have their weights in 40 GiB.
  expect(small.unplaced.reduce((sum, { replicas }) => sum + replicas, 0)).toBe(2);
});

it('is not planned for those that are asked often, nor beside an engine that cannot sleep', () => {
  const often = place(ask([sleeper('a', 6), sleeper('b', 6)], [gpus('A100-80GB', 80, 1)]));
  expect(often.launches.flatMap(({ units }) => units.map(({ first_device }) => first_device))).toEqual([
    0, 1,
  ]);
  const awake = llama('awake', '8b', { engine: 'vllm', workload: workload(0.01) });
  const mixed = place(ask([sleeper('a', 0.01), awake], [gpus('A100-80GB', 80, 1)]));
  expect(mixed.gpu_count).toBe(2);
});

it('is what is left where there are fewer devices than models', () => {
  const plan = place(ask([sleeper('a', 6), sleeper('b', 6)], [gpus('A100-80GB', 80, 1, { count: 1 })]));
  expect(plan.unplaced).toEqual([]);
  expect(plan.gpu_count).toBe(1);
});
