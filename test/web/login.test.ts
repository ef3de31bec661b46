/** Signing in to the dashboard at a provider, in a real Chromium: the gateway and the provider are real too. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { accounts, type LoginStage, startLoginStage } from '../gateway/login/support.ts';
import { chunkEvent, doneEvent, stream, usageEvent } from '../gateway/support.ts';
import { chromiumFile, openBrowser, picture, seriousFindings } from './browser.ts';
import { type PrefixProxy, prefixProxy } from './prefix-proxy.ts';

const needed = chromiumFile ? '' : ' [skipped: needs Chromium]';
const university = 'Sign in with Test University';

describe.skipIf(!chromiumFile)(`signing in at a provider${needed}`, () => {
  let made: LoginStage;
  let proxy: PrefixProxy;
  let browser: Browser;
  /** What pages of the gateway did that their policy forbids, and errors in them. */
  const wrong: string[] = [];

  beforeAll(async () => {
    made = await startLoginStage();
    proxy = await prefixProxy('/portal/llm', made.stage.url);
    const redirects = [proxy.url, made.stage.url].map((url) => `${url}/dashboard/`);
    await made.provider.open(redirects, { accounts });
    await made.stage.session(stream([chunkEvent('All is well.'), usageEvent, doneEvent]));
    browser = await openBrowser();
  }, 60_000);
  afterAll(async () => {
    await browser?.close();
    await proxy?.[Symbol.asyncDispose]();
    await made?.[Symbol.asyncDispose]();
  });

  const newContext = (): Promise<BrowserContext> =>
    browser.newContext({ viewport: { width: 1360, height: 860 }, locale: 'en' });

  const open = async (url: string, context?: BrowserContext): Promise<Page> => {
    const page = await (context ?? (await newContext())).newPage();
    page.on('pageerror', (error) => wrong.push(`error: ${error.message}`));
    page.on('console', (message) => {
      if (/Content.Security.Policy|Trusted/i.test(message.text())) wrong.push(message.text());
    });
    await page.goto(`${url}/dashboard/`);
    return page;
  };

  const goTo = (page: Page, name: string): Promise<void> =>
    page
      .getByRole('navigation')
      .getByRole('link', { name: new RegExp(name, 'i') })
      .click();

  /** At the pages of the provider. */
  const atProvider = async (page: Page, name: string): Promise<void> => {
    await page.getByRole('button', { name: university }).click();
    await page.waitForURL(`${made.provider.issuer}/**`);
    await page.locator('input[name=login]').fill(name);
    await page.locator('input[name=password]').fill('any');
    await page.getByRole('button', { name: 'Sign-in' }).click();
    await page.getByRole('button', { name: 'Continue' }).click();
  };
  const signInAs = async (name: string, url: string, context?: BrowserContext): Promise<Page> => {
    const page = await open(url, context);
    await atProvider(page, name);
    await page.getByRole('navigation', { name: 'Pages' }).waitFor();
    return page;
  };
  const signOut = async (page: Page): Promise<void> => {
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.waitForURL(`${made.provider.issuer}/**`);
    await page.getByRole('button', { name: 'Yes, sign me out' }).click();
    await page.getByRole('button', { name: university }).waitFor();
  };
  /** What the browser could be robbed of: the cookie of the gateway, and what its page keeps. */
  const loot = async (page: Page): Promise<{ cookie: string; secret: string }> => {
    const all = await page.context().cookies();
    const found = all.find(({ name }) => name.startsWith('hpcserve-'))!;
    expect(found).toMatchObject({ httpOnly: true, sameSite: 'Lax', path: '/' });
    const secret = await page.evaluate<string>(
      'Object.values(localStorage).find((value) => value.length === 43)',
    );
    return { cookie: `${found.name}=${found.value}`, secret };
  };
  const statusWith = async (cookie: string, secret: string): Promise<number> =>
    (await fetch(`${made.stage.url}/hpcserve/v1/me`, { headers: { cookie, 'x-hpcserve-page': secret } }))
      .status;

  it('offers it beside the key, and keys work as ever', async () => {
    const page = await open(made.stage.url);
    await page.getByRole('button', { name: university }).waitFor();
    await picture(page, 'sign-in-provider');
    expect(await seriousFindings(page)).toEqual([]);
    await page.getByLabel('API key, or the operator’s token').fill(made.stage.key);
    await page.keyboard.press('Enter');
    await page.getByRole('navigation', { name: 'Pages' }).waitFor();
  });

  it('below a prefix: a user chats, sees her usage, makes a key and uses it, and is out when she signs out', async () => {
    const page = await signInAs('alice', proxy.url);
    expect(page.url()).not.toMatch(/code=|state=/);
    expect(await page.locator('.who').textContent()).toBe('alice (user)');
    await goTo(page, 'chat');
    await page.getByRole('combobox').selectOption('tiny');
    await page.getByLabel('Message').fill('How are you?');
    await page.keyboard.press('Enter');
    await page.getByText('All is well.').waitFor();
    await goTo(page, 'keys');
    await page.getByRole('button', { name: 'New key' }).click();
    await page.getByRole('textbox', { name: /^Name/ }).fill('laptop');
    await page.getByRole('button', { name: 'Make the key' }).click();
    const key = await page.locator('.secret code').textContent();
    await page.getByRole('button', { name: 'Done' }).click();
    const used = await fetch(`${made.stage.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'tiny', stream: true, messages: [{ role: 'user', content: 'hi' }] }),
    });
    expect([used.status, await used.text()]).toEqual([200, expect.stringContaining('All is well.')]);
    await goTo(page, 'usage');
    await page.getByText(/of alice/i).waitFor();
    await expect.poll(() => page.locator('tbody').textContent()).toMatch(/tiny\s*2/);
    await picture(page, 'usage-of-a-user');
    // Another tab is signed in already.
    const other = await open(proxy.url, page.context());
    await other.getByRole('navigation', { name: 'Pages' }).waitFor();
    const { cookie, secret } = await loot(page);
    expect(await statusWith(cookie, secret)).toBe(200);
    await signOut(page);
    expect(await statusWith(cookie, secret)).toBe(401);
    await other.getByText('Your session is over.').waitFor();
    await page.reload();
    await page.getByRole('button', { name: university }).waitFor();
    expect(proxy.strayed.filter((path) => path !== '/favicon.ico')).toEqual([]);
  });

  it('shows an operator all keys, and a user her own', async () => {
    const page = await signInAs('olga', made.stage.url);
    expect(await page.locator('.who').textContent()).toBe('olga (operator)');
    await goTo(page, 'keys');
    await page.getByRole('row', { name: made.stage.key_id }).waitFor();
    await picture(page, 'keys-of-an-operator');
    expect(await seriousFindings(page)).toEqual([]);
    const alice = await signInAs('alice', made.stage.url);
    await goTo(alice, 'keys');
    await alice.getByRole('row', { name: /laptop/ }).waitFor();
    expect(await alice.getByRole('row', { name: made.stage.key_id }).count()).toBe(0);
  });

  it('is worth nothing to who listens on another port of the same host, although browsers send the cookie there', async () => {
    const page = await signInAs('alice', made.stage.url);
    const { cookie, secret } = await loot(page);
    const seen: string[] = [];
    const neighbour = createServer((request, response) => {
      seen.push(request.headers.cookie ?? '');
      response.writeHead(200, { 'content-type': 'text/html' }).end('<title>hello</title>');
    });
    await new Promise<void>((resolve) => neighbour.listen(0, '127.0.0.1', resolve));
    const { port } = neighbour.address() as AddressInfo;
    const there = await page.context().newPage();
    await there.goto(`http://127.0.0.1:${port}/`);
    expect(seen[0]).toContain(cookie);
    expect(await there.evaluate('localStorage.length')).toBe(0);
    const asked = await there.evaluate<string>(
      `fetch('${made.stage.url}/hpcserve/v1/me', { credentials: 'include', headers: { 'x-hpcserve-page': 'x' } })
        .then((answer) => answer.status, (error) => error.name)`,
    );
    expect(asked).toBe('TypeError');
    // A plain post, for which browsers ask nobody.
    await there.evaluate(
      `fetch('${made.stage.url}/hpcserve/v1/keys', { method: 'POST', mode: 'no-cors', credentials: 'include', body: '{"name":"stolen"}' })`,
    );
    for (const guess of ['', 'x', secret.replace(/.$/, (last) => (last === 'A' ? 'B' : 'A'))])
      expect([guess, await statusWith(cookie, guess)]).toEqual([guess, 401]);
    expect(await (await made.stage.admin('/hpcserve/v1/keys')).text()).not.toContain('stolen');
    neighbour.closeAllConnections();
    await new Promise((resolve) => neighbour.close(resolve));
  });

  it('says who may not come in and why, and what is made up signs nobody in', async () => {
    const page = await open(made.stage.url);
    await atProvider(page, 'mallory');
    await page.getByText('the name alice belongs to another account here').waitFor();
    await picture(page, 'sign-in-refused');
    expect(await seriousFindings(page)).toEqual([]);
    await page.goto(
      `${made.stage.url}/dashboard/?state=x&error=%3Cimg%20src%3Dx%3E&error_description=call+555`,
    );
    await page.getByText('belongs to no sign-in of this page').waitFor();
    expect(await page.locator('body').textContent()).not.toMatch(/555|<img/);
    expect(page.url()).not.toContain('state=');
  });

  it('says that the provider is away, and takes keys meanwhile', async () => {
    await using away = await startLoginStage();
    await away.provider[Symbol.asyncDispose]();
    const page = await open(away.stage.url);
    await page.getByRole('button', { name: university }).click();
    await expect
      .poll(() => page.getByRole('alert').textContent())
      .toMatch(/the provider .* cannot be used.*Try: /s);
    await picture(page, 'sign-in-provider-away');
    await page.getByLabel('API key, or the operator’s token').fill(away.stage.key);
    await page.keyboard.press('Enter');
    await page.getByRole('navigation', { name: 'Pages' }).waitFor();
  });

  it('did nothing in all this that the policy of the page forbids', () => {
    expect(wrong).toEqual([]);
  });
});
