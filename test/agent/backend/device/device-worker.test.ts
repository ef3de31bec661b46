/** A whole device worker on a Vulkan device: loaded, measured, scheduled and answered as on a CPU. */
import { afterAll, describe, expect, test } from 'vitest';
import { vulkanDevice } from '../../../engines/environments.ts';
import { WorkerHarness } from '../../device-worker/support.ts';
import { model } from '../../engine/support.ts';

const { found, lacking } = vulkanDevice();
const load_deadline_ms = 60_000;

describe.skipIf(found === undefined)(`a worker on a Vulkan device${lacking}`, () => {
  const harness = found === undefined ? undefined : new WorkerHarness(found.environment);
  afterAll(() => harness?.close());

  test('serves a model whose memory is all on the device', async () => {
    await harness!.configure(
      {},
      { library_dir: found!.library_dir, ggml_device: 'Vulkan0', pool_bytes: 64 * 2 ** 20 },
    );
    const path = await model('tiny-llama', 'Q8_0');
    await harness!.load({ name: 'one', model_path: path, kv_tokens: 1024 }, load_deadline_ms);
    const ask = { model: 'one', prompt: 'a b c d', max_tokens: 8, temperature: 0 };
    const first = await harness!.client.completions.create(ask);
    expect(first.usage).toMatchObject({ completion_tokens: 8 });
    expect((await harness!.client.completions.create(ask)).choices[0]!.text).toBe(first.choices[0]!.text);
  });
});
