import { chmodSync, existsSync, mkdirSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Makes a folder and those above it that are missing; one that is there is left as it is. Where the system refuses, the
 * error is the system's: Node's own recursive call says ENOENT of whatever it has no name for, such as a full quota.
 */
export function makeFolders(path: string, mode = 0o700): void {
  try {
    mkdirSync(path, { recursive: true, mode });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    let missing = path;
    while (!existsSync(dirname(missing))) missing = dirname(missing);
    mkdirSync(missing, mode);
    mkdirSync(path, { recursive: true, mode });
  }
}

/** A folder for its owner alone: one that is there already, with rights for others, is closed to them. */
export function makePrivateFolder(path: string): void {
  makeFolders(path);
  if ((statSync(path).mode & 0o077) !== 0) chmodSync(path, 0o700);
}
