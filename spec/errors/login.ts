import { defineErrors } from './define.ts';

/** Signing in to the dashboard at an OpenID Connect provider. */
export const loginErrors = defineErrors({
  E_LOGIN_PROVIDER: {
    cause:
      'The OpenID Connect provider cannot be reached, or answers with something else than the protocol says.',
    fix: 'try again in a moment, or sign in with an API key; the operator of the gateway checks `gateway.login` of the site config, and whether the gateway’s host reaches the issuer',
    http_status: 503,
    exit_code: 7,
  },
  E_LOGIN_ISSUER: {
    cause: 'An answer at signing in comes from another issuer than the one of the site config.',
    fix: 'sign in again; where it stays, the operator sets `gateway.login.issuer` to what the provider’s discovery document has, letter by letter',
    http_status: 400,
    exit_code: 12,
  },
  E_LOGIN_CLIENT: {
    cause:
      'The provider does not know this gateway as its client, or the client secret cannot be read or is wrong.',
    fix: 'the operator checks `client_id` and `client_secret_file` (0600) of `gateway.login`, and how the client is registered',
    http_status: 502,
    exit_code: 12,
  },
  E_LOGIN_STATE: {
    cause:
      'What comes back from the provider belongs to no sign-in that this page has begun: it was used before, took too long, or the gateway was restarted meanwhile.',
    fix: 'sign in again, in the same tab',
    http_status: 400,
    exit_code: 2,
  },
  E_LOGIN_DENIED: {
    cause: 'The provider has signed nobody in: it was cancelled there, or refused.',
    fix: 'sign in again; where the provider refuses, ask those who run it',
    http_status: 403,
    exit_code: 12,
  },
  E_LOGIN_CODE: {
    cause: 'The provider does not take its own code again: it has expired or was used before.',
    fix: 'sign in again',
    http_status: 400,
    exit_code: 2,
  },
  E_LOGIN_TOKEN: {
    cause:
      'The provider’s ID token is not one for this sign-in: its nonce, signature, audience or time is wrong.',
    fix: 'sign in again; where it stays, the operator sets the clocks of provider and gateway right (`gateway.login.clock_skew_s`)',
    http_status: 400,
    exit_code: 12,
  },
  E_LOGIN_CLAIM: {
    cause: 'The provider does not say who it is that has signed in, by the claim that the site config names.',
    fix: 'the operator names another claim (`gateway.login.user_claim`), asks for the scope that brings it, or has the provider release it',
    http_status: 403,
    exit_code: 12,
  },
  E_LOGIN_ROLE: {
    cause: 'Whoever signed in is in no group that may use this gateway.',
    fix: 'ask the operator of the gateway, who maps groups to roles in `gateway.login.roles` of the site config',
    http_status: 403,
    exit_code: 12,
  },
  E_LOGIN_ACCOUNT: {
    cause: 'The name of a user is taken here by another account of the provider.',
    fix: 'ask the operator of the gateway: where the name has a new owner, they remove the file that the gateway’s log names',
    http_status: 403,
    exit_code: 12,
  },
  E_LOGIN_KEY: {
    cause: 'All keys of the user are blocked, revoked or expired, so that nothing can be done in this name.',
    fix: 'ask the operator of the gateway: `hpcserve keys unblock ID`, or `hpcserve keys create NAME --user NAME`',
    http_status: 403,
    exit_code: 12,
  },
  E_LOGIN_SESSION: {
    cause:
      'A session of the dashboard is not valid: it was signed out, has expired, or its user’s key is not valid any more.',
    fix: 'sign in again',
    http_status: 401,
    exit_code: 12,
  },
  E_LOGIN_ORIGIN: {
    cause:
      'A request with a session of the dashboard comes from another page than this gateway’s, or asks for what no page needs.',
    fix: 'use the dashboard that this gateway serves; programs use an API key. Behind a proxy that changes the Host header, the operator adds its address to `gateway.login.urls`',
    http_status: 403,
    exit_code: 12,
  },
});
