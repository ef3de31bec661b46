/**
 * Has the driver compile what suites compute with on the device (`make-vulkan.ts` starts it): ggml has shaders of their
 * own for each type of matrices, for few rows and many, for prompts that are longer than a slab. What a suite needs
 * beyond that is compiled when it is asked for.
 */
import { parseArgs } from 'node:util';
import { deviceBackend } from '../../../agent/backend/device/device-backend.ts';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { loadGgml } from '../../../native/ggml.ts';
import { type SynthQuantization, synthQuantizations } from '../../../native/synth/quantization.ts';
import type { EngineOptions } from '../../../spec/engine-contract.ts';
import { engineOptions, generate, model, prompt } from '../../agent/engine/support.ts';

const { positionals } = parseArgs({ allowPositionals: true });
const backend = deviceBackend(loadGgml(), 'Vulkan0');

async function compute(
  type: SynthQuantization,
  options: Partial<EngineOptions>,
  lengths: readonly number[],
): Promise<void> {
  const engine = new NativeEngine(engineOptions(await model('tiny-llama', type), options), backend);
  // They end one after another, so that each number of rows has its turn.
  const asked = lengths.map((length, index) => ({
    prompt: prompt(length, engine.info.n_vocab, index + 1),
    max_new_tokens: index + 2,
  }));
  generate(engine, asked);
  engine.close();
}

for (const type of synthQuantizations.filter((type) => positionals.includes(type))) {
  if (type === 'F16') await compute(type, { prefill_chunk_tokens: 16 }, [60, 60]);
  else await compute(type, { kv_tokens: 1024 }, [3, 40]);
  if (type === 'Q8_0') await compute(type, { kv_tokens: 2048, prefill_chunk_tokens: 128 }, [270, 20]);
}
