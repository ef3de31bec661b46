import { timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { dirname, join } from 'node:path';
import type { ApiKey, KeyStore, Ledger } from '../../ledger/index.ts';
import type { AuditEntry } from '../../spec/audit.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { LoginSettings } from '../../spec/login-settings.ts';
import type { GatewayConfig } from '../../spec/state-layout.ts';
import type { GatewayLog } from '../log.ts';
import { roleOf, userOf } from './claims.ts';
import { SessionCookie } from './cookie.ts';
import { KnownAccounts } from './known-accounts.ts';
import { isPageSecret, ownRoot, pageSecretOf, requireOwnPage } from './own-page.ts';
import { type PendingLogin, PendingLogins } from './pending-logins.ts';
import { type Identity, OidcProvider } from './provider.ts';
import { hashSecret, type LoginSession, SessionStore } from './session-store.ts';
import { actingKey, keyOfUser } from './user-key.ts';

const hour_ms = 3_600_000;
/** Of the folder's hash, in the name of the cookie. */
const gatewayId_digits = 12;

export interface LoginServices {
  keys: KeyStore;
  ledger: Ledger;
  log: GatewayLog;
}

/** What is sent with the answer to a request that begins or ends a session. */
export interface SessionChange {
  set_cookie: string;
}

/**
 * Signs people in to the dashboard.
 *
 * ```
 *   page                          gateway                           provider
 *   makes a secret, keeps it  ──► begin: state, nonce, PKCE
 *   goes to its address       ───────────────────────────────────►  asks who it is
 *   comes back with a code    ◄───────────────────────────────────
 *   secret and answer         ──► finish: state, issuer, code   ──► ID token
 *                                 user, role, key ─► session
 *   cookie and secret         ──► keyOf: both are needed
 * ```
 *
 * The secret stays in the page's storage, which browsers keep by host and port: the cookie alone, which they do not,
 * opens nothing, and an answer counts only for the page that asked.
 */
export class Login {
  readonly #settings: LoginSettings;
  readonly #services: LoginServices;
  readonly #provider: OidcProvider;
  readonly #pending = new PendingLogins();
  readonly #sessions: SessionStore;
  readonly #accounts: KnownAccounts;
  readonly #cookie: SessionCookie;
  /** Keys as sessions use them, as long as they do not change: filters and limits know them by what they are. */
  readonly #acting = new WeakMap<ApiKey, Map<LoginSession['role'], ApiKey>>();

  private constructor(settings: LoginSettings, folder: string, services: LoginServices) {
    this.#settings = settings;
    this.#services = services;
    this.#provider = new OidcProvider(settings, services.log);
    this.#sessions = SessionStore.open(folder, settings.idle_h * hour_ms);
    this.#accounts = new KnownAccounts(folder, services.log);
    this.#cookie = new SessionCookie(hashSecret(folder).slice(0, gatewayId_digits));
  }

  /** @throws E_GATEWAY_FOLDER */
  static open(
    { gateway_folder, logins_folder }: Pick<GatewayConfig, 'gateway_folder' | 'logins_folder'>,
    settings: LoginSettings,
    services: LoginServices,
  ): Login {
    return new Login(settings, logins_folder ?? join(dirname(gateway_folder), 'logins'), services);
  }

  /** What people call the provider. */
  get name(): string {
    return this.#settings.name;
  }

  /**
   * Begins a sign-in. @param root of the gateway, as the page sees it
   *
   * @returns where the browser goes
   * @throws E_LOGIN_*
   */
  async begin(request: IncomingMessage, page: string, root: string): Promise<string> {
    requireOwnPage(request, this.#settings.urls);
    const own = ownRoot(request, root);
    const { url, checks } = await this.#provider.begin(`${own}dashboard/`);
    this.#pending.begin(hashSecret(page), { ...checks, root: own });
    return url;
  }

  /**
   * Ends a sign-in with the provider's answer, and begins a session; one that the browser had ends.
   *
   * @param answer the query with which the provider sent the browser back
   * @throws E_LOGIN_*, E_KEY_FOLDER, E_LEDGER_*, E_GATEWAY_FOLDER
   */
  async finish(request: IncomingMessage, page: string, answer: string): Promise<SessionChange> {
    requireOwnPage(request, this.#settings.urls);
    const parameters = new URLSearchParams(answer);
    const pending = this.#pending.take(hashSecret(page));
    if (!pending || !isSame(parameters.get('state') ?? '', pending.state))
      throw new HpcserveError('E_LOGIN_STATE', {
        what: 'this answer belongs to no sign-in of this page',
        because: pending
          ? 'its state is another one'
          : 'none is open: it was answered, or began too long ago',
      });
    const identity = await this.#provider.finish(parameters, pending);
    const session = await this.#accept(identity, hashSecret(page), pending);
    const before = this.#cookie.idOf(request);
    if (before) this.#sessions.end(before.id);
    const secure = pending.root.startsWith('https:');
    const id = this.#sessions.create(session);
    const { user, role, key_id } = session;
    this.#services.log.info({ user, role, key: key_id }, 'signed in to the dashboard');
    return { set_cookie: this.#cookie.set(id, secure, (session.ends_at_ms - session.created_at_ms) / 1000) };
  }

  /** Ends a session. @returns also where the provider's own sign-out is, if it is to follow. @throws E_LOGIN_* */
  async end(request: IncomingMessage): Promise<SessionChange & { url?: string | undefined }> {
    const { session, id, secure } = await this.#require(request);
    this.#sessions.end(id);
    const { user, key_id, root } = session;
    this.#noteIfPossible({ actor: key_id, action: 'logout', subject: key_id, details: { user } });
    this.#services.log.info({ user, key: key_id }, 'signed out of the dashboard');
    const url = this.#settings.provider_logout
      ? await this.#provider.endSessionUrl(`${root}dashboard/`)
      : undefined;
    return { set_cookie: this.#cookie.clear(secure), url };
  }

  /**
   * The key as which a request of the dashboard acts; undefined where it is not one.
   *
   * @throws E_LOGIN_SESSION, E_LOGIN_ORIGIN
   */
  async keyOf(request: IncomingMessage): Promise<ApiKey | undefined> {
    if (pageSecretOf(request) === undefined) return undefined;
    return (await this.#require(request)).key;
  }

  /** Whether a request shows a session, as far as can be told at once: for what a connection is worth. */
  isKnown(request: IncomingMessage): boolean {
    const secret = pageSecretOf(request);
    const shown = secret === undefined ? undefined : this.#cookie.idOf(request);
    const session = shown && this.#sessions.known(shown.id);
    return session !== undefined && isSame(hashSecret(secret!), session.page_hash);
  }

  async #require(
    request: IncomingMessage,
  ): Promise<{ session: LoginSession; key: ApiKey; id: string; secure: boolean }> {
    requireOwnPage(request, this.#settings.urls);
    const refuse = (because: string): HpcserveError =>
      new HpcserveError('E_LOGIN_SESSION', { what: 'the session of this dashboard is not valid', because });
    const secret = pageSecretOf(request) ?? '';
    const shown = this.#cookie.idOf(request);
    if (!shown || !isPageSecret(secret)) throw refuse('the browser shows none');
    const session = await this.#sessions.use(shown.id);
    if (!session || !isSame(hashSecret(secret), session.page_hash))
      throw refuse('it was signed out, has expired, or belongs to another page');
    const key = await this.#actingKey(session);
    if (!key) throw refuse('the key of its user was blocked, revoked or has expired');
    return { session, key, ...shown };
  }

  async #actingKey({ key_id, role }: LoginSession): Promise<ApiKey | undefined> {
    const key = await this.#knownKey(key_id);
    if (!key) return undefined;
    const fresh = actingKey(key, role);
    if (!fresh) return undefined;
    const known = this.#acting.get(key) ?? new Map<LoginSession['role'], ApiKey>();
    this.#acting.set(key, known);
    const acting = known.get(role) ?? fresh;
    known.set(role, acting);
    return acting;
  }

  /** Also where another gateway has just made it; undefined where it is not there any more. */
  async #knownKey(id: string): Promise<ApiKey | undefined> {
    const { keys } = this.#services;
    const known = keyIn(keys, id);
    if (known) return known;
    await keys.lookForNew();
    return keyIn(keys, id);
  }

  /** Who that is here. A refusal of somebody whom the provider knows is noted. */
  async #accept(
    identity: Identity,
    page_hash: string,
    { root }: PendingLogin,
  ): Promise<Omit<LoginSession, 'format'>> {
    const { issuer, subject, claims } = identity;
    let user: string | undefined;
    try {
      user = userOf(claims, this.#settings);
      const role = roleOf(claims, this.#settings);
      this.#accounts.require({ user, issuer, subject });
      const key = await keyOfUser(user, { ...this.#services, new_user: this.#settings.new_user });
      const details = { user, role, issuer, subject };
      this.#services.ledger.audit({ actor: 'login', action: 'login', subject: key.id, details });
      const created_at_ms = Date.now();
      const ends_at_ms = created_at_ms + this.#settings.session_h * hour_ms;
      return { user, role, key_id: key.id, page_hash, root, issuer, subject, created_at_ms, ends_at_ms };
    } catch (error) {
      const known = HpcserveError.from(error);
      const details = { code: known.code, issuer, subject };
      this.#noteIfPossible({ actor: 'login', action: 'refuse', subject: user ?? '-', details });
      throw known;
    }
  }

  #noteIfPossible(entry: Omit<AuditEntry, 'time_ms'>): void {
    const { ledger, log } = this.#services;
    try {
      ledger.audit(entry);
    } catch (error) {
      log.error(
        { error, action: entry.action },
        'what was done about a sign-in cannot be noted in the ledger',
      );
    }
  }
}

function keyIn(keys: KeyStore, id: string): ApiKey | undefined {
  try {
    return keys.get(id);
  } catch (error) {
    if (error instanceof HpcserveError && error.code === 'E_KEY_UNKNOWN') return undefined;
    throw error;
  }
}

/** In a time that does not tell where they differ. */
function isSame(one: string, other: string): boolean {
  const [a, b] = [hashSecret(one), hashSecret(other)].map((text) => Buffer.from(text));
  return timingSafeEqual(a!, b!);
}
