import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { AccessTokens } from './access-token.ts';
import { failureReason } from './access-token.ts';

export interface ApiOptions {
  /** Its base, such as https://api.cscs.ch/hpc/firecrest/v2. */
  url: string;
  tokens: AccessTokens;
  timeout_ms: number;
  /** Requests in any second at most. Lower: kinder to a shared service; higher: commands end sooner. */
  requests_per_s: number;
}

export interface ApiRequest {
  method: 'GET' | 'POST' | 'DELETE';
  /** Below the base, parts encoded. */
  path: string;
  query?: Readonly<Record<string, string>>;
  json?: unknown;
  form?: FormData;
}

/** An answer of another status than 2xx, in FirecREST's words. */
export class ApiRefusal extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** Attempts in all, and the first pause, doubled each time. Higher: longer outages are outlived. */
const attempts_max = 4;
const pause_ms = 500;
/** A server that asks for more patience than this is away. */
const patience_ms = 30_000;
/** Not for the request's sake: FirecREST, what is before it, or its way to the cluster (424) is away for a while. */
const away: ReadonlySet<number> = new Set([408, 424, 502, 503, 504]);

const errorSchema = z.object({ message: z.string(), causedBy: z.array(z.string()).nullish() });

/**
 * Requests to FirecREST v2 (https://eth-cscs.github.io/firecrest-v2/openapi/): with a token, not too fast, and again
 * where that is safe. What may have changed something is never sent twice: only what the server says it has not taken
 * is.
 */
export class FirecrestApi {
  readonly #options: ApiOptions;
  #next_ms = 0;

  constructor(options: ApiOptions) {
    this.#options = options;
  }

  /**
   * @throws ApiRefusal where the request itself is refused, E_FIRECREST_ACCESS where the token is, E_SLURM_UNREACHABLE
   *   with `details.retryable` where nobody answers
   */
  async send(request: ApiRequest): Promise<Response> {
    const { tokens } = this.#options;
    let renewed = false;
    for (let attempt = 1; ; attempt++) {
      await this.#turn();
      const token = await tokens.get();
      let response: Response;
      try {
        response = await this.#fetch(request, token);
      } catch (error) {
        const because = failureReason(error);
        if (request.method === 'POST' || attempt >= attempts_max) throw this.#unreachable(because);
        await sleep(backoff(attempt));
        continue;
      }
      if (response.ok) return response;
      const words = await describeErrorAnswer(response);
      // A token that ended on the way: nothing was done with the request.
      if (response.status === 401 && !renewed) {
        renewed = true;
        tokens.forget();
        continue;
      }
      if (response.status === 401) throw this.#denied(words);
      const wait_ms = retryAfter_ms(response) ?? backoff(attempt);
      const taken = request.method === 'POST' && response.status !== 429;
      const transient = response.status === 429 || away.has(response.status);
      if (transient && (taken || attempt >= attempts_max || wait_ms > patience_ms))
        throw this.#unreachable(`it answered ${response.status}: ${words}`);
      if (!transient) throw new ApiRefusal(response.status, words);
      await sleep(wait_ms);
    }
  }

  async json<T>(request: ApiRequest, schema: z.ZodType<T>): Promise<T> {
    const response = await this.send(request);
    const body: unknown = await response.json().catch((error: unknown) => {
      // Half an answer to a question is none; of a submission it is known that there was one.
      if (request.method === 'GET')
        throw this.#unreachable(`its answer is not whole: ${failureReason(error)}`);
    });
    const read = schema.safeParse(body);
    if (read.success) return read.data;
    const [issue] = read.error.issues;
    throw new HpcserveError('E_SLURM_ANSWER', {
      what: `FirecREST answered ${request.method} ${request.path} in another form`,
      because: `${issue?.path.join('.') || 'the body'}: ${issue?.message}`,
      details: request.method === 'POST' ? { may_have_been_submitted: true } : {},
    });
  }

  async #fetch({ method, path, query, json, form }: ApiRequest, token: string): Promise<Response> {
    const { url, timeout_ms } = this.#options;
    const whole = new URL(`${url.replace(/\/+$/, '')}${path}`);
    for (const [name, value] of Object.entries(query ?? {})) whole.searchParams.set(name, value);
    const body = json === undefined ? form : JSON.stringify(json);
    return fetch(whole, {
      method,
      headers: {
        authorization: `Bearer ${token}`,
        accept: 'application/json',
        ...(json === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body }),
      // A redirect would carry the token elsewhere.
      redirect: 'error',
      signal: AbortSignal.timeout(timeout_ms),
    });
  }

  /** Requests stand in line, evenly spaced. */
  async #turn(): Promise<void> {
    const now_ms = performance.now();
    const at_ms = Math.max(now_ms, this.#next_ms);
    this.#next_ms = at_ms + 1000 / this.#options.requests_per_s;
    if (at_ms > now_ms) await sleep(at_ms - now_ms);
  }

  #unreachable(because: string): HpcserveError {
    return new HpcserveError('E_SLURM_UNREACHABLE', {
      what: `FirecREST at ${this.#options.url} cannot be reached`,
      because,
      try: 'look at the status page of the service, and whether this machine can reach it',
      details: { retryable: true },
    });
  }

  #denied(words: string): HpcserveError {
    return new HpcserveError('E_FIRECREST_ACCESS', {
      what: `FirecREST at ${this.#options.url} does not take the token`,
      because: words,
    });
  }
}

function backoff(attempt: number): number {
  return pause_ms * 2 ** (attempt - 1) * (0.75 + Math.random() / 2);
}

/** `Retry-After` in seconds or as a date (RFC 9110 §10.2.3). */
function retryAfter_ms(response: Response): number | undefined {
  const value = response.headers.get('retry-after');
  if (value === null) return undefined;
  if (/^\d+$/.test(value)) return Number(value) * 1000;
  const at_ms = Date.parse(value);
  return Number.isNaN(at_ms) ? undefined : Math.max(0, at_ms - Date.now());
}

/** FirecREST's message with its causes; of a proxy in front of it, the status alone. */
async function describeErrorAnswer(response: Response): Promise<string> {
  const read = errorSchema.safeParse(await response.json().catch(() => undefined));
  if (!read.success) return `${response.status} ${response.statusText}`.trim();
  return [read.data.message, ...(read.data.causedBy ?? [])].join('\n');
}
