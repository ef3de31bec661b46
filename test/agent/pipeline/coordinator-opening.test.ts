/** The engine of a pipeline on its way, in the pool of its device. */
import { expect, test } from 'vitest';
import { NativeEngine } from '../../../agent/engine/native-engine.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { ChangingExecutor } from '../../../agent/pipeline/changing-executor.ts';
import { CoordinatorOpening } from '../../../agent/pipeline/coordinator-opening.ts';
import { PipelineExecutor } from '../../../agent/pipeline/pipeline-executor.ts';
import { factsOf } from '../../../agent/pipeline/pipeline-stage.ts';
import { engineOptions, generate, model, prompt } from '../engine/support.ts';
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

test('what its stage has of the pool is told as a whole, also KV that other stages have no more of', async () => {
  const options = engineOptions(await model('tiny-llama', 'Q8_0'), { kv_tokens: 1024 });
  const pool = new DevicePool(testBackend(), { pool_bytes: 64 * 2 ** 20, threads: 1 });
  const kv = pool.layerKv('m');
  const loading = pool.openStage(options, { model: 'm' }, 'nobody', kv);
  let stage = loading.advance(true);
  while (!stage) stage = loading.advance(true);
  const facts = { ...factsOf(stage, 0, toldFacts(options, 0)), epoch: 0 };
  // With the least KV of all stages. It computes the whole model all the same.
  const running = new PipelineExecutor(stage, undefined, [{ ...facts, kv_tokens: 512 }], 0);
  const executor = new ChangingExecutor(running, kv);
  const engine = new NativeEngine(options, testBackend(), { file: loading.file, executor });
  const expectAll = (): void => {
    const { kv_tokens_total, kv_bytes, working_bytes } = engine.stats();
    const report = pool.report();
    expect(kv_tokens_total).toBe(512);
    expect(kv_bytes + working_bytes).toBe(report.kv_bytes + report.scratch_bytes);
    expect(working_bytes).toBeGreaterThan(kv_bytes);
  };
  expectAll();
  generate(engine, [{ prompt: prompt(100, engine.info.n_vocab, 1), max_new_tokens: 4 }]);
  expectAll();
  engine.close();
  pool.verify();
  await pool.close();
});
