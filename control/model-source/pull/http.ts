/** Requests of a download: redirects followed by hand, so that a token never reaches another host. */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Dispatcher, EnvHttpProxyAgent, request } from 'undici';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { withoutSecrets } from '../parse-source.ts';

export interface HttpOptions {
  /** Sent to the origin of the first address only; never in messages. */
  token?: string;
  signal?: AbortSignal;
  /** How often a failed request is tried again without progress before giving up. */
  retries?: number;
  /** Longest silence of a connection, ms. Lower: stuck downloads resume sooner; higher: patience with slow storage. */
  idle_timeout_ms?: number;
  /** First pause before another try, ms; doubles each time, up to half a minute. */
  retry_pause_ms?: number;
}

export interface HttpAnswer {
  status: number;
  headers: Readonly<Record<string, string>>;
  body: Dispatcher.ResponseData['body'];
  /** After redirects. */
  url: URL;
}

const redirects_max = 10;
const defaults = { retries: 5, idle_timeout_ms: 60_000, retry_pause_ms: 500 };

/** Proxies come from HTTP_PROXY, HTTPS_PROXY and NO_PROXY, as everywhere. */
let dispatcher: Dispatcher | undefined;

/** Answer of the first address that does not redirect (all of them, or those to the same host only). */
export async function httpRequest(
  method: 'GET' | 'HEAD',
  start: URL,
  headers: Readonly<Record<string, string>>,
  options: HttpOptions,
  follow: 'all' | 'same-host' = 'all',
): Promise<HttpAnswer> {
  dispatcher ??= new EnvHttpProxyAgent();
  let url = start;
  for (let hop = 0; hop <= redirects_max; hop++) {
    const idle = options.idle_timeout_ms ?? defaults.idle_timeout_ms;
    const response = await request(url, {
      method,
      dispatcher,
      headers: {
        'user-agent': 'hpcserve',
        'accept-encoding': 'identity',
        ...headers,
        ...(options.token && url.origin === start.origin ? { authorization: `Bearer ${options.token}` } : {}),
      },
      headersTimeout: idle,
      bodyTimeout: idle,
      ...(options.signal ? { signal: options.signal } : {}),
    }).catch((error: unknown) => {
      throw lastingFailure(url, error) ?? error;
    });
    const answer = {
      status: response.statusCode,
      headers: flatten(response.headers),
      body: response.body,
      url,
    };
    const location = answer.headers.location;
    if (response.statusCode < 300 || response.statusCode >= 400 || location === undefined) return answer;
    const next = new URL(location, url);
    if (follow === 'same-host' && next.host !== url.host) return answer;
    await response.body.dump();
    if (url.protocol === 'https:' && next.protocol !== 'https:') {
      throw new HpcserveError('E_MODEL_PULL', {
        what: `${withoutSecrets(url)} redirects to an unencrypted address`,
        because: `to ${withoutSecrets(next)}`,
      });
    }
    url = next;
  }
  throw new HpcserveError('E_MODEL_PULL', {
    what: `${withoutSecrets(start)} redirects more than ${redirects_max} times`,
  });
}

/** What a failed attempt means: another try after a pause, or the end. */
export class RetryPolicy {
  readonly #options: HttpOptions;
  #failures = 0;

  constructor(options: HttpOptions) {
    this.#options = options;
  }

  /** Bytes arrived: the count of failures begins anew. */
  progressed(): void {
    this.#failures = 0;
  }

  /** Pauses, or throws E_MODEL_PULL_NETWORK when the tries are used up. */
  async failed(url: URL, reason: string, retry_after_s?: number): Promise<void> {
    this.#failures++;
    const retries = this.#options.retries ?? defaults.retries;
    if (this.#failures > retries) {
      throw new HpcserveError('E_MODEL_PULL_NETWORK', {
        what: `the download from ${url.host} failed ${this.#failures} times in a row`,
        because: reason,
      });
    }
    const pause = (this.#options.retry_pause_ms ?? defaults.retry_pause_ms) * 2 ** (this.#failures - 1);
    const pause_ms =
      retry_after_s === undefined ? Math.min(30_000, pause) : Math.min(120, retry_after_s) * 1000;
    await sleep(pause_ms, undefined, this.#options.signal ? { signal: this.#options.signal } : {});
  }
}

/** Whether a request that gave this status may succeed later. */
export function isTemporary(status: number): boolean {
  return status === 408 || status === 425 || status === 429 || status >= 500;
}

export function pauseAsked_s(headers: Readonly<Record<string, string>>): number | undefined {
  const value = Number(headers['retry-after']);
  return Number.isFinite(value) && value >= 0 ? value : undefined;
}

/** A final error answer in the user's words. */
export function refusal(url: URL, answer: HttpAnswer, hasToken: boolean): HpcserveError {
  const words = answer.headers['x-error-message'];
  const because = [`${url.host} answered ${answer.status}${words ? `: ${words}` : ''}`];
  const advice: string[] = [];
  if (answer.status === 401 || answer.status === 403) {
    advice.push(
      hasToken
        ? 'the token was refused: accept the licence on the page of the model, or make a new token'
        : 'set HF_TOKEN (or HF_TOKEN_PATH) if the model is gated or private',
    );
  }
  if (answer.status === 404) advice.push('check the name, the revision and the file for typing errors');
  return new HpcserveError('E_MODEL_PULL', {
    what: `${withoutSecrets(url)} cannot be downloaded`,
    because,
    ...(advice.length > 0 ? { try: advice } : {}),
    details: { status: answer.status },
  });
}

function flatten(headers: Record<string, string | string[] | undefined>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [
      name.toLowerCase(),
      Array.isArray(value) ? value.join(', ') : (value ?? ''),
    ]),
  );
}

/** What no other try would change: a proxy that refuses the host, or a certificate that is not trusted. */
function lastingFailure(url: URL, error: unknown): HpcserveError | undefined {
  if (!(error instanceof Error)) return undefined;
  const status = proxyStatus(error);
  if (status !== undefined && !isTemporary(status)) {
    return new HpcserveError('E_MODEL_PULL_NETWORK', {
      what: `the proxy does not connect to ${url.host}`,
      because: `it answered ${status}`,
      try:
        status === 407
          ? 'give HTTPS_PROXY the user and the password: http://USER:PASSWORD@HOST:PORT'
          : 'check HTTPS_PROXY; name the host in NO_PROXY if it is reached without a proxy, else ask the site to allow it',
      details: { status },
      cause: error,
    });
  }
  if (!distrust.test(codeOf(error) ?? '')) return undefined;
  return new HpcserveError('E_MODEL_PULL_NETWORK', {
    what: `the certificate of ${url.host} is not trusted`,
    because: error.cause instanceof Error ? error.cause.message : error.message,
    try: [
      'if a proxy of the site inspects TLS, name the certificate of its authority: NODE_EXTRA_CA_CERTS=FILE.pem',
      'else check the address, HTTPS_PROXY and the clock of this host',
    ],
    cause: error,
  });
}

/** What the proxy answered to CONNECT; undici says it in the message alone. */
function proxyStatus(error: Error): number | undefined {
  const status = /^Proxy response \((\d{3})\)/.exec(error.message)?.[1];
  return status === undefined ? undefined : Number(status);
}

/** What OpenSSL and Node call a certificate that does not hold. */
const distrust =
  /^(CERT_|SELF_SIGNED_CERT|DEPTH_ZERO_SELF_SIGNED_CERT|UNABLE_TO_(GET|VERIFY)_|INVALID_CA$|ERR_TLS_CERT_|UND_ERR_PRX_TLS$)/;

function codeOf(error: Error): string | undefined {
  const code =
    (error as NodeJS.ErrnoException).code ?? (error.cause as NodeJS.ErrnoException | undefined)?.code;
  return typeof code === 'string' ? code : undefined;
}

/**
 * Whether an error thrown by a request or its body is one of the network. The user's abort looks like a connection that
 * undici gave up: look at the signal first.
 */
export function isNetworkError(error: unknown): error is Error {
  if (!(error instanceof Error) || error instanceof HpcserveError) return false;
  return /^(UND_ERR_|ECONN|EPIPE|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|HPE_|ERR_TLS|ERR_SSL)/.test(
    codeOf(error) ?? '',
  );
}
