/** A real OpenID Connect provider in a process of its own, and who signs in there without a browser. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { Agent, type Dispatcher, fetch, ProxyAgent } from 'undici';
import { packageRoot } from '../../../host/package-root.ts';

const program = join(packageRoot, 'test/gateway/login/oidc-provider-process.mjs');

export interface ProviderSettings {
  /** By the name that is typed at the provider's page, which is the subject. */
  accounts: Record<string, Record<string, unknown>>;
  /** How long a code is valid. */
  code_s?: number;
  /** How far its clock goes wrong. */
  clock_offset_s?: number;
  /** Else they are at its userinfo endpoint alone. */
  claims_in_id_token?: boolean;
}

interface Started {
  issuer: string;
  port: number;
}

/** The provider: it listens from its start, and answers once it is opened. */
export class OidcProviderProcess implements AsyncDisposable {
  readonly issuer: string;
  readonly port: number;
  readonly #process: ChildProcess;

  private constructor({ issuer, port }: Started, child: ChildProcess) {
    this.issuer = issuer;
    this.port = port;
    this.#process = child;
  }

  /** @param tls PEM files with its certificate and key, and the name that it goes by; without, it speaks plain HTTP */
  static async start(tls: readonly string[] = []): Promise<OidcProviderProcess> {
    // It warns that it is for development alone.
    const child = fork(program, [...tls], { stdio: ['ignore', 'ignore', 'ignore', 'ipc'] });
    const [started] = (await once(child, 'message')) as [Started];
    return new OidcProviderProcess(started, child);
  }

  /** It answers from now on. @param redirects where it may send people who sign in and out */
  async open(redirects: readonly string[], settings: ProviderSettings, secret?: string): Promise<void> {
    const client: Record<string, unknown> = {
      client_id: 'hpcserve',
      redirect_uris: redirects,
      post_logout_redirect_uris: redirects,
      token_endpoint_auth_method: 'none',
    };
    if (secret !== undefined)
      Object.assign(client, { client_secret: secret, token_endpoint_auth_method: 'client_secret_basic' });
    const ready = once(this.#process, 'message');
    this.#process.send({ clients: [client], ...settings });
    await ready;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#process.signalCode !== null) return;
    const ended = once(this.#process, 'exit');
    this.#process.kill();
    await ended;
  }
}

/** Cookies of one visitor; there is one site alone. */
class Visitor {
  readonly #cookies = new Map<string, string>();
  readonly #dispatcher: Dispatcher;

  constructor(ca: string | undefined, proxy: string | undefined) {
    const trusted = ca === undefined ? {} : { ca };
    this.#dispatcher =
      proxy === undefined
        ? new Agent({ connect: trusted })
        : new ProxyAgent({ uri: proxy, requestTls: trusted });
  }

  async go(url: string, form?: Record<string, string>) {
    const cookie = [...this.#cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(url, {
      method: form ? 'POST' : 'GET',
      body: form ? new URLSearchParams(form) : null,
      headers: { cookie },
      redirect: 'manual',
      dispatcher: this.#dispatcher,
    });
    for (const line of answer.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(line)!;
      this.#cookies.set(name!, value!);
    }
    return answer;
  }
}

/**
 * Signs in at the provider's pages and agrees, or cancels.
 *
 * @returns the query with which it sends the browser back to the gateway
 */
export async function answerOfProvider(
  address: string,
  name: string | undefined,
  ca?: string,
  proxy?: string,
): Promise<string> {
  const visitor = new Visitor(ca, proxy);
  const { origin } = new URL(address);
  let answer = await visitor.go(address);
  for (let step = 0; step < 12; step++) {
    const location = answer.headers.get('location');
    if (location !== null) {
      const next = new URL(location, origin);
      if (next.origin !== origin) return next.search.slice(1);
      answer = await visitor.go(next.href);
      continue;
    }
    const page = await answer.text();
    const form = /action="([^"]+)"/.exec(page)?.[1];
    if (answer.status !== 200 || form === undefined)
      throw new Error(`the provider shows ${answer.status}: ${page.slice(0, 2000)}`);
    const target = new URL(form, origin).href;
    const isLogin = page.includes('name="login"');
    answer =
      name === undefined
        ? await visitor.go(`${target}/abort`)
        : await visitor.go(
            target,
            isLogin ? { prompt: 'login', login: name, password: 'any' } : { prompt: 'consent' },
          );
  }
  throw new Error('the provider never sends the browser back');
}
