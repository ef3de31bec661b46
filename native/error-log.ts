import { existsSync } from 'node:fs';
import koffi from 'koffi';
import { cpuKernelsPath } from './cpu-kernels-file.ts';
import type { Pointer } from './signature.ts';

/**
 * A log callback of ggml that writes errors to stderr and nothing else (native/kernels/log-errors.c); undefined where
 * there was no compiler to build it.
 */
export function errorLog(): Pointer | undefined {
  return existsSync(cpuKernelsPath)
    ? (koffi.load(cpuKernelsPath).symbol('hk_log_errors') as Pointer)
    : undefined;
}
