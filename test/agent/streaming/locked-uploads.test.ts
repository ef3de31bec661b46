/** Page-locked memory that the system refuses: ggml's backends give other memory in its place, and that is told. */
import { afterEach, describe, expect, test } from 'vitest';
import { whyUnlocked } from '../../../agent/streaming/locked-uploads.ts';
import { openStreamingEngine } from '../../../agent/streaming/open-streaming.ts';
import type { Ggml } from '../../../native/ggml.ts';
import {
  ask,
  closeAll,
  deepModel,
  expectSame,
  newArena,
  options,
  partedBackend,
  resident,
} from './support.ts';

afterEach(closeAll);

describe('what uploads go through', () => {
  /** As ggml's CUDA and Vulkan backends do it: beyond what is to be had, a buffer of another type. */
  function deviceWith(locked_bytes: number) {
    const { ggml, plain, upload } = partedBackend();
    const host_buffer_type = 0x10n;
    const freed: unknown[] = [];
    let asked_bytes = 0;
    const own: Ggml = {
      ...ggml,
      ggml_backend_buft_alloc_buffer: (type, bytes) => {
        expect(type).toBe(host_buffer_type);
        asked_bytes = Number(bytes);
        return ggml.ggml_backend_buft_alloc_buffer(plain, bytes);
      },
      ggml_backend_buffer_get_type: (buffer) =>
        asked_bytes <= locked_bytes ? host_buffer_type : ggml.ggml_backend_buffer_get_type(buffer),
      ggml_backend_buffer_free: (buffer) => {
        freed.push(buffer);
        ggml.ggml_backend_buffer_free(buffer);
      },
    };
    return { ggml: own, upload: { ...upload!, host_buffer_type }, freed };
  }

  test('is page-locked where as much of it is to be had as threads take, and is given back', () => {
    const device = deviceWith(8 * 2 ** 20);
    expect(whyUnlocked(device, 2)).toBeUndefined();
    expect(device.freed).toHaveLength(1);
  });

  test('is not where the system gives less, and where no memory is asked for nothing is said', () => {
    const device = deviceWith(7 * 2 ** 20);
    expect(whyUnlocked(device, 2)).toBe(
      'page-locked memory of the host was refused (8 MiB): weights go to the device through other memory, which is slower',
    );
    expect(device.freed).toHaveLength(1);
    expect(whyUnlocked(device, 1)).toBeUndefined();
    expect(whyUnlocked({ ...device, upload: undefined }, 2)).toBeUndefined();
  });
});

test('a model whose uploads do not go through it says so, and has the same tokens', async () => {
  const path = await deepModel('tiny-llama', 'Q8_0');
  const uploads_because = 'page-locked memory of the host was refused';
  const arena = newArena();
  const { engine, executor } = openStreamingEngine(options(path, {}), arena, { uploads_because });
  expectSame(ask(engine), ask(resident(path)));
  expect(executor.streamed.because).toContain(uploads_because);
  engine.close();
});
