/**
 * A thread beside a load: copies memory, brings some to a device, or has ggml convert a matrix that is in memory, each
 * time it is told to.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { DeviceCopies } from '../../agent/backend/device/device-copies.ts';
import { GgmlType, loadGgml } from '../../native/ggml.ts';
import { moveMemory, SharedMemory } from '../../native/memory-map.ts';
import type { Pointer } from '../../native/signature.ts';
import { backendOf } from '../device.ts';

export type PeerWork = { kind: 'copy' | 'conversion' } | { kind: 'upload'; device: string };

export interface PeerAnswer {
  bytes: number;
  /** Unix ms: clocks of threads begin apart. */
  started_ms: number;
  ended_ms: number;
}

const mib = 2 ** 20;
const port = parentPort!;
const work = workOf(workerData as PeerWork);
port.on('message', () => {
  const now_ms = (): number => performance.timeOrigin + performance.now();
  const started_ms = now_ms();
  const bytes = work();
  port.postMessage({ bytes, started_ms, ended_ms: now_ms() } satisfies PeerAnswer);
});

function workOf(asked: PeerWork): () => number {
  if (asked.kind === 'upload') return upload(asked.device);
  return asked.kind === 'copy' ? copy() : conversion();
}

/** @returns bytes that were brought to the device */
function upload(device: string): () => number {
  const { ggml, plain, upload: way } = backendOf(device);
  const bytes = 64 * mib;
  const times = 4;
  const buffer = ggml.ggml_backend_buft_alloc_buffer(plain, bytes)!;
  const host = ggml.ggml_backend_buft_alloc_buffer(
    way!.host_buffer_type ?? ggml.ggml_backend_dev_buffer_type(ggml.cpuDevice)!,
    bytes,
  )!;
  const copies = new DeviceCopies(ggml, way!.device);
  const address = ggml.ggml_backend_buffer_get_base(buffer)!;
  const from = ggml.ggml_backend_buffer_get_base(host)!;
  return () => {
    for (let time = 0; time < times; time++) copies.write({ buffer, address }, from, bytes);
    copies.finish();
    return times * bytes;
  };
}

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
