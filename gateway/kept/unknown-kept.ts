import { HpcserveError } from '../../spec/errors/error.ts';
import { printableName } from '../../spec/printable-name.ts';

/** @param param of the request that names it; null: its path */
export function unknownKept(what: string, id: string, param: string | null): HpcserveError {
  return new HpcserveError('E_KEPT_UNKNOWN', {
    what: `no ${what} ${printableName(id)} is kept for this key`,
    details: { param },
  });
}
