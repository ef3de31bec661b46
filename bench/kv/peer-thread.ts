/** A thread beside a load: copies memory, or has ggml convert a matrix that is in memory, each time it is told to. */
import { parentPort, workerData } from 'node:worker_threads';
import { GgmlType, loadGgml } from '../../native/ggml.ts';
import { moveMemory, SharedMemory } from '../../native/memory-map.ts';
import type { Pointer } from '../../native/signature.ts';

export type PeerKind = 'copy' | 'conversion';

export interface PeerAnswer {
  bytes: number;
  /** Unix ms: clocks of threads begin apart. */
  started_ms: number;
  ended_ms: number;
}

const mib = 2 ** 20;
const port = parentPort!;
const work = (workerData as PeerKind) === 'copy' ? copy() : conversion();
port.on('message', () => {
  const now_ms = (): number => performance.timeOrigin + performance.now();
  const started_ms = now_ms();
  const bytes = work();
  port.postMessage({ bytes, started_ms, ended_ms: now_ms() } satisfies PeerAnswer);
});

/** @returns bytes that were copied */
function copy(): () => number {
  const bytes = 256 * mib;
  const [to, from] = [0, 1].map(() => SharedMemory.create('bench', bytes).map()) as [Pointer, Pointer];
  return () => {
    moveMemory(to, from, bytes);
    return bytes;
  };
}

/** @returns bytes that were converted */
function conversion(): () => number {
  const ggml = loadGgml();
  const [columns, rows] = [2048, 8192];
  const bufferType = ggml.cpuExtraBufferTypes[0]!;
  const context = ggml.ggml_init({ mem_size: 4096, mem_buffer: null, no_alloc: true })!;
  const tensor = ggml.ggml_new_tensor_2d(context, GgmlType.Q4_0, columns, rows)!;
  const bytes = Number(ggml.ggml_nbytes(tensor));
  const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, bytes + 64)!;
  ggml.ggml_backend_tensor_alloc(buffer, tensor, ggml.ggml_backend_buffer_get_base(buffer));
  const source = new Uint8Array(bytes).fill(0x35);
  const times = 16;
  return () => {
    for (let time = 0; time < times; time++) ggml.ggml_backend_tensor_set(tensor, source, 0, bytes);
    return times * bytes;
  };
}
