/**
 * Compiles native/cuda by nvcc, where there is one: for Ampere's and Hopper's data-center GPUs, and as PTX for those
 * that follow. The CUDA runtime is linked into the library, so that it is loaded where there is no driver. By g++ the
 * same sources make a library whose device is emulated (native/cuda/emulated.h), which tests run everywhere.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { hybridGemmFile } from '../native/cuda/library-file.ts';
import { compileLibrary } from './c-library.ts';

const sources = join(packageRoot, 'native/cuda');
const files = ['pack.cu', 'hybrid-gemm.cu'];
const architectures = [
  ...['-gencode', 'arch=compute_80,code=sm_80'],
  ...['-gencode', 'arch=compute_90,code=sm_90'],
  ...['-gencode', 'arch=compute_90,code=compute_90'],
];
const by_nvcc = [
  ...['-std=c++17', '-O3', '-shared', '-Xcompiler', '-fPIC,-fvisibility=hidden,-Wall,-Wextra'],
  // It refuses a g++ that came after it. What the host's part of these files asks for is C++17.
  '-allow-unsupported-compiler',
  // Folders of a CUDA toolkit are not on the linker's way everywhere.
  ...['-cudart', 'static'],
];
const emulated = ['-std=c++17', '-O2', '-fPIC', '-fvisibility=hidden', '-shared', '-Wall', '-Wextra'];

/** $NVCC, that of $CUDA_HOME, the one on PATH, or where NVIDIA's packages put it. */
export function findNvcc(environment: NodeJS.ProcessEnv = process.env): string | undefined {
  const { NVCC, CUDA_HOME } = environment;
  const places = [NVCC, CUDA_HOME && join(CUDA_HOME, 'bin/nvcc'), 'nvcc', '/usr/local/cuda/bin/nvcc'];
  return places.find((place) => place && spawnSync(place, ['--version'], { env: environment }).status === 0);
}

/** @throws Error in the compiler's words */
function compileHybridGemm(target: string, nvcc: string): void {
  const library = join(target, hybridGemmFile);
  compileLibrary({ sources, files, flags: architectures, language: by_nvcc, links: [], library }, nvcc);
}

/** @throws Error in the compiler's words */
export function compileEmulatedHybridGemm(target: string, compiler: string): void {
  const library = join(target, hybridGemmFile);
  // nvcc knows the pragmas of its loops.
  const flags = ['-Wno-unknown-pragmas', '-x', 'c++'];
  compileLibrary({ sources, files, flags, language: emulated, links: [], library }, compiler);
}

/**
 * @param target folder of the library
 * @param nvcc as `findNvcc` found it
 * @returns what was left out, and why; nothing where it is there, or no NVIDIA driver could use it
 */
export function compileCuda(target: string, nvcc: string | undefined): string[] {
  const lost = 'weights in host memory are copied to GPUs before they are multiplied';
  if (nvcc !== undefined) {
    try {
      compileHybridGemm(target, nvcc);
      return [];
    } catch (error) {
      return [`${(error as Error).message}: ${lost}`];
    }
  }
  rmSync(join(target, hybridGemmFile), { force: true });
  // Most machines have no GPU of NVIDIA's, and nothing to miss.
  return existsSync('/dev/nvidiactl') || existsSync('/dev/nvidia0')
    ? [`no nvcc (a CUDA toolkit; NVCC names it): ${lost}`]
    : [];
}
