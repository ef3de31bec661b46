/** What archives are made with, and what takes long to make: kept from one archive to the next in `build/package/`. */
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { moveIntoPlaceSync } from '../../host/move.ts';
import { packageRoot } from '../../host/package-root.ts';

export const keptFolder = join(packageRoot, 'build/package');

/**
 * The folder of this name, which `make` fills where it is not there. It comes into its place whole, so an archive that
 * is made at the same time, or one that was interrupted, leaves nothing half done.
 */
export function madeOnce(name: string, make: (folder: string) => void): string {
  const folder = join(keptFolder, name);
  if (existsSync(folder)) return folder;
  mkdirSync(keptFolder, { recursive: true });
  const partial = mkdtempSync(join(keptFolder, `.${name}-`));
  try {
    make(partial);
    // It travels in an archive that others unpack.
    chmodSync(partial, 0o755);
    moveIntoPlaceSync(partial, folder);
  } catch (error) {
    // Another was first, and what it made is the same.
    if (!['ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error;
  } finally {
    rmSync(partial, { recursive: true, force: true });
  }
  return folder;
}
