/** How the page asks the gateway that it came from. */

/** The gateway answered, with an error. */
export class GatewayError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.name = 'GatewayError';
    this.status = status;
    this.code = code;
  }

  /** The key, or the session, is not valid (any more). */
  get isSignedOut(): boolean {
    return this.code === 'E_REQUEST_KEY' || this.isSessionOver;
  }

  get isSessionOver(): boolean {
    return this.code === 'E_LOGIN_SESSION';
  }

  /** It will be refused the next time, too. */
  get isFinal(): boolean {
    return [401, 403, 404].includes(this.status);
  }
}

/** Nobody answered, or a proxy did for a gateway that is away. */
export class UnreachableError extends Error {
  constructor(because: string) {
    super(because);
    this.name = 'UnreachableError';
  }
}

/** The page lies in `dashboard/` below the gateway, whatever prefix is before that. */
export const gatewayRoot = new URL('../', location.href).href.replace(/[?#].*$/, '');

const proxyAway = new Set([502, 504]);

/** Before the secret of a page whose session is in a cookie: to the gateway it is no key. */
const ofSession = 'session:';

export function sessionSecret(page: string): string {
  return `${ofSession}${page}`;
}

export function isSession(secret: string | undefined): boolean {
  return secret?.startsWith(ofSession) === true;
}

export interface Ask {
  /** A key, the operator's token, or a `sessionSecret`; absent: what anybody may ask. */
  secret?: string;
  method?: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  body?: unknown;
  signal?: AbortSignal;
}

/**
 * Asks a path below the root, without a leading slash. The secret goes into a header, never into an address.
 *
 * @throws GatewayError, UnreachableError; what an abort throws
 */
export async function ask(
  path: string,
  { secret, method = 'GET', body, signal }: Ask = {},
): Promise<Response> {
  const headers = proofOf(secret);
  // A key goes alone: the cookie of a session would be of no use beside it.
  const credentials = secret === undefined || isSession(secret) ? 'same-origin' : 'omit';
  const init: RequestInit = { method, headers, cache: 'no-store', credentials, redirect: 'error' };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    headers['content-type'] = 'application/json';
    init.body = JSON.stringify(body);
  }
  let response: Response;
  try {
    response = await fetch(new URL(path, gatewayRoot), init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new UnreachableError((error as Error).message);
  }
  if (response.ok) return response;
  throw await errorOf(response);
}

export async function askJson<T>(path: string, request: Ask = {}): Promise<T> {
  const response = await ask(path, request);
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (request.signal?.aborted) throw error;
    throw new UnreachableError('the answer broke off');
  }
}

function proofOf(secret: string | undefined): Record<string, string> {
  if (secret === undefined) return {};
  return isSession(secret)
    ? { 'x-hpcserve-page': secret.slice(ofSession.length) }
    : { authorization: `Bearer ${secret}` };
}

async function errorOf(response: Response): Promise<Error> {
  const text = await response.text().catch(() => '');
  const known = envelopeOf(text);
  if (!known && proxyAway.has(response.status))
    return new UnreachableError(`a proxy answers ${response.status} in the gateway's place`);
  const { message = text.slice(0, 300) || response.statusText, code = String(response.status) } = known ?? {};
  return new GatewayError(response.status, response.headers.get('x-hpcserve-error') ?? code, message);
}

/** The part of OpenAI's envelope that people are shown. */
export function envelopeOf(text: string): { message: string; code: string } | undefined {
  try {
    const { error } = JSON.parse(text) as { error?: { message?: string; code?: string | null } };
    return error?.message === undefined ? undefined : { message: error.message, code: error.code ?? '' };
  } catch {
    // A proxy's page.
    return undefined;
  }
}
