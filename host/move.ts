/**
 * Renames that are not the end of a write: what is whole already gets another name. Within one filesystem, in one step.
 */
import { renameSync } from 'node:fs';
import { rename } from 'node:fs/promises';

/** Something that was made under another name takes its place, and that of what is there. Not forced to disk. */
export function moveIntoPlaceSync(from: string, path: string): void {
  renameSync(from, path);
}

export function moveIntoPlace(from: string, path: string): Promise<void> {
  return rename(from, path);
}

/**
 * What is in the way keeps its content under another name, where somebody may look at it later.
 * @returns whether there was anything
 */
export function moveAside(path: string, aside: string): boolean {
  try {
    renameSync(path, aside);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return false;
    throw error;
  }
}
