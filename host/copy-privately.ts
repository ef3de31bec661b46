import { chmodSync, copyFileSync } from 'node:fs';

/** Copies a file so that its owner alone reads the copy, whatever the original's mode and the umask are. */
export function copyPrivately(from: string, to: string): void {
  copyFileSync(from, to);
  chmodSync(to, 0o600);
}
