/**
 * Every CPU library of ggml that this machine can run, not only the best one: nodes differ, and what is right on the
 * CPU at hand may be wrong on another. `npm test` ends with the names of those that ran.
 */
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, describe, expect, test } from 'vitest';
import { packageRoot } from '../../../host/package-root.ts';
import { nativeFolderVariable } from '../../../native/libraries.ts';
import type { CpuLibraryReport } from './cpu-library-child.ts';
import { folderWithOneCpu, runnableCpuLibraries } from './cpu-library-folders.ts';
import { model } from './support.ts';
import { ownTolerances } from './tolerances.ts';

const child = join(packageRoot, 'dist/test/agent/engine/cpu-library-child.js');
const scratch = mkdtempSync(join(tmpdir(), 'hpcserve-cpus-'));
afterAll(() => rmSync(scratch, { recursive: true }));

const runnable = runnableCpuLibraries();

/** Types whose layouts differ most from library to library. */
const types = ['F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K'] as const;

test('this machine runs one of the libraries at least', () => {
  expect(runnable.length).toBeGreaterThan(0);
});

describe.each(runnable)('CPU library %s', (name) => {
  test('has right kernels in every layout, and answers as libllama does', async () => {
    const models = await Promise.all(types.map((type) => model('tiny-llama', type)));
    const { stdout } = await promisify(execFile)(process.execPath, [child, ...models], {
      env: {
        ...process.env,
        [nativeFolderVariable]: folderWithOneCpu(join(scratch, name), name),
        XDG_CACHE_HOME: join(scratch, `${name}-cache`),
      },
    });
    const report = JSON.parse(stdout) as CpuLibraryReport;
    expect(report.left_out).toEqual([]);
    report.models.forEach(({ model: file, tokens, difference_max, gap_max }, index) => {
      const tolerance = ownTolerances[types[index]!]!;
      expect(tokens, file).toBe(24);
      expect(difference_max, file).toBeLessThan(tolerance);
      expect(gap_max, file).toBeLessThan(4 * tolerance);
    });
  });
});
