import {
  allowInsecureRequests,
  authorizationCodeGrant,
  buildAuthorizationUrl,
  buildEndSessionUrl,
  type ClientAuth,
  ClientSecretBasic,
  ClientSecretPost,
  type Configuration,
  type CustomFetch,
  calculatePKCECodeChallenge,
  clockTolerance,
  customFetch,
  discovery,
  enableNonRepudiationChecks,
  fetchUserInfo,
  None,
  randomNonce,
  randomPKCECodeVerifier,
  randomState,
} from 'openid-client';
import { HpcserveError } from '../../spec/errors/error.ts';
import { isOfLoopback, type LoginSettings } from '../../spec/login-settings.ts';
import type { GatewayLog } from '../log.ts';
import { hasClaim } from './claims.ts';
import { readClientSecret } from './client-secret.ts';
import { loginError } from './login-error.ts';
import { answer_s, providerFetch } from './provider-fetch.ts';

/** How long what discovery brought is used. Lower: moves of the provider show sooner; higher: it is asked less. */
const known_ms = 60 * 60_000;
/** After a failure the provider is left alone for so long, whoever asks. */
const again_ms = 2000;

/** What one sign-in keeps until its answer comes. */
export interface AuthorizationChecks {
  redirect_uri: string;
  state: string;
  nonce: string;
  code_verifier: string;
}

/** Who has signed in, as the provider says. */
export interface Identity {
  issuer: string;
  subject: string;
  claims: Readonly<Record<string, unknown>>;
}

/** The OpenID Connect provider of a site: authorization code flow with PKCE. It is asked when somebody signs in. */
export class OidcProvider {
  readonly #settings: LoginSettings;
  readonly #log: GatewayLog;
  #known: { configuration: Configuration; at_ms: number } | undefined;
  #failed: { error: HpcserveError; at_ms: number } | undefined;
  #looking: Promise<Configuration> | undefined;
  #fetch: CustomFetch | undefined;

  constructor(settings: LoginSettings, log: GatewayLog) {
    this.#settings = settings;
    this.#log = log;
  }

  /** Where the browser goes to sign in, and what its answer will be held against. @throws E_LOGIN_* */
  async begin(redirect_uri: string): Promise<{ url: string; checks: AuthorizationChecks }> {
    const configuration = await this.#configuration();
    const checks: AuthorizationChecks = {
      redirect_uri,
      state: randomState(),
      nonce: randomNonce(),
      code_verifier: randomPKCECodeVerifier(),
    };
    const url = buildAuthorizationUrl(configuration, {
      redirect_uri,
      scope: [...new Set(['openid', ...this.#settings.scopes])].join(' '),
      state: checks.state,
      nonce: checks.nonce,
      code_challenge: await calculatePKCECodeChallenge(checks.code_verifier),
      code_challenge_method: 'S256',
    });
    return { url: url.href, checks };
  }

  /**
   * Takes the code of an answer whose state was found right to the provider.
   *
   * @throws E_LOGIN_*
   */
  async finish(answer: URLSearchParams, checks: AuthorizationChecks): Promise<Identity> {
    const configuration = await this.#configuration();
    this.#requireIssuer(answer, configuration);
    const { redirect_uri, state, nonce, code_verifier } = checks;
    const { issuer } = configuration.serverMetadata();
    try {
      const tokens = await authorizationCodeGrant(configuration, new URL(`${redirect_uri}?${answer}`), {
        expectedState: state,
        expectedNonce: nonce,
        pkceCodeVerifier: code_verifier,
        idTokenExpected: true,
      });
      const said = tokens.claims()!;
      const more = this.#isEnough(said)
        ? {}
        : await this.#userInfo(configuration, tokens.access_token, said.sub);
      return { issuer, subject: said.sub, claims: { ...more, ...said } };
    } catch (error) {
      throw loginError(error, this.#settings);
    }
  }

  /** The provider's own sign-out; undefined where it offers none, or cannot be asked. */
  async endSessionUrl(post_logout_redirect_uri: string): Promise<string | undefined> {
    try {
      const configuration = await this.#configuration();
      if (configuration.serverMetadata().end_session_endpoint === undefined) return undefined;
      return buildEndSessionUrl(configuration, { post_logout_redirect_uri }).href;
    } catch (error) {
      // Signed out here is signed out here.
      this.#log.warn(
        { reason: (error as Error).message },
        'the provider is not told that somebody signed out',
      );
      return undefined;
    }
  }

  /** What a request to another provider might be answered with (RFC 9207). @throws E_LOGIN_ISSUER */
  #requireIssuer(answer: URLSearchParams, configuration: Configuration): void {
    const { issuer, authorization_response_iss_parameter_supported: isNamed } =
      configuration.serverMetadata();
    const named = answer.get('iss');
    if (named === issuer || (named === null && isNamed !== true)) return;
    throw new HpcserveError('E_LOGIN_ISSUER', {
      what: 'the answer does not come from the provider that was asked',
      because: named === null ? 'it names no issuer' : 'it names another issuer',
    });
  }

  #isEnough(claims: Readonly<Record<string, unknown>>): boolean {
    const { user_claim, role_claim } = this.#settings;
    return [user_claim, role_claim].every((name) => name === undefined || hasClaim(claims, name));
  }

  async #userInfo(configuration: Configuration, access_token: string, subject: string): Promise<object> {
    if (configuration.serverMetadata().userinfo_endpoint === undefined) return {};
    return await fetchUserInfo(configuration, access_token, subject);
  }

  async #configuration(): Promise<Configuration> {
    const now_ms = performance.now();
    if (this.#known && now_ms - this.#known.at_ms < known_ms) return this.#known.configuration;
    if (this.#failed && now_ms - this.#failed.at_ms < again_ms) throw this.#failed.error;
    this.#looking ??= this.#discover().finally(() => {
      this.#looking = undefined;
    });
    return await this.#looking;
  }

  async #discover(): Promise<Configuration> {
    try {
      const configuration = await this.#ask();
      this.#known = { configuration, at_ms: performance.now() };
      this.#failed = undefined;
      return configuration;
    } catch (thrown) {
      const error = loginError(thrown, this.#settings);
      this.#log.warn({ error: error.toJSON() }, 'the provider of sign-ins cannot be used');
      // What was known an hour ago is better than nothing: the next steps show whether it holds.
      if (this.#known && error.code === 'E_LOGIN_PROVIDER') return this.#known.configuration;
      this.#failed = { error, at_ms: performance.now() };
      throw error;
    }
  }

  async #ask(): Promise<Configuration> {
    const { issuer, client_id, client_secret_file, clock_skew_s } = this.#settings;
    this.#fetch ??= providerFetch(this.#settings);
    const authentication =
      client_secret_file === undefined ? None() : byOfferedMethod(readClientSecret(client_secret_file));
    return await discovery(new URL(issuer), client_id, { [clockTolerance]: clock_skew_s }, authentication, {
      // Signatures of ID tokens are checked although TLS vouches for them: on loopback there is none.
      execute: [enableNonRepudiationChecks, ...(isOfLoopback(issuer) ? [allowInsecureRequests] : [])],
      timeout: answer_s,
      [customFetch]: this.#fetch,
    });
  }
}

/** In the header, as all providers must take it, or in the body for those that say that they take it there alone. */
function byOfferedMethod(secret: string): ClientAuth {
  const inHeader = ClientSecretBasic(secret);
  const inBody = ClientSecretPost(secret);
  return (server, ...rest) => {
    const offered = server.token_endpoint_auth_methods_supported ?? ['client_secret_basic'];
    return (offered.includes('client_secret_basic') ? inHeader : inBody)(server, ...rest);
  };
}
