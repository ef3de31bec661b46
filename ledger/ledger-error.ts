import { randomBytes } from 'node:crypto';
import { rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import Database from 'better-sqlite3';
import { HpcserveError } from '../spec/errors/error.ts';
import { systemCode, systemMessage } from '../spec/errors/system-error.ts';
import { isDamage } from './repair.ts';

/** SQLite's and the file system's errors in the words of the registry. */
export function ledgerError(error: unknown, path: string): HpcserveError {
  if (error instanceof HpcserveError) return error;
  const said = error instanceof Error ? error.message : String(error);
  const code = error instanceof Database.SqliteError ? error.code : String(systemCode(error));
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
    const refused = vague.test(code) ? refusalOf(dirname(path)) : undefined;
    return new HpcserveError('E_LEDGER_WRITE', {
      what: `the ledger ${path} cannot be written`,
      because: [...(refused ? [refused.words] : []), `${said} (${code})`],
      cause: refused?.error ?? error,
    });
  }
  return HpcserveError.from(error);
}

/** What SQLite calls by one name, whatever the system said: of a full quota it knows no more than “disk I/O error”. */
const vague = /^SQLITE_(IOERR|FULL|CANTOPEN)/;
/** More than a filesystem may have left over in what it has given to a file already. */
const probe_bytes = 16 * 1024;

/** What the system says when something is written into the folder now; undefined where it takes it. */
function refusalOf(folder: string): { words: string; error: unknown } | undefined {
  const probe = join(folder, `.${randomBytes(6).toString('hex')}.probe`);
  try {
    writeFileSync(probe, Buffer.alloc(probe_bytes), { flag: 'wx', mode: 0o600, flush: true });
    return undefined;
  } catch (error) {
    // Without the name of the file: the same trouble is the same words.
    return { words: `${folder}: ${systemMessage(error).replace(/, \w+( '.*')?$/, '')}`, error };
  } finally {
    rmSync(probe, { force: true });
  }
}
