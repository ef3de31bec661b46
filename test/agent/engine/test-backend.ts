import type { Backend } from '../../../agent/backend/backend.ts';
import { cpuBackend } from '../../../agent/backend/cpu/cpu-backend.ts';
import { deviceBackend } from '../../../agent/backend/device/device-backend.ts';
import { loadGgml } from '../../../native/ggml.ts';

/**
 * ggml's name of the device that suites of the engine and of its memory compute on, where somebody names one and the
 * libraries that have it (HPCSERVE_NATIVE_LIBRARIES); undefined: the CPU.
 */
export const test_device: string | undefined = process.env.HPCSERVE_TEST_DEVICE;

/** It computes on cores of this machine: a step takes tenths of a second there, as long as neighbours let it. */
export const slow_device: boolean = process.env.HPCSERVE_TEST_SLOW_DEVICE === '1';

/** A limit of time, ms, as wide as a slow device needs it. */
export const limit_ms = (ms: number): number => (slow_device ? 10 * ms : ms);

/** Until replicas serve that start together: each compiles its kernels, on a slow device on the cores that compute. */
export const start_ms: number = limit_ms(45_000);

let device: Backend | undefined;

export function testBackend(): Backend {
  const ggml = loadGgml();
  if (test_device === undefined) return cpuBackend(ggml);
  device ??= deviceBackend(ggml, test_device);
  return device;
}
