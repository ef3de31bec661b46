/** The library for GPUs where there is nvcc, and where there is none. */
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { compileCuda, findNvcc } from '../../../.ci/compile-cuda.ts';
import { checkHybridGemm } from '../../../cli/doctor/machine-checks.ts';
import { loadHybridGemm } from '../../../native/cuda/hybrid-gemm.ts';
import { hybridGemmFile } from '../../../native/cuda/library-file.ts';
import { nvccProgram } from '../../engines/environments.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-nvcc-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('a build', () => {
  it('leaves no library of former sources where there is no nvcc, and doctor says so', () => {
    const target = join(folder, 'none');
    mkdirSync(target);
    const library = join(target, hybridGemmFile);
    writeFileSync(library, 'of former sources');
    expect(checkHybridGemm(library).status).toBe('PASSED');
    const left_out = compileCuda(target, undefined);
    if (existsSync('/dev/nvidiactl')) expect(left_out.join()).toMatch(/no nvcc/);
    else expect(left_out).toEqual([]);
    expect(existsSync(library)).toBe(false);
    expect(loadHybridGemm(library)).toBeUndefined();
    expect(checkHybridGemm(library)).toMatchObject({
      status: 'SKIPPED',
      found: expect.stringMatching(/no nvcc/),
    });
  });

  it('says what a compiler that fails said, and finds the one that NVCC names', () => {
    const nvcc = join(folder, 'nvcc');
    writeFileSync(nvcc, '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "error: no sm_90" >&2\nexit 1\n');
    chmodSync(nvcc, 0o755);
    expect(findNvcc({ NVCC: nvcc, PATH: '' })).toBe(nvcc);
    const broken = compileCuda(join(folder, 'broken'), nvcc);
    expect(broken.join()).toMatch(/no sm_90: weights in host memory are copied/);
  });
});

const { found: nvcc, lacking } = nvccProgram();

describe.skipIf(nvcc === undefined)(`nvcc${lacking}`, () => {
  it('compiles it for data-center GPUs, and the library says without a driver that there is no device', () => {
    const target = join(folder, 'compiled');
    expect(compileCuda(target, nvcc)).toEqual([]);
    const path = join(target, hybridGemmFile);
    const image = readFileSync(path, 'latin1');
    for (const architecture of ['sm_80', 'sm_90']) expect(image).toContain(architecture);
    const library = loadHybridGemm(path)!;
    if (library.devices > 0) return library.open().close();
    expect(() => library.open()).toThrow(/no such device|page-locked|driver|runtime/);
    expect(library.packedBytes(30, 33, 65)).toBe(2 * 2 * 4096);
  }, 400_000);
});
