import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import { printableName } from '../../spec/printable-name.ts';
import type { GatewayLog } from '../log.ts';
import { hashSecret } from './session-store.ts';

const accountSchema = z.object({
  format: z.literal(1),
  user: z.string(),
  issuer: z.string(),
  subject: z.string(),
});
type Account = Omit<z.infer<typeof accountSchema>, 'format'>;

/**
 * Which account of the provider each name belongs to: that of whoever came first with it. Issuer and subject alone are
 * promised never to be given to another (OpenID Connect Core, 5.7); names and addresses are given anew, and at some
 * providers people choose them.
 */
export class KnownAccounts {
  readonly #folder: string;
  readonly #log: GatewayLog;

  constructor(folder: string, log: GatewayLog) {
    this.#folder = folder;
    this.#log = log;
  }

  /** @throws E_LOGIN_ACCOUNT, E_GATEWAY_FOLDER */
  require(account: Account): void {
    const file = join(this.#folder, `account-${hashSecret(account.user)}.json`);
    const known = this.#read(file) ?? this.#make(file, account);
    if (known?.issuer === account.issuer && known.subject === account.subject && known.user === account.user)
      return;
    this.#log.warn({ user: account.user, file }, 'another account of the provider has this name');
    throw new HpcserveError('E_LOGIN_ACCOUNT', {
      what: `the name ${printableName(account.user)} belongs to another account here`,
      because: 'another account of the provider was signed in with it first',
    });
  }

  #read(file: string): Account | undefined {
    let text: string;
    try {
      text = readFileSync(file, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw this.#unusable(error);
    }
    try {
      return accountSchema.parse(JSON.parse(text));
    } catch (error) {
      // A damaged one is nobody's: the operator removes it.
      throw this.#unusable(error);
    }
  }

  /** Exclusively: of two accounts that come at once one is first. */
  #make(file: string, account: Account): Account | undefined {
    try {
      writeFileSync(file, `${JSON.stringify({ format: 1, ...account })}\n`, {
        flag: 'wx',
        mode: 0o600,
        flush: true,
      });
      return account;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') return this.#read(file);
      throw this.#unusable(error);
    }
  }

  #unusable(error: unknown): HpcserveError {
    return new HpcserveError('E_GATEWAY_FOLDER', {
      what: `the folder of sessions ${this.#folder} cannot be used`,
      because: (error as Error).message,
      cause: error,
    });
  }
}
