/** A step of the build: see compile-kernels.ts, compile-fabric.ts and compile-cuda.ts. */
import { dirname } from 'node:path';
import { cpuKernelsPath } from '../native/cpu-kernels-file.ts';
import { hybridGemmPath } from '../native/cuda/library-file.ts';
import { transferLibraryPath } from '../native/fabric/library-files.ts';
import { compileCuda, findNvcc } from './compile-cuda.ts';
import { compileFabric } from './compile-fabric.ts';
import { compileKernels } from './compile-kernels.ts';

const compiler = process.env.CC || 'cc';
const left_out = [
  ...compileKernels(dirname(cpuKernelsPath), compiler),
  ...compileFabric(dirname(transferLibraryPath), compiler),
  ...compileCuda(dirname(hybridGemmPath), findNvcc()),
];
for (const line of left_out) process.stderr.write(`${line}\n`);
