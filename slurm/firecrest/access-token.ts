import { readFileSync, statSync } from 'node:fs';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';

export interface ClientCredentials {
  token_url: string;
  client_id: string;
  /** Where the secret is: one of the two. */
  secret: { file: string } | { variable: string; value: string | undefined };
}

/** A token is renewed so long before it ends, s: a request that takes its time must end within it. */
const margin_s = 30;
/** What a provider that does not say it is taken to give, s (Keycloak's own default). */
const lifetime_s_default = 60;

const answerSchema = z.object({
  access_token: z.string().min(1),
  token_type: z.string().regex(/^bearer$/i),
  expires_in: z.number().positive().optional(),
});

/**
 * Access tokens by the client-credentials grant (RFC 6749 §4.4), as an OIDC provider gives them. The secret stays in
 * its file or variable until a token is asked for, and neither is in any argument, log or error.
 */
export class AccessTokens {
  readonly #credentials: ClientCredentials;
  readonly #timeout_ms: number;
  #token: Promise<string> | undefined;
  #until_ms = 0;

  constructor(credentials: ClientCredentials, timeout_ms: number) {
    this.#credentials = credentials;
    this.#timeout_ms = timeout_ms;
  }

  /** @throws E_FIRECREST_ACCESS, E_SLURM_UNREACHABLE */
  get(): Promise<string> {
    if (this.#token && performance.now() < this.#until_ms) return this.#token;
    // While it is on its way everybody waits for the same one.
    this.#until_ms = Number.POSITIVE_INFINITY;
    const token = this.#ask();
    token.catch(() => this.forget());
    this.#token = token;
    return token;
  }

  /** The server takes it no more, whatever was said of its lifetime. */
  forget(): void {
    this.#token = undefined;
    this.#until_ms = 0;
  }

  async #ask(): Promise<string> {
    const { token_url, client_id } = this.#credentials;
    const form = new URLSearchParams({
      grant_type: 'client_credentials',
      client_id,
      client_secret: secretOf(this.#credentials),
    });
    let response: Response;
    let text: string;
    try {
      response = await fetch(token_url, {
        method: 'POST',
        body: form,
        headers: { accept: 'application/json' },
        redirect: 'error',
        signal: AbortSignal.timeout(this.#timeout_ms),
      });
      text = await response.text();
    } catch (error) {
      throw this.#away(failureReason(error));
    }
    // What it says may repeat what was sent: only its error word is shown (RFC 6749 §5.2).
    const body = parsed(text);
    const answer = answerSchema.safeParse(body);
    if (!response.ok || !answer.success) {
      const word = z.object({ error: z.string().regex(/^[a-z_]{1,60}$/) }).safeParse(body);
      const because = `it answered ${response.status}${word.success ? ` ${word.data.error}` : ''}`;
      const { status } = response;
      // The provider's trouble, not the client's.
      if (status >= 500 || status === 429 || status === 408) throw this.#away(because);
      throw new HpcserveError('E_FIRECREST_ACCESS', {
        what: `${token_url} gives no token to the client ${client_id}`,
        because,
      });
    }
    const { access_token, expires_in = lifetime_s_default } = answer.data;
    this.#until_ms = performance.now() + Math.max(1, expires_in - Math.min(margin_s, expires_in / 2)) * 1000;
    return access_token;
  }

  #away(because: string): HpcserveError {
    return new HpcserveError('E_SLURM_UNREACHABLE', {
      what: `${this.#credentials.token_url} gives no token`,
      because,
      details: { retryable: true },
    });
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @throws E_FIRECREST_ACCESS where it is not there, or others can read it */
function secretOf({ secret }: ClientCredentials): string {
  if ('variable' in secret) {
    if (secret.value) return secret.value;
    throw noSecret(`$${secret.variable} is not set`);
  }
  let text: string;
  try {
    const { mode } = statSync(secret.file);
    if ((mode & 0o077) !== 0)
      throw noSecret(`others can read ${secret.file}: its mode is ${(mode & 0o777).toString(8)}`);
    text = readFileSync(secret.file, 'utf8').trim();
  } catch (error) {
    if (error instanceof HpcserveError) throw error;
    throw noSecret(`${secret.file} cannot be read: ${(error as NodeJS.ErrnoException).code}`);
  }
  if (text === '') throw noSecret(`${secret.file} is empty`);
  return text;
}

function noSecret(because: string): HpcserveError {
  return new HpcserveError('E_FIRECREST_ACCESS', {
    what: 'the client secret of FirecREST is not to be had',
    because,
  });
}

/** Why a request came to nothing, in the words of the innermost cause. */
export function failureReason(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { name, message, cause } = error;
  if (name === 'TimeoutError') return 'it did not answer in time';
  return cause instanceof Error ? failureReason(cause) : message;
}
