import { readFileSync, statSync } from 'node:fs';
import { HpcserveError } from '../../spec/errors/error.ts';

/** The client's secret, read anew for each look at the provider, so that it can be changed. @throws E_LOGIN_CLIENT */
export function readClientSecret(file: string): string {
  const refuse = (because: string): HpcserveError =>
    new HpcserveError('E_LOGIN_CLIENT', {
      what: 'the client secret of the provider is not to be had',
      because,
    });
  let text: string;
  try {
    const { mode } = statSync(file);
    if ((mode & 0o077) !== 0)
      throw refuse(
        `others can read the file of gateway.login.client_secret_file: its mode is ${(mode & 0o777).toString(8)}`,
      );
    text = readFileSync(file, 'utf8').trim();
  } catch (error) {
    if (error instanceof HpcserveError) throw error;
    throw refuse(
      `the file of gateway.login.client_secret_file cannot be read: ${(error as NodeJS.ErrnoException).code}`,
    );
  }
  if (text === '') throw refuse('the file of gateway.login.client_secret_file is empty');
  return text;
}
