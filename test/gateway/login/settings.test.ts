/** Providers that are away, wrong or of another time, and what a site config may ask of them. */
import { execFile } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { startGateway } from '../../../gateway/gateway.ts';
import { SessionStore } from '../../../gateway/login/session-store.ts';
import { packageRoot } from '../../../host/package-root.ts';
import { gatewaySchema } from '../../../spec/gateway-settings.ts';
import { type LoginSettings, loginSchema } from '../../../spec/login-settings.ts';
import { startStage, testConfig, until } from '../support.ts';
import { answerOfProvider, OidcProviderProcess } from './oidc-provider.ts';
import { accounts, codeOf, LoginPage, startLoginStage } from './support.ts';

/** What signing in as somebody comes to. */
async function outcome(
  name: string,
  ...made: Parameters<typeof startLoginStage>
): Promise<{ status: number; code: string | null; message: string }> {
  await using all = await startLoginStage(...made);
  const page = all.page();
  const begun = await page.begin();
  const answer = begun.ok
    ? await page.finish(await answerOfProvider(((await begun.json()) as { url: string }).url, name))
    : begun;
  const said = (await answer.json()) as { error?: { message: string } };
  return { status: answer.status, code: codeOf(answer), message: said.error?.message ?? '' };
}

describe('a provider', () => {
  it('that is away leaves keys as they are, and is asked again', async () => {
    await using made = await startLoginStage();
    const { stage, provider } = made;
    const issuer = provider.issuer;
    await provider[Symbol.asyncDispose]();
    const answer = await made.page().begin();
    expect([answer.status, codeOf(answer)]).toEqual([503, 'E_LOGIN_PROVIDER']);
    expect(await answer.text()).toContain(`the provider ${issuer} cannot be used`);
    const models = await fetch(`${stage.url}/v1/models`, {
      headers: { authorization: `Bearer ${stage.key}` },
    });
    expect(models.status).toBe(200);
    expect(await (await fetch(`${stage.url}/hpcserve/v1/login`)).json()).toEqual({
      login: { name: 'Test University' },
    });
  });

  it('that comes back is found again without a restart', async () => {
    // It answers 503 until it is told who its clients are.
    await using provider = await OidcProviderProcess.start();
    const login = loginSchema.parse({ issuer: provider.issuer, client_id: 'hpcserve' });
    const stage = await startStage({}, { login });
    try {
      const page = new LoginPage(stage.url);
      expect(codeOf(await page.begin())).toBe('E_LOGIN_PROVIDER');
      await provider.open([`${stage.url}/dashboard/`], { accounts });
      await until(async () => (await page.begin()).ok, 'the provider to be asked again');
      expect((await page.signIn('alice')).status).toBe(200);
    } finally {
      await stage.close();
    }
  });

  it('whose discovery document is of another issuer is not believed', async () => {
    await using made = await startLoginStage();
    const login = {
      ...made.stage.config.login!,
      issuer: made.provider.issuer.replace('127.0.0.1', 'localhost'),
    };
    const stage = await startStage({}, { login });
    const answer = await new LoginPage(stage.url).begin();
    expect([answer.status, codeOf(answer)]).toEqual([400, 'E_LOGIN_ISSUER']);
    await stage.close();
  });

  it('whose clock is somewhat off is believed, and one that is hours behind is not', async () => {
    expect((await outcome('alice', {}, { clock_offset_s: 20 })).status).toBe(200);
    const behind = await outcome('alice', {}, { clock_offset_s: -7200 });
    expect(behind).toMatchObject({ status: 400, code: 'E_LOGIN_TOKEN' });
    expect(behind.message).toContain('clocks');
  });

  it('that gives codes for a moment is too quick for who is slow', async () => {
    await using made = await startLoginStage({}, { code_s: 1 });
    const page = made.page();
    const answer = await answerOfProvider(await page.address(), 'alice');
    const given_ms = Date.now();
    await until(() => Date.now() > given_ms + 2100, 'the code to expire');
    const late = await page.finish(answer);
    expect([late.status, codeOf(late)]).toEqual([400, 'E_LOGIN_CODE']);
  });

  it('is shown the client’s secret, from a file of its owner alone', async () => {
    const secret = 'a client secret of thirty-two bytes';
    const both = { at_gateway: secret, at_provider: secret };
    expect((await outcome('alice', {}, {}, both)).status).toBe(200);
    const wrong = await outcome('alice', {}, {}, { ...both, at_gateway: 'another' });
    expect(wrong).toMatchObject({ status: 502, code: 'E_LOGIN_CLIENT' });
    const open = await outcome('alice', {}, {}, { ...both, mode: 0o644 });
    expect(open).toMatchObject({ status: 502, code: 'E_LOGIN_CLIENT' });
    expect(open.message).toContain('its mode is 644');
    for (const { message } of [wrong, open]) expect(message).not.toContain(secret);
  });
});

describe('claims', () => {
  it.each([
    [
      'a group without a role',
      'guest',
      { default_role: 'refused', roles: { operator: [], provider: [], user: ['users'] } },
      'E_LOGIN_ROLE',
    ],
    [
      'a group with one',
      'alice',
      { default_role: 'refused', roles: { operator: [], provider: [], user: ['users'] } },
      null,
    ],
    ['no groups at all', 'alice', { default_role: 'refused', role_claim: 'isMemberOf' }, 'E_LOGIN_ROLE'],
    ['an address that was verified', 'alice', { user_claim: 'email' }, null],
    ['an address that was not', 'bob', { user_claim: 'email' }, 'E_LOGIN_CLAIM'],
    ['a claim that is not there', 'alice', { user_claim: 'eppn' }, 'E_LOGIN_CLAIM'],
  ] satisfies [string, string, Partial<LoginSettings>, string | null][])(
    '%s',
    async (_words, name, settings, code) => {
      expect((await outcome(name, settings)).code).toBe(code);
    },
  );

  it('are found in the ID token too, and at the end of a path', async () => {
    const groups = { preferred_username: 'kim', realm_access: { roles: ['admin'] } };
    await using made = await startLoginStage(
      { role_claim: 'realm_access.roles', roles: { operator: ['admin'], provider: [], user: [] } },
      { accounts: { kim: groups }, claims_in_id_token: true },
    );
    const page = made.page();
    expect((await page.signIn('kim')).status).toBe(200);
    expect(await (await page.ask('/hpcserve/v1/me')).json()).toMatchObject({ role: 'operator', user: 'kim' });
  });
});

describe('a session', () => {
  it('ends when its time is over, whatever is done in it', async () => {
    const second_h = 1 / 3600;
    await using made = await startLoginStage({ session_h: 5 * second_h });
    const page = made.page();
    expect((await page.signIn('alice')).status).toBe(200);
    expect((await page.ask('/hpcserve/v1/me')).status).toBe(200);
    await expect
      .poll(async () => codeOf(await page.ask('/hpcserve/v1/me')), { timeout: 10_000 })
      .toBe('E_LOGIN_SESSION');
    expect(readdirSync(join(made.stage.folder, 'logins')).some((name) => name.startsWith('session-'))).toBe(
      false,
    );
  });

  it('ends when nobody uses it, and when another gateway ended it', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-session-test-'));
    const hour_ms = 3_600_000;
    const now_ms = Date.now();
    const session = {
      user: 'alice',
      role: 'user' as const,
      key_id: 'key_1',
      page_hash: 'x',
      root: 'http://127.0.0.1/',
      issuer: 'i',
      subject: 's',
      created_at_ms: now_ms,
      ends_at_ms: now_ms + 24 * hour_ms,
    };
    const one = SessionStore.open(folder, hour_ms);
    const [idle, ended] = [one.create(session), one.create(session)];
    const other = SessionStore.open(folder, hour_ms);
    expect([other.known(idle)?.user, (await other.use(ended))?.user]).toEqual(['alice', 'alice']);
    one.end(ended);
    await expect.poll(() => other.use(ended), { timeout: 10_000 }).toBeUndefined();
    const past = new Date(now_ms - 2 * hour_ms);
    for (const name of readdirSync(folder)) utimesSync(join(folder, name), past, past);
    expect(await SessionStore.open(folder, hour_ms).use(idle)).toBeUndefined();
    expect(readdirSync(folder)).toEqual([]);
    // At most sixteen of one user.
    for (let count = 0; count < 20; count++) one.create({ ...session, created_at_ms: now_ms + count });
    expect(readdirSync(folder)).toHaveLength(16);
    rmSync(folder, { recursive: true });
  });

  it('behind TLS has a cookie that no other host and no plain connection can set', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'hpcserve-session-test-'));
    await using provider = await OidcProviderProcess.start();
    const login = loginSchema.parse({ issuer: provider.issuer, client_id: 'hpcserve' });
    const tls = { authority_folder: join(folder, 'tls'), names: [] };
    const log = pino({ level: 'silent' });
    const gateway = await startGateway(testConfig(folder, { login, tls }), { log, times: { drain_ms: 200 } });
    try {
      const { url, ca_file } = gateway.endpoint;
      await provider.open([`${url}/dashboard/`], { accounts });
      const page = new LoginPage(url, readFileSync(ca_file!, 'utf8'));
      const answer = await page.signIn('alice');
      expect(answer.headers.getSetCookie()).toEqual([
        expect.stringMatching(
          /^__Host-hpcserve-\w+=[\w-]{43}; Path=\/; HttpOnly; SameSite=Lax; Secure; Max-Age=86400$/,
        ),
      ]);
      expect((await page.ask('/hpcserve/v1/me')).status).toBe(200);
      const out = await page.ask('/hpcserve/v1/login/end', 'POST', {});
      expect(out.headers.getSetCookie()).toEqual([expect.stringMatching(/^__Host-.*Secure; Max-Age=0$/)]);
      expect(codeOf(await page.ask('/hpcserve/v1/me'))).toBe('E_LOGIN_SESSION');
    } finally {
      await gateway.close();
      rmSync(folder, { recursive: true });
    }
  });
});

describe('a site config', () => {
  const parsed = (login: object) => gatewaySchema.safeParse({ login: { client_id: 'x', ...login } });

  it('names an issuer by https, or on loopback', () => {
    for (const issuer of ['https://idp.example.org', 'http://127.0.0.1:3000', 'http://localhost/realms/x'])
      expect([issuer, parsed({ issuer }).success]).toEqual([issuer, true]);
    for (const issuer of ['http://idp.example.org', 'ftp://x', 'idp', ''])
      expect([issuer, parsed({ issuer }).success]).toEqual([issuer, false]);
    expect(parsed({ issuer: 'https://a', client_secret: 'x' }).success).toBe(false);
  });

  it('without a login tells the page so, and has the gateway load nothing of it', async () => {
    const hooks = `data:text/javascript,${encodeURIComponent(`
      import { writeSync } from 'node:fs';
      export const load = (url, context, next) => (writeSync(1, url + '\\n'), next(url, context));`)}`;
    const script = `
      import { register } from 'node:module';
      register(${JSON.stringify(hooks)});
      await import(${JSON.stringify(pathToFileURL(join(packageRoot, 'dist/gateway/gateway.js')).href)});`;
    const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script]);
    expect(stdout).toContain('gateway/login/routes.js');
    expect(stdout).not.toMatch(/openid-client|oauth4webapi|gateway\/login\/login\.js/);
    const stage = await startStage();
    expect(await (await fetch(`${stage.url}/hpcserve/v1/login`)).json()).toEqual({ login: null });
    expect((await new LoginPage(stage.url).begin()).status).toBe(404);
    await stage.close();
  });
});
