/** The dashboard's part of a sign-in, as its page does it, without a browser. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Agent, fetch as fetchBy } from 'undici';
import { type LoginSettings, loginSchema } from '../../../spec/login-settings.ts';
import { type Stage, startStage } from '../support.ts';
import { answerOfProvider, OidcProviderProcess, type ProviderSettings } from './oidc-provider.ts';

export type Made = { id: string; key: string; name: string; parent_id?: string };

export const accounts: ProviderSettings['accounts'] = {
  alice: { preferred_username: 'alice', groups: ['users'], email: 'alice@example.org', email_verified: true },
  bob: { preferred_username: 'bob', groups: ['users'], email: 'bob@example.org', email_verified: false },
  olga: { preferred_username: 'olga', groups: ['users', 'hpc-admins'] },
  // Another account that says it is Alice.
  mallory: { preferred_username: 'alice', groups: ['users'] },
  nobody: { groups: ['users'] },
  carol: { preferred_username: 'carol', groups: ['vendors'] },
  kim: { preferred_username: 'kim', groups: [] },
  guest: { preferred_username: 'guest', groups: ['guests'] },
};

/** One page in one browser: its secret, and the cookie that the gateway gave. */
export class LoginPage {
  readonly url: string;
  readonly secret = randomBytes(32).toString('base64url');
  readonly #dispatcher: Agent | undefined;
  cookie = '';

  /** @param ca that vouches for the gateway, where none that is known does */
  constructor(url: string, ca?: string) {
    this.url = url;
    if (ca !== undefined) this.#dispatcher = new Agent({ connect: { ca } });
  }

  /** As the browser sends what the page asks. */
  async ask(
    path: string,
    method = 'GET',
    body?: unknown,
    more: Record<string, string> = {},
  ): Promise<Response> {
    const headers: Record<string, string> = {
      'x-hpcserve-page': this.secret,
      'sec-fetch-site': 'same-origin',
      cookie: `other=1; ${this.cookie}`,
    };
    if (method !== 'GET') headers.origin = this.url;
    if (body !== undefined) headers['content-type'] = 'application/json';
    const init = {
      method,
      headers: { ...headers, ...more },
      body: body === undefined ? null : JSON.stringify(body),
    };
    if (!this.#dispatcher) return await fetch(this.url + path, init);
    return (await fetchBy(this.url + path, { ...init, dispatcher: this.#dispatcher })) as unknown as Response;
  }

  begin(root = `${this.url}/`): Promise<Response> {
    return this.ask('/hpcserve/v1/login/begin', 'POST', { page: this.secret, root });
  }

  /** Where the browser is to sign in. */
  async address(): Promise<string> {
    const answer = await this.begin();
    if (!answer.ok) throw new Error(await answer.text());
    return ((await answer.json()) as { url: string }).url;
  }

  async finish(answer: string): Promise<Response> {
    const got = await this.ask('/hpcserve/v1/login/finish', 'POST', { page: this.secret, answer });
    const [line] = got.headers.getSetCookie();
    if (line !== undefined) this.cookie = line.split(';')[0]!;
    return got;
  }

  /** All of it. */
  async signIn(name: string | undefined): Promise<Response> {
    return await this.finish(await answerOfProvider(await this.address(), name));
  }
}

export interface LoginStage extends AsyncDisposable {
  stage: Stage;
  provider: OidcProviderProcess;
  page(): LoginPage;
}

/** A gateway whose people sign in at a provider. @param settings without `issuer`: the provider's */
export async function startLoginStage(
  settings: Partial<LoginSettings> = {},
  provided: Partial<ProviderSettings> = {},
  client: { at_gateway?: string; at_provider?: string; mode?: number } = {},
): Promise<LoginStage> {
  const provider = await OidcProviderProcess.start();
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-login-test-'));
  const login = loginSchema.parse({
    issuer: provider.issuer,
    name: 'Test University',
    client_id: 'hpcserve',
    role_claim: 'groups',
    roles: { operator: ['hpc-admins'], provider: ['vendors'] },
    ...settings,
  });
  if (client.at_gateway !== undefined) {
    login.client_secret_file = join(folder, 'client.secret');
    writeFileSync(login.client_secret_file, `${client.at_gateway}\n`, { mode: client.mode ?? 0o600 });
  }
  const stage = await startStage({}, { login });
  await provider.open([`${stage.url}/dashboard/`], { accounts, ...provided }, client.at_provider);
  return {
    stage,
    provider,
    page: () => new LoginPage(stage.url),
    [Symbol.asyncDispose]: async () => {
      await stage.close();
      await provider[Symbol.asyncDispose]();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

export const codeOf = (answer: Response): string | null => answer.headers.get('x-hpcserve-error');
