import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';

export const transferLibraryFile = 'libhpcserve-transfer.so';
export const fabricLibraryFile = 'libhpcserve-fabric.so';
/** Where the build puts them, also in an archive. */
export const transferLibraryPath = join(packageRoot, 'dist/native/fabric', transferLibraryFile);
export const fabricLibraryPath = join(packageRoot, 'dist/native/fabric', fabricLibraryFile);
