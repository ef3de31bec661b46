/** Names of what is made beside its place and renamed into it, which nobody else has heard of. */
import { randomBytes } from 'node:crypto';
import { dirname, join } from 'node:path';

/** Names of files that are not whole yet begin so. */
export const temporaryPrefix = '.tmp-';

/** Beside the target, for only within a filesystem rename is one step. */
export function temporaryBeside(path: string): string {
  return join(dirname(path), `${temporaryPrefix}${randomBytes(8).toString('hex')}`);
}

/** The error as if it were of the target: so it says what could not be written, and the same each time. */
export function spokenOf(path: string, temporary: string, error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  const named = error as NodeJS.ErrnoException;
  named.message = named.message.replaceAll(temporary, path);
  if (named.path?.startsWith(temporary)) named.path = path;
  return named;
}
