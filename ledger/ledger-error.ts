import Database from 'better-sqlite3';
import { HpcserveError } from '../spec/errors/error.ts';
import { isDamage } from './repair.ts';

/** SQLite's and the file system's errors in the words of the registry. */
export function ledgerError(error: unknown, path: string): HpcserveError {
  if (error instanceof HpcserveError) return error;
  const said = error instanceof Error ? error.message : String(error);
  const code =
    error instanceof Database.SqliteError ? error.code : String((error as NodeJS.ErrnoException).code);
  if (code.startsWith('SQLITE_BUSY') || code.startsWith('SQLITE_LOCKED')) {
    return new HpcserveError('E_LEDGER_BUSY', {
      what: `the ledger ${path} is in use`,
      because: said,
      cause: error,
    });
  }
  if (isDamage(error)) {
    return new HpcserveError('E_LEDGER_DAMAGED', {
      what: `the ledger ${path} is damaged`,
      because: said,
      cause: error,
    });
  }
  if (code.startsWith('SQLITE_') || /^E[A-Z]+$/.test(code)) {
    return new HpcserveError('E_LEDGER_WRITE', {
      what: `the ledger ${path} cannot be written`,
      because: `${said} (${code})`,
      cause: error,
    });
  }
  return HpcserveError.from(error);
}
