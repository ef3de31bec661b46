/**
 * A driver whose kernel for one operator is wrong: found out before it serves, computed on the CPU, and said. The
 * device is made to compute node by node, and what the kernel in question gave is spoilt, in trials and in service
 * alike.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Backend } from '../../../../agent/backend/backend.ts';
import { deviceBackend } from '../../../../agent/backend/device/device-backend.ts';
import { NativeEngine } from '../../../../agent/engine/native-engine.ts';
import type { Ggml } from '../../../../native/ggml.ts';
import type { Pointer } from '../../../../native/signature.ts';
import { engineOptions, generate, model, prompt, rootMeanSquare } from '../../engine/support.ts';
import { isThere, lacking, vulkan } from './support.ts';

/** Kernels are compiled at their first use, on the cores that compute. */
const timeout = 240_000;

describe.skipIf(!isThere)(`operators of a Vulkan device${lacking}`, { timeout }, () => {
  let cache: string;
  const former = process.env.XDG_CACHE_HOME;
  beforeEach(() => {
    cache = mkdtempSync(join(tmpdir(), 'hpcserve-proofs-'));
    process.env.XDG_CACHE_HOME = cache;
  });
  afterEach(() => {
    if (former === undefined) delete process.env.XDG_CACHE_HOME;
    else process.env.XDG_CACHE_HOME = former;
    rmSync(cache, { recursive: true, force: true });
  });

  /** Operators that were computed on the device, one by one. */
  let computed: string[];

  /** The device, whose results of these operators are spoilt. */
  function spoilt(operators: readonly string[]): Backend {
    const { ggml } = vulkan();
    computed = [];
    const cpus = new Set<Pointer>();
    const broken: Ggml = {
      ...ggml,
      ggml_backend_dev_init: (device, parameters) => {
        const backend = ggml.ggml_backend_dev_init(device, parameters);
        if (backend && device === ggml.cpuDevice) cpus.add(backend);
        return backend;
      },
      ggml_backend_graph_compute: (backend, graph) => {
        const own = backend as Pointer;
        if (cpus.has(own)) return ggml.ggml_backend_graph_compute(backend, graph);
        for (let index = 0; index < ggml.ggml_graph_n_nodes(graph); index++) {
          const node = ggml.ggml_graph_node(graph, index)!;
          computed.push(ggml.ggml_op_desc(node)!);
          const status = computeAlone(ggml, own, node);
          if (status !== 0) return status;
          if (operators.includes(ggml.ggml_op_desc(node)!)) spoil(ggml, node);
        }
        return 0;
      },
    };
    return deviceBackend(broken, 'Vulkan0');
  }

  /** Logits of a few tokens, and what was said of kernels. */
  async function answerOf(backend: Backend): Promise<{ rows: Float32Array[]; said: string[] }> {
    const path = await model('tiny-llama', 'Q4_0');
    const engine = new NativeEngine(engineOptions(path, { kv_tokens: 1024 }), backend);
    const asked = [{ prompt: prompt(20, engine.info.n_vocab, 3), max_new_tokens: 2 }];
    const [answer] = generate(engine, asked);
    engine.close();
    return { rows: answer!.rows, said: backend.kernels_left_out.map(({ message }) => message) };
  }

  test('that are right are tried once, by one process for all', async () => {
    const first = spoilt([]);
    const { said, rows } = await answerOf(first);
    expect(said).toEqual([]);
    const with_trials = computed.length;
    expect(readdirSync(join(cache, 'hpcserve/native-kernels'))).toHaveLength(1);
    const second = await answerOf(spoilt([]));
    expect(computed.length).toBeLessThan(with_trials);
    expect(second.rows).toEqual(rows);
  });

  test('that are wrong are computed on the CPU, and said', async () => {
    const expected = await answerOf(spoilt([]));
    rmSync(cache, { recursive: true });
    const wrong = ['SWIGLU', 'MUL_MAT', 'FLASH_ATTN_EXT', 'RMS_NORM'];
    const { rows, said } = await answerOf(spoilt(wrong));
    for (const name of wrong)
      expect(said).toContainEqual(
        expect.stringMatching(`^${name} .*is computed on the CPU: llvmpipe.* computes it wrongly`),
      );
    expect(said.every((words) => wrong.some((name) => words.startsWith(name)))).toBe(true);
    for (const [index, row] of rows.entries())
      expect(rootMeanSquare(row, expected.rows[index]!)).toBeLessThan(0.3);
  });

  test('that are wrong and write into the device’s memory are no way to run a model', async () => {
    await expect(answerOf(spoilt(['SET_ROWS']))).rejects.toMatchObject({
      code: 'E_ENGINE_MODEL',
      because: expect.arrayContaining([expect.stringMatching(/^its kernel for SET_ROWS is wrong: row \d/)]),
    });
  });
});

function computeAlone(ggml: Ggml, backend: Pointer, node: Pointer): number {
  const mem_size = Number(ggml.ggml_graph_overhead_custom(1, false));
  const context = ggml.ggml_init({ mem_size, mem_buffer: null, no_alloc: true })!;
  const graph = ggml.ggml_new_graph_custom(context, 1, false)!;
  ggml.ggml_graph_add_node(graph, node);
  const status = ggml.ggml_backend_graph_compute(backend, graph);
  ggml.ggml_free(context);
  return status;
}

/** Its numbers are there, and none is where it belongs. */
function spoil(ggml: Ggml, node: Pointer): void {
  const bytes = new Uint8Array(Number(ggml.ggml_nbytes(node)));
  ggml.ggml_backend_tensor_get(node, bytes, 0, bytes.length);
  ggml.ggml_backend_tensor_set(node, bytes.reverse().slice(), 0, bytes.length);
}
