/** Whether a request comes from the dashboard of this gateway, and what it carries of its session. */
import type { IncomingMessage } from 'node:http';
import { HpcserveError } from '../../spec/errors/error.ts';
import { headers } from '../../spec/wire.ts';

/** What the dashboard asks. Orders to nodes and pipelines are not among it: a session needs no more than its page. */
const pagePaths = /^\/(v1\/|hpcserve\/v1\/(me|keys|usage|jobs|devices|login)\b|mesh\/table\b|metrics\b)/;
const secretForm = /^[\w-]{43}$/;

/** The secret of the page, where the request says that it comes from one. */
export function pageSecretOf({ headers: sent }: IncomingMessage): string | undefined {
  const secret = sent[headers.page];
  return typeof secret === 'string' ? secret : undefined;
}

export function isPageSecret(secret: string): boolean {
  return secretForm.test(secret);
}

/**
 * Refuses what another page may have had a browser send. No form and no link can set the header of the page; that
 * scripts of other origins cannot either is the browser's promise, and `Origin` its word for it.
 *
 * @param urls further addresses of this gateway
 * @throws E_LOGIN_ORIGIN
 */
export function requireOwnPage(
  { method, headers: sent, url = '' }: IncomingMessage,
  urls: readonly string[],
): void {
  const refuse = (because: string): HpcserveError =>
    new HpcserveError('E_LOGIN_ORIGIN', {
      what: 'the session of a dashboard is for its own gateway alone',
      because,
    });
  if (!pagePaths.test(url)) throw refuse('no page needs this path');
  const site = sent['sec-fetch-site'];
  if (site !== undefined && site !== 'same-origin') throw refuse('the browser says that another page asks');
  const { origin, host } = sent;
  if (origin === undefined) {
    if (method === 'GET' || method === 'HEAD') return;
    throw refuse('the request does not say which page asks (Origin)');
  }
  if (!isOwnOrigin(origin, host, urls)) throw refuse('the request comes from another page (Origin)');
}

/** Of a name with a port: other ports of the same host are other people's. */
function isOwnOrigin(origin: string, host: string | undefined, urls: readonly string[]): boolean {
  if (!URL.canParse(origin)) return false;
  if (urls.some((url) => new URL(url).origin === origin)) return true;
  return host !== undefined && new URL(origin).host === host.toLowerCase();
}

/**
 * Where browsers find the gateway: what the page says, as far as it is the page's own origin.
 *
 * @throws E_LOGIN_ORIGIN
 */
export function ownRoot({ headers: { origin } }: IncomingMessage, root: string): string {
  const url = URL.canParse(root) ? new URL(root) : undefined;
  if (url && url.origin === origin && url.pathname.endsWith('/')) return `${url.origin}${url.pathname}`;
  throw new HpcserveError('E_LOGIN_ORIGIN', {
    what: 'the page says that the gateway is somewhere else than the page itself',
  });
}
