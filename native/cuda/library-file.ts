import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';

export const hybridGemmFile = 'libhpcserve-hybrid-gemm.so';
/** Where the build puts the library, where there is a compiler of CUDA. */
export const hybridGemmPath: string = join(packageRoot, 'dist/native/cuda', hybridGemmFile);
