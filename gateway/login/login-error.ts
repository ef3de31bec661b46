/** What went wrong between gateway and provider, in words of the registry. Tokens, codes and secrets are in none. */
import {
  AuthorizationResponseError,
  ClientError,
  ResponseBodyError,
  WWWAuthenticateChallengeError,
} from 'openid-client';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { LoginSettings } from '../../spec/login-settings.ts';
import { printableName } from '../../spec/printable-name.ts';

const wrongClient: readonly string[] = ['invalid_client', 'unauthorized_client'];

export function loginError(error: unknown, { issuer, client_id }: LoginSettings): HpcserveError {
  if (error instanceof HpcserveError) return error;
  if (error instanceof AuthorizationResponseError)
    return new HpcserveError('E_LOGIN_DENIED', {
      what: 'the provider has signed nobody in',
      because: saidBy(error),
    });
  if (error instanceof ResponseBodyError && error.error === 'invalid_grant')
    return new HpcserveError('E_LOGIN_CODE', {
      what: 'the provider does not take its code',
      because: saidBy(error),
    });
  const isClient = error instanceof ResponseBodyError && wrongClient.includes(error.error);
  if (isClient || (error instanceof WWWAuthenticateChallengeError && error.status === 401))
    return new HpcserveError('E_LOGIN_CLIENT', {
      what: `the provider does not take this gateway for its client ${client_id}`,
      because: isClient ? saidBy(error) : [],
    });
  if (error instanceof ResponseBodyError) return away(issuer, saidBy(error));
  return error instanceof ClientError ? ofProtocol(error, issuer) : away(issuer, innermost(error));
}

function ofProtocol(error: ClientError, issuer: string): HpcserveError {
  const { claim, attribute } = compared(error);
  switch (error.code) {
    case 'OAUTH_JSON_ATTRIBUTE_COMPARISON_FAILED':
      if (attribute === 'issuer')
        return new HpcserveError('E_LOGIN_ISSUER', {
          what: `the discovery document at ${issuer} is of another issuer`,
          because: error.message,
        });
      return wrongToken(`its ${attribute ?? 'answer'} is of another`);
    case 'OAUTH_JWT_TIMESTAMP_CHECK_FAILED':
      return wrongToken(
        `it has expired or is not valid yet (${innermost(error)}): the clocks of provider and gateway may differ`,
      );
    case 'OAUTH_JWT_CLAIM_COMPARISON_FAILED':
      return wrongToken(`its ${claim ?? 'claim'} is not the one that was asked for`);
    case 'OAUTH_INVALID_RESPONSE':
    case 'OAUTH_PARSE_ERROR':
    case 'OAUTH_KEY_SELECTION_FAILED':
      return wrongToken(innermost(error));
    default:
      return away(issuer, innermost(error));
  }
}

function wrongToken(because: string): HpcserveError {
  return new HpcserveError('E_LOGIN_TOKEN', {
    what: 'the provider’s ID token is not one for this sign-in',
    because,
  });
}

function away(issuer: string, because: string | string[]): HpcserveError {
  return new HpcserveError('E_LOGIN_PROVIDER', { what: `the provider ${issuer} cannot be used`, because });
}

/** What was compared, as oauth4webapi keeps it below its errors. */
function compared(error: ClientError): { claim?: string; attribute?: string } {
  let below: unknown = error.cause;
  while (below instanceof Error) below = below.cause;
  const { claim, attribute } = (below ?? {}) as Record<string, unknown>;
  const found: { claim?: string; attribute?: string } = {};
  if (typeof claim === 'string') found.claim = claim;
  if (typeof attribute === 'string') found.attribute = attribute;
  return found;
}

/** The provider's word, which for all that is known here anybody may have written. */
function saidBy({
  error,
  error_description,
}: Pick<ResponseBodyError, 'error' | 'error_description'>): string {
  const said = error_description === undefined ? error : `${error}, ${error_description}`;
  return `it says ${printableName(said)}`;
}

function innermost(error: unknown): string {
  if (!(error instanceof Error)) return 'it answers with something unexpected';
  return error.cause instanceof Error ? innermost(error.cause) : printableName(error.message);
}
