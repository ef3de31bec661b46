import { readFileSync } from 'node:fs';
import type { CustomFetch } from 'openid-client';
import { Agent, type Dispatcher, EnvHttpProxyAgent, fetch } from 'undici';
import { isOfLoopback, type LoginSettings } from '../../spec/login-settings.ts';

/** Until the provider has answered a question. Lower: a provider that hangs is told of sooner. */
export const answer_s = 10;

/**
 * How the provider is asked: with the site's own authority where it names one, through the proxies of HTTPS_PROXY and
 * NO_PROXY, as login nodes need them.
 */
export function providerFetch({ issuer, ca_file }: Pick<LoginSettings, 'issuer' | 'ca_file'>): CustomFetch {
  const trusted = ca_file === undefined ? {} : { ca: readFileSync(ca_file, 'utf8') };
  const dispatcher: Dispatcher = isOfLoopback(issuer)
    ? new Agent({ connect: trusted })
    : new EnvHttpProxyAgent({ connect: trusted, requestTls: trusted });
  return (async (url, { method, headers, body, redirect, signal }) =>
    await fetch(url, {
      method,
      headers,
      body: body as string,
      redirect,
      signal: signal ?? null,
      dispatcher,
    })) as CustomFetch;
}
