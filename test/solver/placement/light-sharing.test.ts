/** Models that are asked rarely share devices, though there would be one for each. */
import { expect, it } from 'vitest';
import { place } from '../../../solver/placement/placement.ts';
import { defaultPlacementSettings, type Placement, type PlacementModel } from '../../../spec/plan.ts';
import { ask, gguf, gpus } from './support.ts';

const workload = (rate_per_s: number) => ({ rate_per_s, input_tokens: 512, output_tokens: 128 });
const bounded = { context_tokens: 4096, kv_tokens: 16_384 };

const offer = (nodes: number) => gpus('A100-80GB', 80, nodes, { engines: { native: { available: true } } });

const models = (rates: readonly number[]): PlacementModel[] =>
  rates.map((rate, at) => gguf(`m${at}`, '8b', { ...bounded, workload: workload(rate) }));

/** Models by device, over all jobs. */
const byDevice = ({ launches }: Placement): string[][] =>
  launches.flatMap(({ units, devices_per_node }) =>
    Array.from({ length: devices_per_node.count }, (_, device) =>
      units.filter(({ first_device }) => first_device === device).map(({ model }) => model.name),
    ),
  );

it('share a device as long as it is expected to rest half of its time', () => {
  const rare = place(ask(models([0.01, 0.01, 0.01, 0.01]), [offer(2)]));
  expect(byDevice(rare)).toEqual([['m0', 'm1', 'm2', 'm3']]);
  expect(rare.gpu_count).toBe(1);
  expect(rare.search.status).toBe('optimal');
  // What each is predicted alone is what it is predicted here: most of the time nobody else computes.
  const busy = rare.models.map(({ groups }) => groups[0]!.predicted!.utilization);
  expect(Math.max(...busy)).toBeLessThan(0.125);
  const often = place(ask(models([4, 4, 4, 4]), [offer(2)]));
  const used = often.models.map(({ groups }) => groups[0]!.predicted!.utilization);
  expect(Math.min(...used)).toBeGreaterThan(0.25);
  expect(byDevice(often)).toEqual([['m0'], ['m1'], ['m2'], ['m3']]);
});

it('does not apply where the site says so, to replicas of one model, or beyond a device’s memory', () => {
  const settings = { ...defaultPlacementSettings, shared_time_max: 0 };
  const apart = place(ask(models([0.01, 0.01]), [offer(2)], { settings }));
  expect(byDevice(apart)).toEqual([['m0'], ['m1']]);
  const twice = gguf('twice', '8b', { ...bounded, replicas: 2, workload: workload(0.01) });
  expect(byDevice(place(ask([twice], [offer(2)])))).toEqual([['twice'], ['twice']]);
  const [one, other] = models([0.01, 0.01]);
  const large = [one!, other!].map((model) => ({ ...model, weight_bytes: 45 * 2 ** 30 }));
  expect(byDevice(place(ask(large, [offer(2)])))).toEqual([['m0'], ['m1']]);
});

it('has pipelines that share devices begin on those that the others leave alone', () => {
  const parallel = { pipeline: { stages_min: 2, stages_max: 4 } };
  const cut = ['a', 'b'].map((name) => gguf(name, '8b', { ...bounded, parallel, workload: workload(0.01) }));
  const { devices, ...more } = offer(1);
  const four = { ...more, devices: { ...devices, count: 4 } };
  const { launches } = place(ask(cut, [four]));
  expect(launches).toHaveLength(1);
  const on = launches[0]!.units.map(({ first_device, stage_devices = [0, 1] }) =>
    stage_devices.map((device) => first_device + device),
  );
  expect(on.flat().sort()).toEqual([0, 1, 2, 3]);
});
