/**
 * Weights that stay in host memory, through the arena of a device whose memory is really apart: Vulkan's, by a driver
 * that computes on CPUs, so that arenas, uploads, fences and turns are tried on every machine.
 */
import { copyFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { nativeFolderVariable } from '../../../native/libraries.ts';
import type { DeviceReport } from '../../../spec/device-report.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { vulkanDevice } from '../../engines/environments.ts';
import { forgetFile } from '../memory/page-cache.ts';
import { deepModel } from '../streaming/support.ts';
import { WorkerHarness } from './support.ts';

const mib = 2 ** 20;
const { found, lacking } = vulkanDevice();
/** Some two of six layers. */
const arena_bytes = 2 * mib;
const resident_bytes = 2 * mib;
/** Kernels are compiled on the cores that compute. */
const kernels_ms = 120_000;

interface Answer {
  tokens: string[];
  token_logprobs: number[];
}

describe.skipIf(found === undefined)(
  `models in the memory of a GPU${lacking}`,
  { timeout: kernels_ms },
  () => {
    let worker: WorkerHarness;
    const paths: string[] = [];
    beforeAll(async () => {
      const { library_dir, environment } = found!;
      worker = new WorkerHarness({ ...environment, [nativeFolderVariable]: library_dir });
      for (const seed of [1, 2]) {
        const path = join(worker.folder, `${seed}.gguf`);
        copyFileSync(await deepModel('tiny-llama', 'Q8_0', seed), path);
        paths.push(path);
      }
      const more = { arena_bytes, resident_bytes, pool_bytes: 64 * mib, ggml_device: 'Vulkan0' };
      await worker.configure({ profile_ms: 50 }, more);
      const sizes = { context_tokens: 256, kv_tokens: 512, max_sequences: 2 };
      for (const [index, model_path] of paths.entries()) {
        const own = { name: `streamed-${index}`, model_path, weights: 'streamed', ...sizes } as const;
        // Of the second one some layers stay.
        await worker.load(index === 0 ? own : { ...own, resident_bytes }, kernels_ms);
        await worker.load({ name: `resident-${index}`, model_path, ...sizes }, kernels_ms);
      }
    }, 4 * kernels_ms);
    afterAll(() => worker.close());

    async function answer(model: string, seed: number): Promise<Answer> {
      const prompt = Array.from({ length: 20 }, (_, at) => 5 + ((at * 7 + seed * 31) % 90));
      const body = { model, prompt, max_tokens: 6, temperature: 0, ignore_eos: true, logprobs: 0 };
      const { status, text } = await worker.post('/v1/completions', body);
      expect(status, text).toBe(200);
      const { tokens, token_logprobs } = JSON.parse(text).choices[0].logprobs;
      expect(tokens.length).toBe(6);
      return { tokens, token_logprobs };
    }

    it('answer through the arena as they do when they lie there, in turns', async () => {
      for (const seed of [1, 2])
        for (const index of [0, 1])
          expect(await answer(`streamed-${index}`, seed)).toEqual(await answer(`resident-${index}`, seed));
      const { text } = await worker.request('GET', agentPaths.device);
      const { memory, instances } = JSON.parse(text) as DeviceReport;
      expect(memory.pool!.arena_bytes).toBe(arena_bytes + resident_bytes);
      const told = (name: string) => instances.find(({ model }) => model === name)!.streamed;
      expect(told('streamed-0')!.resident_bytes).toBe(0);
      // Its memory for uploads is page-locked.
      expect(told('streamed-0')!.because).toBeUndefined();
      expect(told('streamed-1')!.resident_bytes).toBeGreaterThan(mib);
      expect(told('resident-0')).toBeUndefined();
    });

    it('are the same when host memory has lost their files in between', async () => {
      // Prompts that nobody had before: what is found of one in a cache leaves a batch of other rows.
      for (const index of [0, 1]) {
        const expected = await answer(`resident-${index}`, 3);
        for (const path of paths) await forgetFile(path);
        expect(await answer(`streamed-${index}`, 3)).toEqual(expected);
      }
    });
  },
);
