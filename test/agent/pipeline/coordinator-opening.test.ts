/** The engine of a pipeline on its way, in the pool of its device. */
import { expect, test } from 'vitest';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { CoordinatorOpening } from '../../../agent/pipeline/coordinator-opening.ts';
import { engineOptions, model } from '../engine/support.ts';
import { testBackend } from '../engine/test-backend.ts';
import { toldFacts } from './support.ts';

test('where no engine comes of its first stage, that gives its memory back', async () => {
  const options = engineOptions(await model('tiny-llama', 'Q8_0'), { kv_tokens: 512 });
  const pool = new DevicePool(testBackend(), { pool_bytes: 64 * 2 ** 20, threads: 1 });
  const held = (): number[] => {
    const { weights_bytes, kv_bytes, scratch_bytes } = pool.report();
    return [weights_bytes, kv_bytes, scratch_bytes];
  };
  const kv = pool.layerKv('m');
  const loading = pool.openStage(options, { model: 'm' }, 'nobody', kv);
  // The stage is loaded as it should be; the engine is told otherwise.
  const opening = new CoordinatorOpening(
    { ...options, max_sequences: 0 },
    loading,
    undefined,
    toldFacts(options, 0),
    kv,
  );
  const open = (): void => {
    while (!opening.advance(true));
  };
  expect(open).toThrow(expect.objectContaining({ code: 'E_ENGINE_OPTIONS' }));
  expect(held()).toEqual([0, 0, 0]);
  pool.verify();
  await pool.close();
});
