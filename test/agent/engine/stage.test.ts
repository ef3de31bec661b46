/** Stages: a model cut between any two operators computes the same bits as the whole. */

import { describe, expect, test } from 'vitest';
import type { Backend } from '../../../agent/backend/backend.ts';
import { cpuBackend } from '../../../agent/backend/cpu/cpu-backend.ts';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { enumerateOperators, stageOperators } from '../../../agent/engine/operators.ts';
import { Stage } from '../../../agent/engine/stage.ts';
import type { BatchSegment } from '../../../agent/engine/stage-batch.ts';
import { StageOpening } from '../../../agent/engine/stage-opening.ts';
import { DevicePool } from '../../../agent/memory/device-pool.ts';
import { loadGgml } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { engineOptions, model, prompt } from './support.ts';
import { test_device, testBackend } from './test-backend.ts';

test('operators of a model in the order of computation', () => {
  expect(enumerateOperators(2)).toEqual([
    { kind: 'embedding' },
    { kind: 'attention', layer: 0 },
    { kind: 'feed_forward', layer: 0 },
    { kind: 'attention', layer: 1 },
    { kind: 'feed_forward', layer: 1 },
    { kind: 'output' },
  ]);
  expect(stageOperators(2, { begin: 4, end: 6 })).toHaveLength(2);
  for (const range of [
    { begin: 2, end: 2 },
    { begin: 0, end: 7 },
    { begin: -1, end: 2 },
  ])
    expect(() => stageOperators(2, range)).toThrowError(/does not exist/);
});

describe.each(['tiny-llama', 'tiny-qwen3moe'])('%s', (preset) => {
  test.each([1, 2, 3, 4, 5])('cut before operator %i', async (cut) => {
    const file = openModelFile(await model(preset, 'Q4_0'));
    const options = {
      threads: 1,
      kv_tokens: 512,
      kv_type: 'f16' as const,
      batch_invariant: true,
    };
    const end = enumerateOperators(file.model.n_layer).length;
    const whole = new Stage(testBackend(), file, options);
    const front = new Stage(testBackend(), file, { ...options, range: { begin: 0, end: cut } });
    const back = new Stage(testBackend(), file, { ...options, range: { begin: cut, end } });
    const first = { rows: 40, blocks: [0, 1, 2] };
    const second = { rows: 7, blocks: [5] };
    const segments = (output: BatchSegment['output']): BatchSegment[] =>
      [first, second].map((part) => ({ past_tokens: 0, output, logits: true, ...part }));
    const tokens = prompt(47, file.model.n_vocab, 5);
    const expected = whole.run({ segments: segments('all'), tokens }).logits.slice();
    const border = front.run({ segments: segments('none'), tokens }).hidden.slice(0, 47 * file.model.n_embd);
    const piped = back.run({ segments: segments('all'), hidden: border }).logits;
    expect(Buffer.from(piped.buffer, 0, 47 * file.model.n_vocab * 4)).toEqual(
      Buffer.from(expected.buffer, 0, 47 * file.model.n_vocab * 4),
    );
    for (const stage of [whole, front, back]) stage.free();
  });

  test.each([
    { threads: 1, batch_invariant: false },
    { threads: 2, batch_invariant: false },
    { threads: 2, batch_invariant: true },
  ])('is measured operator by operator, with the same bits: %o', async (how) => {
    const file = openModelFile(await model(preset, 'Q4_0'));
    const options = { ...how, kv_tokens: 512, kv_type: 'f16' as const };
    const { backend, parts } = seenParts();
    const plain = new Stage(testBackend(), file, options);
    const measured = new Stage(test_device === undefined ? backend : testBackend(), file, options);
    const tokens = prompt(43, file.model.n_vocab, 5);
    const batches = [
      { rows: 40, past_tokens: 0 },
      { rows: 2, past_tokens: 40 },
      { rows: 1, past_tokens: 42 },
    ];
    for (const { rows, past_tokens } of batches) {
      const segments = [{ rows, past_tokens, blocks: [0, 1, 2], output: 'last' as const, logits: true }];
      const batch = { segments, tokens: tokens.subarray(past_tokens, past_tokens + rows) };
      const expected = plain.run(batch);
      expect(expected.operators_s).toBeUndefined();
      const began_ms = performance.now();
      const { logits, operators_s } = measured.run({ ...batch, measured: true });
      expect(logits).toEqual(expected.logits);
      expect(operators_s).toHaveLength(measured.operators.length);
      expect(Math.min(...operators_s!)).toBeGreaterThan(0);
      const sum_ms = operators_s!.reduce((sum, part_s) => sum + 1000 * part_s, 0);
      expect(sum_ms).toBeLessThanOrEqual(performance.now() - began_ms);
    }
    if (test_device === undefined) {
      // Each part is what its operator is made of: two writes of keys and values, one gated product.
      const found = parts.map((names) => names.filter((name) => /^(SET_ROWS|SWIGLU)$/.test(name)).join(' '));
      const layer = ['SET_ROWS SET_ROWS', 'SWIGLU'];
      const layers = Array.from({ length: file.model.n_layer }, () => layer).flat();
      expect(found).toEqual(batches.flatMap(() => ['', ...layers, '']));
    }
    for (const stage of [plain, measured]) stage.free();
  });
});

describe('a stage that cannot be made', () => {
  test.each(['computes', 'has results'] as const)(
    'gives back all it has where nothing %s',
    async (missing) => {
      const path = await model('tiny-llama', 'Q4_0');
      const backend = testBackend();
      const pool = new DevicePool(backend, { pool_bytes: 64 * 2 ** 20, threads: 1 });
      const compute = backend.compute.bind(backend);
      let computes = 0;
      backend.compute = (options) => {
        if (missing === 'computes') throw new Error('nothing computes');
        const opened = compute(options);
        const free = opened.free.bind(opened);
        computes++;
        opened.free = () => {
          computes--;
          free();
        };
        return opened;
      };
      const scratch = {
        open: () => {
          throw new Error('nothing has results');
        },
      };
      try {
        const memory = { weights: pool.weights(), kv: pool.layerKv('m'), scratch };
        const file = openModelFile(path);
        const opening = new StageOpening(
          engineOptions(path, { kv_tokens: 512 }),
          memory,
          'nobody',
          backend,
          file,
        );
        const isOver = (): boolean => opening.advance(true) !== undefined;
        expect(() => {
          while (!isOver());
        }).toThrow(`nothing ${missing}`);
        expect(pool.store.stats()).toMatchObject({ active_bytes: 0, kv_bytes: 0, scratch_bytes: 0 });
        expect(pool.store.stats().reusable_bytes).toBeGreaterThan(0);
        expect(computes).toBe(0);
        pool.verify();
      } finally {
        backend.compute = compute;
        await pool.close();
      }
    },
  );
});

/** A CPU on which the operators of each graph that is put together from nodes are seen. */
function seenParts(): { backend: Backend; parts: string[][] } {
  const ggml = loadGgml();
  const byGraph = new Map<Pointer, string[]>();
  const parts: string[][] = [];
  const backend = cpuBackend({
    ...ggml,
    ggml_new_graph_custom: (...asked) => {
      const graph = ggml.ggml_new_graph_custom(...asked)!;
      byGraph.set(graph, []);
      return graph;
    },
    ggml_graph_add_node: (graph, node) => {
      const names = byGraph.get(graph as Pointer)!;
      if (names.length === 0) parts.push(names);
      names.push(ggml.ggml_op_desc(node as Pointer)!);
      ggml.ggml_graph_add_node(graph, node);
    },
  });
  return { backend, parts };
}
