import type { ExitCode } from './exit-codes.ts';

/** One entry of the error registry. `docs/errors.md` is held against these by a test, in both directions. */
export interface ErrorEntry {
  /** What kind of thing went wrong, in general. */
  cause: string;
  /** What to do, in general; a concrete error may say it more precisely. */
  fix: string;
  /** HTTP status when the gateway or an agent answers with it. */
  http_status: number;
  /** Exit code of a command that ends with it. */
  exit_code: ExitCode;
}

/** Keeps the literal keys of a room's entries while checking their shape. */
export function defineErrors<const T extends Record<`E_${string}`, ErrorEntry>>(entries: T): T {
  return entries;
}
