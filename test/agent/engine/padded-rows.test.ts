/**
 * Backends such as CUDA's read a quantized row up to a multiple of 512 elements. When a tensor is placed, they write
 * zeros behind it for that, and ask for as much more memory: whatever lies behind what has no such room would be lost.
 */
import koffi from 'koffi';
import { expect, test } from 'vitest';
import { DeviceBackend } from '../../../agent/backend/device/device-backend.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { type Ggml, ggmlDevices, loadGgml, memoryAt, tensorLayout } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { engineOptions, generate, model, prompt } from './support.ts';

const multiple = 512;
/** Of a tensor, its first field. */
const type_offset = 0;

/** The CPU with the padding of CUDA's backend, and how often it padded. */
function padding(ggml: Ggml): { ggml: Ggml; padded: () => number } {
  let count = 0;
  const padding_bytes = (tensor: Pointer): number => {
    const type = koffi.decode(tensor, type_offset, 'int32_t') as number;
    const width = Number(koffi.decode(tensor, tensorLayout.ne, 'int64_t'));
    const isQuantized = Number(ggml.ggml_blck_size(type)) > 1;
    const rest = width % multiple;
    return isQuantized && rest > 0 ? Number(ggml.ggml_row_size(type, multiple - rest)) : 0;
  };
  const padded: Ggml = {
    ...ggml,
    ggml_backend_buft_get_alloc_size: (bufferType, tensor) =>
      Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor)) + padding_bytes(tensor as Pointer),
    ggml_backend_tensor_alloc: (buffer, tensor, address) => {
      const status = ggml.ggml_backend_tensor_alloc(buffer, tensor, address);
      const bytes = padding_bytes(tensor as Pointer);
      if (bytes === 0) return status;
      count++;
      const behind = (address as Pointer) + BigInt(ggml.ggml_nbytes(tensor));
      memoryAt(behind, bytes).fill(0);
      return status;
    },
  };
  return { ggml: padded, padded: () => count };
}

/** Cores as a device: their weights lie plain on every CPU, as those of CUDA do. */
function asDevice(ggml: Ggml): DeviceBackend {
  return new DeviceBackend(ggml, ggmlDevices(ggml).find(({ pointer }) => pointer === ggml.cpuDevice)!);
}

test.each(['f16', 'q8_0'] as const)(
  'nothing of a model is lost to padding, with KV in %s',
  async (kv_type) => {
    const path = await model('tiny-llama', 'Q8_0');
    const options = engineOptions(path, { kernels: 'ggml', kv_type, batch_invariant: false });
    const { ggml, padded } = padding(loadGgml());
    const answers = [loadGgml(), ggml].map((library) => {
      const engine = new NativeEngine(options, asDevice(library));
      const asked = [40, 3, 90].map((length, seed) => ({
        prompt: prompt(length, engine.info.n_vocab, seed + 1),
        max_new_tokens: 12,
      }));
      const generated = generate(engine, asked);
      engine.close();
      return generated;
    });
    expect(padded()).toBeGreaterThan(0);
    expect(answers[1]).toEqual(answers[0]);
  },
);
