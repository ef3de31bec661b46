import { describe, expect, it } from 'vitest';
import { measuredProfile } from '../../../solver/sharing-simulator/measured-iterations.ts';
import { simulatedProfile } from '../../../solver/sharing-simulator/simulated-iterations.ts';
import { onDevice, replicaModels, testbed } from '../../../solver/sharing-simulator/testbed.ts';
import { calibrationFor, standInsFor } from '../../../solver/simulator/calibration.ts';

const [model] = replicaModels(['llama-2-7b'], 1);

describe('CPUs of the sharing simulation', () => {
  it('take their times from the kernels that they have, and what the authors measured otherwise', () => {
    const measured = onDevice(model!, testbed({ cpus: 1, gpus: 0 })[0]!);
    expect(measured.profile.prefill_ms(512)).toBe(
      measuredProfile('llama-2-7b', 'xeon-32core-amx').prefill_ms(512),
    );
    const kernels = { engine: 'native', weights: 'q8_0' } as const;
    const ours = onDevice(model!, testbed({ cpus: 1, gpus: 0, kernels })[0]!);
    expect(ours.profile.prefill_ms(512)).toBe(simulatedProfile('llama-2-7b', kernels).prefill_ms(512));
    expect(ours.weight_bytes / measured.weight_bytes).toBeCloseTo(8.5 / 16, 9);
  });

  it('read prompts faster by our kernels than by ggml’s, and decode 8-bit weights faster than 16-bit ones', () => {
    const of = (engine: 'native' | 'llamacpp', weights: 'bf16' | 'q8_0') =>
      simulatedProfile('llama-2-7b', { engine, weights });
    expect(of('llamacpp', 'q8_0').prefill_ms(512)).toBeGreaterThan(2 * of('native', 'q8_0').prefill_ms(512));
    expect(of('native', 'q8_0').decode_ms(1, 512)).toBeLessThan(0.7 * of('native', 'bf16').decode_ms(1, 512));
  });

  it('have GPUs as they were', () => {
    const gpu = testbed({ cpus: 0, gpus: 1, kernels: { engine: 'native', weights: 'bf16' } })[0]!;
    expect(gpu).not.toHaveProperty('kernels');
  });
});

describe('engines on AMX', () => {
  it('that were measured stand for themselves', () => {
    for (const engine of ['native', 'llamacpp'] as const) {
      expect(calibrationFor(engine, 'cpu-amx').device_source).toMatch(/two cores of a Xeon with AMX/);
      expect(standInsFor(engine, 'cpu-amx')).toEqual([]);
    }
    expect(standInsFor('vllm', 'cpu-amx')).not.toEqual([]);
  });
});
