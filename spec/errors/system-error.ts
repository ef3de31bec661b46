/**
 * Errors of the operating system by their names. Node knows those of libuv only: of a full quota (EDQUOT) and of a file
 * that its server has forgotten (ESTALE), the two that shared filesystems add to a local disk's, it says no more than
 * `Unknown system error -122` or, in other calls, `UNKNOWN: unknown error`.
 */
import { constants } from 'node:os';
import { dirname } from 'node:path';

/** In some calls Node says it twice: as the code, and as what the code means. */
const nameless = /UNKNOWN: unknown error|Unknown system error -\d+(: Unknown system error -\d+)?/g;

const meanings: Readonly<Record<string, string>> = {
  EDQUOT: 'disk quota exceeded',
  ESTALE: 'stale file handle',
};

const names: ReadonlyMap<number, string> = new Map(
  Object.entries(constants.errno).map(([name, number]) => [number, name]),
);

/** `EDQUOT`, `ENOSPC`, …; undefined where it is no error of the system. */
export function systemCode(error: unknown): string | undefined {
  const { code, errno } = (error ?? {}) as NodeJS.ErrnoException;
  if (typeof code !== 'string') return undefined;
  return code.match(/^UNKNOWN$|^Unknown system error/) ? (names.get(-(errno ?? 0)) ?? code) : code;
}

/** The operating system refused something: no defect, and no error with a page of its own. */
export function isSystemError(error: unknown): error is NodeJS.ErrnoException {
  return error instanceof Error && typeof (error as NodeJS.ErrnoException).errno === 'number';
}

/** Its message with the name of the error in it, also where Node had none. */
export function systemMessage(error: unknown): string {
  return error instanceof Error ? namedIn(error.message, error) : String(error);
}

/** What was said because of an error, with the error's name in it. */
export function namedIn(said: string, error: unknown): string {
  const code = systemCode(error);
  if (code === undefined || code === (error as NodeJS.ErrnoException).code) return said;
  return said.replace(nameless, `${code}: ${meanings[code] ?? 'refused by the system'}`);
}

/** No room: the disk is full, or the owner's share of it is. */
export function isOutOfRoom(error: unknown): boolean {
  const code = systemCode(error);
  return code === 'ENOSPC' || code === 'EDQUOT';
}

/** What to do where a quota is full, which no command of the system says by itself; none for other errors. */
export function quotaAdvice(error: unknown): string[] {
  if (systemCode(error) !== 'EDQUOT') return [];
  const { path, dest } = error as NodeJS.ErrnoException & { dest?: string };
  const file = dest ?? path;
  const folder = file === undefined ? 'FOLDER' : dirname(file);
  return [
    `see your quota with: quota -s (on Lustre: lfs quota -h ${folder}), and remove files that count in it`,
    'put what grows onto another filesystem: state_dir (or --state-dir), models_dir and cache_dir in the site config',
  ];
}
