/** A step of the build: see compile-kernels.ts. */
import { dirname } from 'node:path';
import { cpuKernelsPath } from '../native/cpu-kernels.ts';
import { compileKernels } from './compile-kernels.ts';

for (const line of compileKernels(dirname(cpuKernelsPath), process.env.CC || 'cc'))
  process.stderr.write(`${line}\n`);
