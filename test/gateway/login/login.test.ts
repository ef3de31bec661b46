/** People sign in to the dashboard at a real OpenID Connect provider. */
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startGateway } from '../../../gateway/gateway.ts';
import type { ApiKey } from '../../../ledger/index.ts';
import { auditAnswerSchema } from '../../../spec/audit.ts';
import { chatAnswer, json, type Stage } from '../support.ts';
import { answerOfProvider } from './oidc-provider.ts';
import { codeOf, LoginPage, type LoginStage, type Made, startLoginStage } from './support.ts';

const chat = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }] };

let made: LoginStage;
let stage: Stage;

beforeAll(async () => {
  made = await startLoginStage({ new_user: { budget_window: 'month', requests_per_minute: 1000 } });
  ({ stage } = made);
  await stage.session(json(chatAnswer));
});
afterAll(() => made?.[Symbol.asyncDispose]());

async function signedIn(name: string): Promise<LoginPage> {
  const page = made.page();
  const answer = await page.signIn(name);
  expect(answer.status, await answer.text()).toBe(200);
  return page;
}

const me = async (page: LoginPage): Promise<{ role: string; user: string; key: ApiKey }> =>
  (await (await page.ask('/hpcserve/v1/me')).json()) as { role: string; user: string; key: ApiKey };

async function audit(): Promise<ReturnType<typeof auditAnswerSchema.parse>['audit']> {
  return auditAnswerSchema.parse(await (await stage.admin('/hpcserve/v1/audit?limit=50')).json()).audit;
}

describe('somebody who signs in', () => {
  it('is the user of that name: asks models, sees her usage, makes keys, and signs out', async () => {
    const page = await signedIn('alice');
    expect(await me(page)).toMatchObject({
      role: 'user',
      user: 'alice',
      key: { settings: { user: 'alice' } },
    });
    expect((await page.ask('/v1/chat/completions', 'POST', chat)).status).toBe(200);
    const answer = await page.ask('/hpcserve/v1/keys', 'POST', { name: 'laptop' });
    expect(answer.status).toBe(201);
    const key = (await answer.json()) as Made;
    const own = await me(page);
    expect(key.parent_id).toBe(own.key.id);
    const used = await fetch(`${stage.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key.key}`, 'content-type': 'application/json' },
      body: JSON.stringify(chat),
    });
    expect(used.status).toBe(200);
    const { usage } = (await (await page.ask('/hpcserve/v1/usage?group_by=user')).json()) as {
      usage: { group: { user: string }; requests: number }[];
    };
    expect(usage).toMatchObject([{ group: { user: 'alice' }, requests: 2 }]);
    for (const path of ['/hpcserve/v1/devices', '/hpcserve/v1/audit'])
      expect([path, (await page.ask(path)).ok]).toEqual([path, false]);
    const out = await page.ask('/hpcserve/v1/login/end', 'POST', {});
    expect(await out.json()).toEqual({
      url: expect.stringContaining(`${made.provider.issuer}/session/end?`),
    });
    expect(out.headers.getSetCookie()).toEqual([
      expect.stringMatching(/^hpcserve-\w+=; .*HttpOnly.*Max-Age=0/),
    ]);
    const after = await page.ask('/hpcserve/v1/me');
    expect([after.status, codeOf(after)]).toEqual([401, 'E_LOGIN_SESSION']);
    // Her key is valid as ever: a session is not what it lives by.
    expect(
      (await fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${key.key}` } })).status,
    ).toBe(200);
    expect((await audit()).map(({ actor, action, subject }) => [actor, action, subject])).toEqual(
      expect.arrayContaining([
        ['login', 'create', own.key.id],
        ['login', 'login', own.key.id],
        [own.key.id, 'create', key.id],
        [own.key.id, 'logout', own.key.id],
      ]),
    );
  });

  it('has the role that her groups give, and the operator’s page with it', async () => {
    const olga = await signedIn('olga');
    expect(await me(olga)).toMatchObject({ role: 'operator', user: 'olga' });
    const { keys } = (await (await olga.ask('/hpcserve/v1/keys')).json()) as { keys: ApiKey[] };
    expect(keys.map(({ id }) => id)).toContain(stage.key_id);
    expect((await olga.ask('/hpcserve/v1/devices')).status).toBe(200);
    const alice = await signedIn('alice');
    const own = (await (await alice.ask('/hpcserve/v1/keys')).json()) as { keys: ApiKey[] };
    expect(own.keys.map(({ id }) => id)).not.toContain(stage.key_id);
  });

  it('as a provider is told what its devices computed, and not for whom', async () => {
    await stage.newKey({ user: 'carol', provides: [stage.fingerprint('tester@test')] });
    const carol = await signedIn('carol');
    expect((await me(carol)).role).toBe('provider');
    const { usage } = (await (await carol.ask('/hpcserve/v1/usage?group_by=provider')).json()) as {
      usage: { group: { provider: string }; requests: number }[];
    };
    expect(usage).toMatchObject([{ group: { provider: 'tester@test' } }]);
    expect(codeOf(await carol.ask('/hpcserve/v1/usage?group_by=user'))).toBe('E_REQUEST_ADMIN');
  });

  it('acts with the limits of the key that the operator gave her', async () => {
    const { id } = await stage.newKey({ user: 'bob', models: ['tiny'], requests_per_minute: 1 });
    const page = await signedIn('bob');
    expect((await me(page)).key.id).toBe(id);
    expect((await page.ask('/v1/chat/completions', 'POST', chat)).status).toBe(200);
    expect(codeOf(await page.ask('/v1/chat/completions', 'POST', chat))).toBe('E_KEY_RATE');
    const other = await page.ask('/v1/chat/completions', 'POST', { ...chat, model: 'large' });
    expect(other.ok).toBe(false);
    // Blocked, she is out at once, and does not come back by signing in.
    await stage.admin(`/hpcserve/v1/keys/${id}/block`, { method: 'POST', body: {} });
    expect(codeOf(await page.ask('/hpcserve/v1/me'))).toBe('E_LOGIN_SESSION');
    const again = await made.page().signIn('bob');
    expect([again.status, codeOf(again)]).toEqual([403, 'E_LOGIN_KEY']);
    expect((await audit())[0]).toMatchObject({
      action: 'refuse',
      subject: 'bob',
      details: { code: 'E_LOGIN_KEY' },
    });
    await stage.admin(`/hpcserve/v1/keys/${id}/unblock`, { method: 'POST', body: {} });
    expect((await page.ask('/hpcserve/v1/me')).status).toBe(200);
  });

  it('does not get at a key of her own that may do more than her session', async () => {
    // Also where it is the very key as which the session acts.
    const only = await stage.newKey({ user: 'kim', role: 'operator' });
    const kim = await signedIn('kim');
    expect(await me(kim)).toMatchObject({ role: 'user', key: { id: only.id } });
    expect(codeOf(await kim.ask(`/hpcserve/v1/keys/${only.id}/rotate`, 'POST', {}))).toBe('E_KEY_SCOPE');
    expect(codeOf(await kim.ask('/hpcserve/v1/devices'))).toBe('E_REQUEST_ADMIN');
    const { id } = await stage.newKey({ user: 'alice', role: 'operator' });
    const page = await signedIn('alice');
    expect((await me(page)).role).toBe('user');
    expect(codeOf(await page.ask(`/hpcserve/v1/keys/${id}/rotate`, 'POST', {}))).toBe('E_KEY_SCOPE');
    await stage.admin(`/hpcserve/v1/keys/${id}`, { method: 'DELETE' });
  });

  it('stays so over a restart of the gateway, and no id or token is in any file or log', async () => {
    const page = made.page();
    const address = await page.address();
    const answer = await answerOfProvider(address, 'alice');
    expect((await page.finish(answer)).status).toBe(200);
    await stage.gateway.close();
    const again = await startGateway(stage.config, {
      log: pino({ level: 'silent' }),
      times: { poll_ms: 50, drain_ms: 200 },
    });
    expect(again.endpoint.url).toBe(stage.url);
    expect(await me(page)).toMatchObject({ user: 'alice' });
    await again.close();
    stage.gateway = await startGateway(stage.config, {
      log: pino({ level: 'debug' }, { write: (line: string) => void stage.logged.push(line) }),
      times: { poll_ms: 50, drain_ms: 200, keys_ms: 50 },
    });
    const kept = join(stage.folder, 'logins');
    expect(readdirSync(kept).length).toBeGreaterThan(1);
    for (const file of readdirSync(kept)) expect(statSync(join(kept, file)).mode & 0o777).toBe(0o600);
    const everything = [...stage.logged, ...filesBelow(stage.folder)].join('\n');
    expect(everything).toContain('signed in to the dashboard');
    const id = page.cookie.split('=')[1]!;
    const code = new URLSearchParams(answer).get('code')!;
    for (const secret of [id, page.secret, code, 'eyJ'])
      expect([secret, everything.includes(secret)]).toEqual([secret, false]);
  });
});

function filesBelow(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .map((name) => join(folder, name))
    .filter((file) => existsSync(file) && statSync(file).isFile())
    .map((file) => readFileSync(file, 'latin1'));
}

describe('an answer of the provider', () => {
  const refusal = async (page: LoginPage, answer: string): Promise<unknown[]> => {
    const got = await page.finish(answer);
    const { error } = (await got.json()) as { error: { message: string } };
    expect(error.message).toContain('Try: ');
    expect(got.headers.getSetCookie()).toEqual([]);
    return [got.status, codeOf(got)];
  };
  const changed = (answer: string, name: string, value: string | null): string => {
    const parameters = new URLSearchParams(answer);
    if (value === null) parameters.delete(name);
    else parameters.set(name, value);
    return parameters.toString();
  };

  it('counts once, and for the page that asked', async () => {
    const page = made.page();
    const answer = await answerOfProvider(await page.address(), 'alice');
    expect(await refusal(made.page(), answer)).toEqual([400, 'E_LOGIN_STATE']);
    expect((await page.finish(answer)).status).toBe(200);
    expect(await refusal(page, answer)).toEqual([400, 'E_LOGIN_STATE']);
    await page.address();
    expect(await refusal(page, changed(answer, 'state', 'another'))).toEqual([400, 'E_LOGIN_STATE']);
    await page.address();
    expect(await refusal(page, '')).toEqual([400, 'E_LOGIN_STATE']);
  });

  it('is refused where another provider gave it', async () => {
    const page = made.page();
    const answer = await answerOfProvider(await page.address(), 'alice');
    expect(new URLSearchParams(answer).get('iss')).toBe(made.provider.issuer);
    expect(await refusal(page, changed(answer, 'iss', 'https://evil.example'))).toEqual([
      400,
      'E_LOGIN_ISSUER',
    ]);
    const next = await answerOfProvider(await page.address(), 'alice');
    expect(await refusal(page, changed(next, 'iss', null))).toEqual([400, 'E_LOGIN_ISSUER']);
  });

  it('is refused where its ID token is for another sign-in', async () => {
    const page = made.page();
    const address = new URL(await page.address());
    address.searchParams.set('nonce', 'of-another-sign-in');
    expect(await refusal(page, await answerOfProvider(address.href, 'alice'))).toEqual([
      400,
      'E_LOGIN_TOKEN',
    ]);
  });

  it('is refused where its code belongs to another challenge, or is none', async () => {
    const page = made.page();
    const address = new URL(await page.address());
    address.searchParams.set('code_challenge', 'A'.repeat(43));
    expect(await refusal(page, await answerOfProvider(address.href, 'alice'))).toEqual([400, 'E_LOGIN_CODE']);
    const answer = await answerOfProvider(await page.address(), 'alice');
    expect(await refusal(page, changed(answer, 'code', 'made-up'))).toEqual([400, 'E_LOGIN_CODE']);
  });

  it('says that nobody was signed in', async () => {
    const page = made.page();
    expect(await refusal(page, await answerOfProvider(await page.address(), undefined))).toEqual([
      403,
      'E_LOGIN_DENIED',
    ]);
  });

  it('is refused where the name belongs to another account, or there is none', async () => {
    await signedIn('alice');
    const page = made.page();
    expect(await refusal(page, await answerOfProvider(await page.address(), 'mallory'))).toEqual([
      403,
      'E_LOGIN_ACCOUNT',
    ]);
    expect(await refusal(page, await answerOfProvider(await page.address(), 'nobody'))).toEqual([
      403,
      'E_LOGIN_CLAIM',
    ]);
    expect(
      (await audit()).slice(0, 2).map(({ action, subject, details }) => [action, subject, details.code]),
    ).toEqual([
      ['refuse', '-', 'E_LOGIN_CLAIM'],
      ['refuse', 'alice', 'E_LOGIN_ACCOUNT'],
    ]);
  });
});

describe('a session', () => {
  it('is for its own page, and for what that page asks', async () => {
    const page = await signedIn('alice');
    const ask = async (more: Record<string, string>, path = '/hpcserve/v1/keys', method = 'POST') =>
      codeOf(await page.ask(path, method, method === 'GET' ? undefined : { name: 'x' }, more));
    expect(await ask({ origin: 'https://evil.example' })).toBe('E_LOGIN_ORIGIN');
    // Another port of the same host is another person's page, and browsers send it the cookie.
    expect(await ask({ origin: 'http://127.0.0.1:1', 'sec-fetch-site': 'same-site' })).toBe('E_LOGIN_ORIGIN');
    expect(await ask({ origin: 'http://127.0.0.1:1' })).toBe('E_LOGIN_ORIGIN');
    expect(await ask({ origin: 'null' })).toBe('E_LOGIN_ORIGIN');
    expect(await ask({ 'sec-fetch-site': 'cross-site' }, '/hpcserve/v1/me', 'GET')).toBe('E_LOGIN_ORIGIN');
    expect(await ask({ 'x-hpcserve-page': new LoginPage(page.url).secret })).toBe('E_LOGIN_SESSION');
    expect(await ask({ cookie: '' })).toBe('E_LOGIN_SESSION');
    expect(await ask({}, '/hpcserve/v1/nodes/node1/drain')).toBe('E_LOGIN_ORIGIN');
    expect(await ask({}, '/hpcserve/v1/refactor')).toBe('E_LOGIN_ORIGIN');
    const { cookie, url } = page;
    const bare = await fetch(`${url}/hpcserve/v1/me`, { headers: { cookie } });
    expect([bare.status, codeOf(bare)]).toEqual([401, 'E_REQUEST_KEY']);
    const chatted = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { cookie, 'content-type': 'text/plain' },
      body: JSON.stringify(chat),
    });
    expect([chatted.status, codeOf(chatted)]).toEqual([401, 'E_REQUEST_KEY']);
    const unsaid = await fetch(`${url}/hpcserve/v1/keys`, {
      method: 'POST',
      headers: { cookie, 'x-hpcserve-page': page.secret, 'content-type': 'application/json' },
      body: '{"name":"x"}',
    });
    expect([unsaid.status, codeOf(unsaid)]).toEqual([403, 'E_LOGIN_ORIGIN']);
  });

  it('has another id each time, and the one before ends', async () => {
    const page = await signedIn('alice');
    const { cookie, secret } = page;
    expect((await page.signIn('alice')).status).toBe(200);
    expect(page.cookie).not.toBe(cookie);
    const before = Object.assign(new LoginPage(page.url), { cookie, secret });
    expect(codeOf(await before.ask('/hpcserve/v1/me'))).toBe('E_LOGIN_SESSION');
    expect((await me(page)).user).toBe('alice');
    // An id that somebody else chose is not taken over.
    const fixed = Object.assign(made.page(), { cookie: `${cookie.split('=')[0]}=${'A'.repeat(43)}` });
    expect((await fixed.signIn('alice')).status).toBe(200);
    expect(fixed.cookie).not.toContain('AAAA');
  });

  it('begins at the gateway’s own page alone', async () => {
    const page = made.page();
    for (const root of [
      'https://evil.example/',
      `${page.url.replace('127.0.0.1', '127.0.0.1.evil.example')}/`,
      `${page.url}/x`,
    ])
      expect([root, codeOf(await page.begin(root))]).toEqual([root, 'E_LOGIN_ORIGIN']);
    const begun = (await (await page.begin(`${page.url}/portal/llm/`)).json()) as { url: string };
    const sent = new URL(begun.url).searchParams;
    expect(sent.get('redirect_uri')).toBe(`${page.url}/portal/llm/dashboard/`);
    expect(sent.get('code_challenge_method')).toBe('S256');
    expect(begun.url).not.toContain(page.secret);
  });
});
