/**
 * A pipeline over the GPUs of two jobs whose stages become one and two again while it answers: keys and values go
 * through memory of the host, beside the rings. Each job has a Vulkan device of its own.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { vulkanDevice } from '../../engines/environments.ts';
import { type RunningAgent, Site } from '../support.ts';
import { answer, changed, on, refactor, startJob, untilStages } from './refactoring-support.ts';

const { found, lacking } = vulkanDevice();
const answer_tokens = 36;

function startGpu(site: Site, node_index: number): Promise<RunningAgent> {
  const locks = join(site.folder, `device-${node_index}`);
  mkdirSync(locks);
  const memory = { device_bytes: 2 ** 27, kv_bytes: 2 ** 21, share: 0.5 };
  return startJob(site, node_index, true, {
    launch: { native_library_dir: found!.library_dir, private_fabric: true, fabrics: [] },
    unit: { device_count: 1, memory },
    environment: { ...found!.environment, HPCSERVE_DEVICE_LOCKS: locks },
  });
}

describe.skipIf(found === undefined)(`stages on GPUs${lacking}`, () => {
  test('are joined and divided while an answer is computed, which is the one of an undisturbed run', {
    timeout: 240_000,
  }, async () => {
    await using site = await Site.open();
    const first = await startGpu(site, 0);
    const second = await startGpu(site, 1);
    const record = await site.serving('m', 120_000);
    const expected = await answer(site, record, answer_tokens);
    const asked = answer(site, record, answer_tokens);
    const joined = await changed(site, record, [on('n0', 'gpu 0', 0, 2)]);
    expect(joined, JSON.stringify(joined.json)).toMatchObject({
      status: 200,
      json: { bytes_by_way: { sendfile: expect.any(Number) } },
    });
    await untilStages(first, [[0, 6]]);
    await untilStages(second, []);
    const divided = await refactor(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 0', 1, 1)]);
    expect(divided, JSON.stringify(divided.json)).toMatchObject({ status: 200 });
    await untilStages(second, [[3, 6]]);
    expect(await asked).toEqual(expected);
    expect(await answer(site, record, answer_tokens)).toEqual(expected);
  });
});
