import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';

export const cpuKernelsFile = 'libhpcserve-kernels.so';
/** Where the build puts the library, also in an archive. */
export const cpuKernelsPath = join(packageRoot, 'dist/native/kernels', cpuKernelsFile);
