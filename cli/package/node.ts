/** The Node of the archive, as its makers compile it: from the npm registry, with the headers for addons. */
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { TargetArchitecture } from './architectures.ts';
import { madeOnce } from './made-once.ts';
import { run } from './run.ts';

/** Of the line with the longest support. Its binary asks for glibc 2.28, and for the C++ library of GCC 7. */
export const nodeVersion = '24.21.0';

/** What the registry has to bring. */
const sha512: Record<TargetArchitecture, string> = {
  x64: '3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==',
  arm64: 'FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g==',
};

/** Folder with `bin/node`, `include/node` and its license. */
export function packagedNode(arch: TargetArchitecture): string {
  return madeOnce(`node-${nodeVersion}-${arch}`, (folder) =>
    unpackPackage(`node-linux-${arch}`, nodeVersion, folder, sha512[arch]),
  );
}

/**
 * Unpacks a package of the npm registry into `folder`.
 * @param digest base64 of the SHA-512 that its file has to have; absent: npm alone checks it
 */
export function unpackPackage(name: string, version: string, folder: string, digest?: string): void {
  mkdirSync(folder, { recursive: true });
  run(['npm', 'pack', `${name}@${version}`, '--pack-destination', folder, '--loglevel=error'], folder);
  const file = readdirSync(folder).find((entry) => entry.endsWith('.tgz'));
  if (file === undefined)
    throw new HpcserveError('E_PACKAGE', { what: `npm brought no archive of ${name}@${version}` });
  const archive = join(folder, file);
  const found = createHash('sha512').update(readFileSync(archive)).digest('base64');
  if (digest !== undefined && found !== digest)
    throw new HpcserveError('E_PACKAGE', {
      what: `${name}@${version} is not what it was when it was chosen`,
      because: `its SHA-512 is ${found}, and ${digest} was expected`,
    });
  run(['tar', '-xzf', archive, '-C', folder, '--strip-components=1'], folder);
  rmSync(archive);
}
