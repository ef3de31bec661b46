/** HybridGEMM by itself in the streaming bench, by the library whose device is emulated. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { compileEmulatedHybridGemm } from '../../../.ci/compile-cuda.ts';
import { HybridProducts } from '../../../agent/streaming/hybrid-products.ts';
import { kernelAlone } from '../../../bench/streaming/kernel-alone.ts';
import { loadHybridGemm } from '../../../native/cuda/hybrid-gemm.ts';
import { hybridGemmFile } from '../../../native/cuda/library-file.ts';
import { mib } from '../../agent/memory/support.ts';
import { closeAll, deepModel, newArena, options, partedBackend } from '../../agent/streaming/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-kernel-alone-'));
afterEach(async () => {
  await closeAll();
  rmSync(folder, { recursive: true, force: true });
});

test('is measured beside the ring where there are products, and left out by name where there are none', async () => {
  compileEmulatedHybridGemm(folder, 'g++');
  const library = loadHybridGemm(join(folder, hybridGemmFile))!;
  const path = await deepModel('tiny-llama', 'Q8_0', 1, 2);
  const arena = newArena({ ring_bytes: 4 * mib }, partedBackend());
  const asked = options(path, { kernels: 'ggml' });
  const said: string[] = [];
  const rows = kernelAlone(
    asked,
    arena,
    (meter) => ({
      products: new HybridProducts({
        ggml: arena.backend.ggml,
        library,
        device: library.open(),
        // Reading in place is as fast as a copy before it.
        rates: { flops_per_s: 1e15, memory_bytes_per_s: 1e15, processors: 100 },
        arena_bytes: arena.ring.bytes,
        locked_bytes: Number.POSITIVE_INFINITY,
        link_bytes_per_s: () => meter.statistics.link?.bytes_per_s,
        counted_bytes_per_s: () => meter.statistics.link?.bytes_per_s,
        on_read: (bytes, seconds) => meter.read(bytes, seconds),
      }),
    }),
    [1],
    (line) => said.push(line),
  );
  expect(said).toEqual([]);
  // Of two layers and the head some are one product with their neighbours.
  expect(rows.map(({ what }) => what)).toEqual([
    expect.stringMatching(/^decode step of 1, HybridGEMM alone .*: 9 products of a step read weights/),
  ]);
  expect(rows[0]!.ours).toBeGreaterThan(0);
  expect(rows[0]!.ratio).toBeCloseTo(rows[0]!.theirs! / rows[0]!.ours, 9);
  const because = 'HybridGEMM is off: a reason';
  const none = kernelAlone(
    asked,
    arena,
    () => ({ because }),
    [1, 4],
    (line) => said.push(line),
  );
  expect(none).toEqual([]);
  expect(said.join()).toContain(because);
}, 300_000);
