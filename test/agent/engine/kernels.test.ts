/**
 * Kernels are proved before they serve, and what is wrong is left out; rows of a packed matrix are taken where they
 * lie.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { KernelChoice, kernelChoice } from '../../../agent/engine/kernel-choice.ts';
import { type Kernel, whatIsWrongWith } from '../../../agent/engine/kernel-proof.ts';
import { MatrixRows } from '../../../agent/engine/matrix-rows.ts';
import { convertedRowBytes, isLaidOutAsInFile, row_group } from '../../../agent/engine/row-groups.ts';
import type { PlannedWeight } from '../../../agent/engine/weight-plan.ts';
import { ggmlRow_bytes, ggmlTypeByName } from '../../../native/formats/ggml-types.ts';
import { type Ggml, loadGgml, memoryAt } from '../../../native/ggml.ts';
import { packedProducts } from '../../../native/packed-products.ts';
import { ProofCache, type RaceVerdict } from '../../../native/proof-cache.ts';
import type { Pointer } from '../../../native/signature.ts';
import { LongRowsLayout } from './long-rows-layout.ts';

const ggml = loadGgml();
const folder = mkdtempSync(join(tmpdir(), 'hpcserve-kernels-'));
const layout = new LongRowsLayout(ggml);
/** The library as it is, with one more layout, which it takes first. */
const withLongRows: Ggml = { ...ggml, cpuExtraBufferTypes: [layout.bufferType, ...ggml.cpuExtraBufferTypes] };
afterAll(() => {
  layout.free();
  rmSync(folder, { recursive: true });
});

function weight(type: string, shape: number[], use: PlannedWeight['use'] = 'matrix'): PlannedWeight {
  return { name: 'w', type, shape, use, parts: [] };
}

function bytesOf(count: number): Uint8Array {
  return Uint8Array.from({ length: count }, (_, index) => (index * 2654435761) >>> 13);
}

describe('rows that are longer in memory than in the file', () => {
  const [width, height] = [256, 3 * row_group + 8];

  function place(type: string): { matrix: Pointer; source: Uint8Array; free(): void } {
    const { id } = ggmlTypeByName(type);
    const context = ggml.ggml_init({ mem_size: 4096, mem_buffer: null, no_alloc: true })!;
    const matrix = ggml.ggml_new_tensor_2d(context, id, width, height)!;
    const bytes = Number(ggml.ggml_backend_buft_get_alloc_size(layout.bufferType, matrix));
    const buffer = ggml.ggml_backend_buft_alloc_buffer(layout.bufferType, bytes)!;
    ggml.ggml_backend_tensor_alloc(buffer, matrix, ggml.ggml_backend_buffer_get_base(buffer)!);
    const source = bytesOf(height * ggmlRow_bytes(ggmlTypeByName(type), width));
    ggml.ggml_backend_tensor_set(matrix, source, 0, source.length);
    return {
      matrix,
      source,
      free: () => {
        ggml.ggml_backend_buffer_free(buffer);
        ggml.ggml_free(context);
      },
    };
  }

  test.each(['Q8_0', 'Q4_K', 'F16'])('are measured and taken where they lie, %s', (type) => {
    const traits = ggmlTypeByName(type);
    const packed_bytes = ggmlRow_bytes(traits, width) + layout.padding_bytes;
    expect(convertedRowBytes(ggml, layout.bufferType, traits.id, width, height)).toBe(packed_bytes);
    expect(isLaidOutAsInFile(ggml, layout.bufferType, traits.id, width, height)).toBe(false);
    const plain = ggml.ggml_backend_cpu_buffer_type()!;
    expect(isLaidOutAsInFile(ggml, plain, traits.id, width, height)).toBe(true);
    const { matrix, source, free } = place(type);
    const rows = new MatrixRows(withLongRows);
    const base = ggml.ggml_get_data(matrix)!;
    for (const [begin, end] of [
      [0, row_group],
      [row_group, 3 * row_group],
      [2 * row_group, height],
    ] as const) {
      const part = rows.take(matrix, weight(type, [width, height]), begin, end)!;
      expect(ggml.ggml_get_data(part)).toBe(base + BigInt(begin * packed_bytes));
      const row_bytes = source.length / height;
      const expected = layout.expected(source.subarray(begin * row_bytes, end * row_bytes), end - begin);
      expect(Buffer.compare(memoryAt(ggml.ggml_get_data(part)!, expected.length), expected)).toBe(0);
    }
    rows.free();
    free();
  });

  test('are not taken from the middle of a group, and all of them are the matrix itself', () => {
    const { matrix, free } = place('Q8_0');
    const rows = new MatrixRows(withLongRows);
    const whole = weight('Q8_0', [width, height]);
    expect(rows.take(matrix, whole, 0, height)).toBe(matrix);
    expect(rows.take(matrix, whole, 16, height)).toBeUndefined();
    expect(rows.take(matrix, whole, 0, row_group + 16)).toBeUndefined();
    expect(rows.take(matrix, whole, 0, row_group)).toBe(rows.take(matrix, whole, 0, row_group));
    rows.free();
    free();
  });
});

describe('a layout whose kernels are wrong', () => {
  test('is left out, with its reason, and the weight goes where kernels are right', () => {
    const choice = new KernelChoice(withLongRows, new ProofCache(join(folder, 'wrong.json')));
    const right = kernelChoice(ggml);
    for (const type of ['Q8_0', 'Q4_0', 'F16'])
      expect(choice.bufferTypeFor(weight(type, [512, 256]), 'ggml')).toBe(
        right.bufferTypeFor(weight(type, [512, 256]), 'ggml'),
      );
    expect(choice.left_out.map(({ code, message, details }) => [code, message, details?.type])).toEqual(
      ['Q8_0', 'Q4_0', 'F16'].map((type) => ['E_NATIVE_KERNEL', expect.stringContaining('LONG_ROWS'), type]),
    );
    expect(choice.left_out[0]!.because.join()).toMatch(/row \d+ is off by .*instruction sets: /s);
    // Another matrix of the same kind is no news.
    choice.bufferTypeFor(weight('Q8_0', [512, 512]), 'ggml');
    expect(choice.left_out).toHaveLength(3);
  });

  test('is tried again by the next process, and what was right is not', () => {
    const path = join(folder, 'kept.json');
    const first = new KernelChoice(withLongRows, new ProofCache(path));
    first.bufferTypeFor(weight('F32', [256, 64]), 'ggml');
    first.keep();
    const { passed: kept } = JSON.parse(readFileSync(path, 'utf8')) as { passed: string[] };
    expect(kept.length).toBeGreaterThan(0);
    expect(kept.filter((key) => key.startsWith('LONG_ROWS'))).toEqual([]);
    const second = new KernelChoice(withLongRows, new ProofCache(path));
    second.bufferTypeFor(weight('F32', [256, 64]), 'ggml');
    expect(second.left_out).toHaveLength(1);
    // A file that was cut off is no file.
    writeFileSync(path, '["CPU_REP');
    expect(new ProofCache(path).has(kept[0]!)).toBe(false);
  });
});

describe('a matrix that we have a product for', () => {
  const ours = packedProducts(ggml)!;
  const matrix = weight('Q4_0', [512, 96]);
  const large = weight('Q4_0', [2048, 1024]);

  test('lies in our layout where that is asked for or was faster, and never without', () => {
    const path = join(folder, 'raced.json');
    const choice = new KernelChoice(ggml, new ProofCache(path));
    expect(choice.bufferTypeFor(matrix, 'own')).toBe(ours.bufferType);
    const theirs = choice.bufferTypeFor(matrix, 'ggml');
    expect(theirs).not.toBe(ours.bufferType);
    const experts = weight('Q4_0', [512, 96, 4], 'experts');
    expect(choice.bufferTypeFor(experts, 'own')).toBe(ours.bufferType);
    expect(choice.bufferTypeFor(experts, 'ggml')).not.toBe(ours.bufferType);
    // Types that we have none for are ggml's.
    expect(choice.bufferTypeFor(weight('Q2_K', [512, 96]), 'own')).not.toBe(ours.bufferType);
    // What is small needs no race.
    expect(choice.bufferTypeFor(matrix, 'faster')).toBe(ours.bufferType);
    const raced = choice.bufferTypeFor(large, 'faster');
    expect([ours.bufferType, theirs]).toContain(raced);
    // What was measured is kept: the next process does as it says, whatever that is.
    choice.keep();
    const { passed, verdicts } = JSON.parse(readFileSync(path, 'utf8')) as {
      passed: string[];
      verdicts: Record<string, RaceVerdict>;
    };
    const [[key, verdict]] = Object.entries(verdicts) as [[string, RaceVerdict]];
    expect(verdict).toMatchObject({ won: raced === ours.bufferType, races: 1 });
    // A mixture's matrices have a race of their own.
    const mixture = weight('Q4_0', [2048, 256, 4], 'experts');
    choice.bufferTypeFor(mixture, 'faster');
    choice.keep();
    const both = JSON.parse(readFileSync(path, 'utf8')) as { verdicts: Record<string, RaceVerdict> };
    const [, experts_key] = Object.keys(both.verdicts);
    expect(experts_key).toMatch(/ experts$/);
    for (const won of [true, false]) {
      const each = { won, others_share: 0, races: 1 };
      const said = { [key]: each, [experts_key!]: { ...each, won: !won } };
      writeFileSync(path, JSON.stringify({ passed, verdicts: said }));
      const next = new KernelChoice(ggml, new ProofCache(path));
      expect(next.bufferTypeFor(large, 'faster')).toBe(won ? ours.bufferType : theirs);
      expect(next.bufferTypeFor(mixture, 'faster') === ours.bufferType).toBe(!won);
    }
  });

  test('lies in another one where ours is wrong on this CPU', () => {
    // Its operators run, and leave what was in memory.
    const broken: Ggml = { ...ggml, ggml_custom_4d: (...args) => ggml.ggml_custom_4d(...withoutWork(args)) };
    const choice = new KernelChoice(broken, new ProofCache(join(folder, 'broken.json')));
    expect(choice.bufferTypeFor(matrix, 'own')).toBe(choice.bufferTypeFor(matrix, 'ggml'));
    expect(choice.left_out.map(({ message }) => message)).toEqual([
      expect.stringMatching(/^the PACKED_\w+ kernel for Q4_0 matrices of 512 columns is wrong on this CPU/),
    ]);
  });
});

/** The same operator, told that it is of an instruction set that nothing is computed by. */
function withoutWork(args: Parameters<Ggml['ggml_custom_4d']>): Parameters<Ggml['ggml_custom_4d']> {
  return args.with(-1, 2048n) as typeof args;
}

describe('kernels of this CPU', () => {
  const plain = ggml.ggml_backend_cpu_buffer_type()!;

  test.each(['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_1', 'Q5_0', 'Q4_K', 'Q5_K', 'Q6_K', 'IQ4_XS'])(
    'are right for %s, alone and in a batch, as matrices and as experts',
    (type) => {
      const choice = new KernelChoice(ggml, new ProofCache(join(folder, `${type}.json`)));
      for (const width of [256, 1024])
        for (const height of [128, 104])
          for (const use of ['matrix', 'experts'] as const)
            for (const policy of ['own', 'ggml'] as const) {
              const shape = use === 'experts' ? [width, height, 4] : [width, height];
              choice.bufferTypeFor(weight(type, shape, use), policy);
            }
      expect(choice.left_out).toEqual([]);
    },
  );

  test('are told from wrong ones by one row that is out of place', () => {
    const kernel: Kernel = { layout: 'CPU', type: 'Q8_0', width: 256, rest: 0, use: 'matrix' };
    expect(whatIsWrongWith(ggml, plain, kernel)).toBeUndefined();
    let products = 0;
    const swapped: Ggml = {
      ...ggml,
      // The second product is of rows that begin one row too late, as if the first did not count.
      ggml_mul_mat: (context, matrix, x) => {
        products++;
        if (products === 1) return ggml.ggml_mul_mat(context, matrix, x);
        const view = ggml.ggml_view_2d(context, matrix, 256, 63, 272, 272);
        const rest = ggml.ggml_view_2d(context, matrix, 256, 1, 272, 0);
        return ggml.ggml_concat(
          context,
          ggml.ggml_mul_mat(context, view, x),
          ggml.ggml_mul_mat(context, rest, x),
          0,
        );
      },
    };
    expect(whatIsWrongWith(swapped, plain, kernel)).toMatch(
      /^7 columns: row \d+ is off by 1\.\d+ of its size$/,
    );
  });
});
