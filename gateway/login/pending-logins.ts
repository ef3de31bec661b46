import type { AuthorizationChecks } from './provider.ts';

/** From the first click to the provider's answer. Higher: for people who look for their second factor. */
const open_ms = 15 * 60_000;
/** Sign-ins that are open at a time; beyond it the oldest end. Lower: less memory for strangers to take. */
const open_max = 2000;

export interface PendingLogin extends AuthorizationChecks {
  /** Of the gateway, as the browser sees it, with a slash at its end. */
  root: string;
}

/**
 * Sign-ins whose answer has not come. Each is known by the hash of a secret of the page that began it, and good for one
 * answer: whoever has the address of an answer, and not that page's storage, can do nothing with it.
 */
export class PendingLogins {
  readonly #open = new Map<string, { login: PendingLogin; until_ms: number }>();

  begin(page_hash: string, login: PendingLogin): void {
    this.#open.delete(page_hash);
    const [oldest] = this.#open.keys();
    if (this.#open.size >= open_max) this.#open.delete(oldest!);
    this.#open.set(page_hash, { login, until_ms: performance.now() + open_ms });
  }

  /** Ends the sign-in, which nobody can answer a second time. */
  take(page_hash: string): PendingLogin | undefined {
    const found = this.#open.get(page_hash);
    this.#open.delete(page_hash);
    return found && performance.now() < found.until_ms ? found.login : undefined;
  }
}
