/** The machines and models of LLM-Mesh §8.1, as the simulations take them. */
import type { ModelOnDevice } from '../sharing/device-view.ts';
import { type MeasuredModelName, measuredProfile } from './measured-iterations.ts';
import { type SimulatedKernels, simulatedProfile, weightShare } from './simulated-iterations.ts';

const gib = 2 ** 30;

export interface TestbedDevice {
  id: string;
  kind: 'cpu' | 'gpu';
  compute: string;
  pool_bytes: number;
  /** What multiplies on a CPU; absent: OpenVINO, as the authors measured it. */
  kernels?: SimulatedKernels;
}

export interface TestbedModel {
  /** The measured model it is a copy of. */
  base: MeasuredModelName;
  name: string;
}

/**
 * Weights and KV of the three models at 16 bits; ServerlessLLM's way is told how many requests an instance takes
 * (§8.1).
 */
const sizes: Readonly<
  Record<
    MeasuredModelName,
    { weight_bytes: number; kv_bytes_per_token: number; concurrency: { cpu: number; gpu: number } }
  >
> = {
  'llama-3.2-3b': {
    weight_bytes: 6.1 * gib,
    kv_bytes_per_token: 112 * 1024,
    concurrency: { cpu: 59, gpu: 160 },
  },
  'llama-2-7b': {
    weight_bytes: 12.6 * gib,
    kv_bytes_per_token: 512 * 1024,
    concurrency: { cpu: 15, gpu: 32 },
  },
  'llama-2-13b': {
    weight_bytes: 24.3 * gib,
    kv_bytes_per_token: 800 * 1024,
    concurrency: { cpu: 6, gpu: 16 },
  },
};

/**
 * All models lie in host memory (§8.1). A GPU reads them over PCIe 4.0 ×16, of which pinned copies reach some 20 GB/s;
 * a CPU computes from where they lie and only sets up its instance. The paper does not tell its times; every system
 * here has the same.
 */
const gpu_load_bytes_per_s = 20e9;
const start_ms = 100;

/** 32-core Xeon 6462C with 256 GiB, and A100-80GB of which 78 GiB can be had. */
export function testbed(counts: {
  cpus: number;
  gpus: number;
  kernels?: SimulatedKernels | undefined;
}): TestbedDevice[] {
  const devices = (kind: 'cpu' | 'gpu', count: number, compute: string, bytes: number): TestbedDevice[] =>
    Array.from({ length: count }, (_, index) => ({
      id: `${kind}${index}`,
      kind,
      compute,
      pool_bytes: bytes,
    }));
  const cpus = devices('cpu', counts.cpus, 'AMX', 256 * gib);
  const { kernels } = counts;
  return [
    ...(kernels ? cpus.map((device) => ({ ...device, kernels })) : cpus),
    ...devices('gpu', counts.gpus, 'A100', 78 * gib),
  ];
}

/** Copies of the bases in turn: `replicaModels(['llama-2-7b'], 64)` as in §8.2, several bases as in §8.4. */
export function replicaModels(bases: readonly MeasuredModelName[], count: number): TestbedModel[] {
  return Array.from({ length: count }, (_, index) => {
    const base = bases[index % bases.length]!;
    return { base, name: `${base}-${index}` };
  });
}

export function onDevice(model: TestbedModel, device: TestbedDevice): ModelOnDevice {
  const { weight_bytes: whole_bytes, kv_bytes_per_token } = sizes[model.base];
  const { kernels } = device;
  const weight_bytes = kernels ? whole_bytes * weightShare(kernels) : whole_bytes;
  return {
    model: model.name,
    profile: kernels
      ? simulatedProfile(model.base, kernels)
      : measuredProfile(model.base, device.kind === 'cpu' ? 'xeon-32core-amx' : 'a100-80gb'),
    weight_bytes,
    kv_bytes_per_token,
    load_ms: start_ms + (device.kind === 'gpu' ? (weight_bytes / gpu_load_bytes_per_s) * 1000 : 0),
  };
}

export function concurrencyLimit(model: TestbedModel, kind: 'cpu' | 'gpu'): number {
  return sizes[model.base].concurrency[kind];
}
