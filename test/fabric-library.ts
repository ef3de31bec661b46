import { existsSync } from 'node:fs';
import { dirname } from 'node:path';
import { compileFabric } from '../.ci/compile-fabric.ts';
import { fabricLibraryPath } from '../native/fabric/library-files.ts';
import { type Installation, installMissing } from './cluster/install.ts';

const header = '/usr/include/rdma/fabric.h';

/**
 * The library that moves KV by RDMA calls, for the suites that need it: libfabric's headers are installed where root on
 * Debian can, and what was built without them is compiled once more.
 */
export async function ensureFabricLibrary(say: (line: string) => void): Promise<Installation> {
  if (existsSync(fabricLibraryPath)) return { ready: true, installed: false };
  const absent = (): string[] => (existsSync(header) ? [] : [header]);
  const headers = await installMissing('headers', absent, ['libfabric-dev'], say);
  if (!headers.ready) return headers;
  const left_out = compileFabric(dirname(fabricLibraryPath), process.env.CC || 'cc');
  return left_out.length === 0
    ? { ready: true, installed: true }
    : { ready: false, missing: left_out.join('; ') };
}
