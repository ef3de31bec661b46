/** The library where there is a compiler, where it is old, and where there is none. */
import { chmodSync, existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { compileKernels } from '../../../.ci/compile-kernels.ts';
import { loadCpuKernels } from '../../../native/cpu-kernels.ts';
import { cpuKernelsFile } from '../../../native/cpu-kernels-file.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-kernels-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('the build', () => {
  it('goes on without a compiler, says so, and leaves no library of former sources', () => {
    const target = join(folder, 'none');
    expect(compileKernels(target, join(folder, 'no-such-compiler'))).toEqual([
      expect.stringContaining("ggml's kernels serve alone"),
    ]);
    expect(existsSync(join(target, cpuKernelsFile))).toBe(false);
    expect(loadCpuKernels(join(target, cpuKernelsFile))).toBeUndefined();
  });

  it('leaves out the instruction sets that an old compiler does not know, and compiles once', () => {
    const compiler = join(folder, 'old-cc');
    writeFileSync(
      compiler,
      '#!/bin/sh\ncase "$*" in *-mamx*) echo "cc: error: unrecognized option -mamx-tile" >&2; exit 1;; esac\nexec cc "$@"\n',
    );
    chmodSync(compiler, 0o755);
    const target = join(folder, 'old');
    const left_out = compileKernels(target, compiler);
    expect(left_out).toEqual([expect.stringMatching(/^no kernels for AMX-BF16: .*unrecognized option/)]);
    const { mtimeMs } = statSync(join(target, cpuKernelsFile));
    expect(compileKernels(target, compiler)).toEqual(left_out);
    expect(statSync(join(target, cpuKernelsFile)).mtimeMs).toBe(mtimeMs);
    const kernels = loadCpuKernels(join(target, cpuKernelsFile))!;
    expect(kernels.compiled.map(({ name }) => name)).toEqual(['AVX-512 BF16', 'AVX-512 VNNI', 'AVX2']);
    expect(kernels.sets.map(({ name }) => name)).not.toContain('AMX-BF16');
  }, 240_000);

  it('says what a compiler that fails said', () => {
    const compiler = join(folder, 'broken-cc');
    writeFileSync(
      compiler,
      '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "error: no space left" >&2\nexit 1\n',
    );
    chmodSync(compiler, 0o755);
    expect(compileKernels(join(folder, 'broken'), compiler).join()).toMatch(/no space left: ggml's kernels/);
  });
});
