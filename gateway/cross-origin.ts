import type { IncomingMessage, ServerResponse } from 'node:http';

/** How long a browser need not ask again. Lower: changes are seen sooner; higher: fewer questions. */
const asked_again_s = 7200;

/**
 * Lets web pages of listed origins ask with a key of their user (CORS:
 * https://fetch.spec.whatwg.org/#http-cors-protocol). The operator's paths are for no page.
 */
export class CrossOrigin {
  readonly #origins: ReadonlySet<string>;

  constructor(origins: readonly string[]) {
    this.#origins = new Set(origins);
  }

  /** Says in the answer that its page may read it. @returns whether all that was asked was that */
  take(request: IncomingMessage, response: ServerResponse): boolean {
    const { origin } = request.headers;
    if (this.#origins.size === 0 || origin === undefined || request.url?.startsWith('/hpcserve/'))
      return false;
    const any = this.#origins.has('*');
    if (!any) response.setHeader('vary', 'origin');
    if (!any && !this.#origins.has(origin)) return false;
    response.setHeader('access-control-allow-origin', any ? '*' : origin);
    response.setHeader('access-control-expose-headers', '*');
    if (request.method !== 'OPTIONS' || request.headers['access-control-request-method'] === undefined)
      return false;
    const asked = request.headers['access-control-request-headers'];
    response.setHeader('access-control-allow-methods', 'GET, POST, DELETE');
    // `*` stands for all but `authorization`.
    if (asked !== undefined && /^[\w\-, ]{1,2000}$/.test(asked))
      response.setHeader('access-control-allow-headers', asked);
    response.setHeader('access-control-max-age', String(asked_again_s));
    response.writeHead(204).end();
    return true;
  }
}
