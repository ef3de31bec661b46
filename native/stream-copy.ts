/** Copies past the caches, for memory that nobody reads soon (native/kernels/stream-copy.c). */
import { existsSync } from 'node:fs';
import koffi from 'koffi';
import { cpuKernelsPath } from './cpu-kernels-file.ts';
import { bind, type Pointer } from './signature.ts';

/** The ranges may not overlap. */
export type StreamCopy = (to: Pointer, from: Pointer, bytes: number) => void;

const table = { hk_stream_copy: ['void', 'ptr', 'ptr', 'usize'] } as const;

let loaded: StreamCopy | undefined;

/** @returns undefined where our kernels were not built: without a C compiler, and on arm64 */
export function loadStreamCopy(): StreamCopy | undefined {
  if (!loaded && existsSync(cpuKernelsPath)) loaded = bind(koffi.load(cpuKernelsPath), table).hk_stream_copy;
  return loaded;
}
