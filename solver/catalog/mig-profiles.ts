/**
 * The ways to divide a GPU into MIG slices that are alike (NVIDIA MIG user guide, "Supported MIG profiles"). Profiles
 * that leave most of a GPU unused when it has nothing else (4g, 7g) are left out.
 */
import { deviceNamed } from './devices.ts';
import { slicesOfGpu } from './mig.ts';

export interface UniformSlices {
  /** As the catalog knows it: `A100-SXM4-80GB 1g.10gb`. */
  model: string;
  /** As NVIDIA's tools name it: `1g.10gb`. */
  profile: string;
  slices_per_gpu: number;
  /** Of one, bytes. */
  memory_bytes: number;
}

const gb = 1e9;

/** By the GPU's name in the catalog. */
const profiles: readonly (readonly [gpu: RegExp, profiles: readonly string[]])[] = [
  [/^A30\b/, ['1g.6gb', '2g.12gb']],
  [/^A100-.*-40GB$/, ['1g.5gb', '1g.10gb', '2g.10gb', '3g.20gb']],
  [/^(A100-.*|H100-(PCIE|SXM5))-80GB$/, ['1g.10gb', '1g.20gb', '2g.20gb', '3g.40gb']],
  [/^H100-NVL$/, ['1g.12gb', '1g.24gb', '2g.24gb', '3g.47gb']],
  [/^GH200-96GB$/, ['1g.12gb', '1g.24gb', '2g.24gb', '3g.48gb']],
  [/^H200-/, ['1g.18gb', '1g.35gb', '2g.35gb', '3g.71gb']],
  [/^GH200-144GB$/, ['1g.18gb', '1g.36gb', '2g.36gb', '3g.72gb']],
  [/^B200-/, ['1g.23gb', '1g.45gb', '2g.45gb', '3g.90gb']],
  [/^RTX-PRO-6000\b/, ['1g.24gb', '2g.48gb']],
];

/** @returns none where the GPU is not known, or cannot be divided */
export function uniformSlices(gpu: string): UniformSlices[] {
  const device = deviceNamed(gpu);
  const names = device && profiles.find(([pattern]) => pattern.test(device.name))?.[1];
  return (names ?? []).flatMap((profile): UniformSlices[] => {
    const model = `${device!.name} ${profile}`;
    const slices_per_gpu = slicesOfGpu(model);
    // Names are rounded up, too: two of 71 GB are of a GPU of 141.
    const named_bytes = Number(/\.(\d+)gb$/.exec(profile)![1]) * gb;
    const memory_bytes = Math.min(named_bytes, device!.memory_bytes / (slices_per_gpu ?? 1));
    return slices_per_gpu === undefined ? [] : [{ model, profile, slices_per_gpu, memory_bytes }];
  });
}
