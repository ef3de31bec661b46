/** Against how many requests of a replica demand is weighed. */
import { expect, it } from 'vitest';
import type { Observation } from '../../../control/reconcile/observe.ts';
import { slotsOf } from '../../../control/scaler/slots.ts';
import type { EngineLimits } from '../../../spec/agent-state.ts';
import type { UnitSpec } from '../../../spec/launch.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import { deploymentState, launchRecord, plannedLaunch } from '../support.ts';

const model = modelSchema.parse({ name: 'm', source: '/m' });
const usual = { rate_per_s: 1, input_tokens: 512, output_tokens: 128, source: 'measured' } as const;

function launches(...units: Partial<UnitSpec>[]) {
  return units.map((unit, at) => {
    const planned = plannedLaunch(`m-${at}`);
    return launchRecord(at, {
      phase: 'submitted',
      planned: { ...planned, units: [{ ...planned.units[0]!, ...unit }] },
    });
  });
}

const said = (
  state: ReturnType<typeof deploymentState>,
  ...limits: (EngineLimits | undefined)[]
): Observation =>
  ({
    launches: new Map(
      state.launches.map(({ launch_id, planned }, at) => [
        launch_id,
        { units: planned.units.map(({ unit }) => ({ unit, limits: limits[at] })) },
      ]),
    ),
  }) as unknown as Observation;

it('what the plan takes its engine to choose, as far as KV holds usual requests', () => {
  const vllm = { engine: 'vllm', max_sequences: 1024, kv_tokens: 115_200 } as const;
  const state = deploymentState(launches(vllm));
  expect(slotsOf(state, undefined, model, usual)).toBe(200);
  // Nobody measured: what is assumed of requests. Then what model.yaml says of them.
  expect(slotsOf(state, undefined, model, undefined)).toBe(200);
  const long = { ...model, workload: { rate_per_s: 1, input_tokens: 11_000, output_tokens: 1040 } };
  expect(slotsOf(state, undefined, long, usual)).toBe(10);
});

it('what its engines say, the least of them', () => {
  const vllm = { engine: 'vllm', max_sequences: 1024, kv_tokens: 115_200 } as const;
  const state = deploymentState(launches(vllm, vllm));
  expect(slotsOf(state, said(state, { max_sequences: 64 }, undefined), model, usual)).toBe(64);
  expect(slotsOf(state, said(state, { kv_tokens: 57_600 }, { kv_tokens: 5760 }), model, usual)).toBe(10);
});

it('natively as many sequences as it was asked for, and sixteen where nothing is known', () => {
  const native = deploymentState(launches({ engine: 'native', max_sequences: 16, kv_tokens: 1024 }));
  expect(slotsOf(native, undefined, model, usual)).toBe(16);
  expect(slotsOf(deploymentState([]), undefined, model, usual)).toBe(16);
  expect(slotsOf(deploymentState([]), undefined, { ...model, max_sequences: 4 }, usual)).toBe(4);
  // A launch of an earlier version says what model.yaml said.
  const before = deploymentState(
    launches({ engine: 'vllm', model: { ...model, max_sequences: 16 }, kv_tokens: 1e6 }),
  );
  expect(slotsOf(before, undefined, model, usual)).toBe(16);
});
