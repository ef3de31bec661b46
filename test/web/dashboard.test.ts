/** The dashboard in a real Chromium, before a real gateway. Pictures of each page are in build/dashboard-pictures/. */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { pino } from 'pino';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RunningGateway, startGateway } from '../../gateway/gateway.ts';
import { packageRoot } from '../../host/package-root.ts';
import type { Stage } from '../gateway/support.ts';
import {
  chromiumFile,
  openBrowser,
  openPage,
  picture,
  seriousFindings,
  signInWith,
  type Watched,
} from './browser.ts';
import { startDemoSite } from './demo-site.ts';

const pages = ['models', 'jobs', 'live', 'usage', 'keys', 'chat'] as const;
const bundle_bytes_max = 120_000;

describe.skipIf(!chromiumFile)(`the dashboard${chromiumFile ? '' : ' [skipped: needs Chromium]'}`, () => {
  let stage: Stage;
  let made_ms: number;
  let browser: Browser;
  let again: RunningGateway | undefined;
  const opened: Watched[] = [];

  beforeAll(async () => {
    made_ms = Date.now();
    stage = await startDemoSite();
    browser = await openBrowser();
    for (const model of ['large', 'small', 'large'])
      await (
        await stage.post('/v1/chat/completions', {
          model,
          stream: true,
          messages: [{ role: 'user', content: 'hi' }],
        })
      ).text();
  });
  afterAll(async () => {
    await browser?.close();
    await again?.close();
    await stage?.close();
  });

  const open = async (options: Parameters<typeof openPage>[2] = {}, url = stage.url): Promise<Page> => {
    const watched = await openPage(browser, `${url}/dashboard/`, options);
    opened.push(watched);
    return watched.page;
  };
  const asOperator = async (options: Parameters<typeof openPage>[2] = {}): Promise<Page> => {
    const page = await open(options);
    await signInWith(page, stage.gateway.admin_token);
    return page;
  };
  const goTo = (page: Page, name: string): Promise<void> =>
    page
      .getByRole('navigation')
      .getByRole('link', { name: new RegExp(name, 'i') })
      .click();

  it('weighs no more than promised, and nothing of it comes from elsewhere', () => {
    const folder = join(packageRoot, 'dist/web');
    const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .map((name) => join(folder, name))
      .filter((file) => statSync(file).isFile());
    const bytes = files.map((file) => gzipSync(readFileSync(file), { level: 9 }).length);
    expect(bytes.reduce((sum, each) => sum + each, 0)).toBeLessThan(bundle_bytes_max);
    expect(readFileSync(join(folder, 'index.html'), 'utf8')).not.toMatch(/(src|href)="(https?:)?\/\//);
  });

  it('says what is wrong with a key, and keeps it out of the address', async () => {
    const page = await open();
    await page.getByLabel('API key, or the operator’s token').fill('hsk-not-a-key');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await expect.poll(() => page.getByRole('alert').textContent()).toContain('knows no such key');
    await signInWith(page, stage.key);
    expect(page.url()).not.toContain('hsk-');
    expect(await page.evaluate('JSON.stringify(localStorage)')).not.toContain('hsk-');
  });

  it.each(['light', 'dark'] as const)('shows every page to the operator, %s', async (colorScheme) => {
    const page = await asOperator({ colorScheme });
    const seen: Record<(typeof pages)[number], string> = {
      models: 'llama-3.3-70b-instruct',
      jobs: 'nid101',
      live: 'Time to first token',
      usage: 'Prompt tokens',
      keys: 'tester',
      chat: 'Make a key for this tab',
    };
    for (const name of pages) {
      await goTo(page, name);
      await page.getByText(seen[name]).first().waitFor();
      // Until then lines have one point, and rates none.
      if (name === 'live')
        await expect.poll(() => page.locator('.legend').first().textContent()).toMatch(/\d/);
      await picture(page, `${name}-${colorScheme}`);
      expect(await seriousFindings(page), name).toEqual([]);
    }
  });

  it('tells of hardware, load, what waits and what sleeps', async () => {
    const page = await asOperator();
    const large = page.getByRole('region', { name: 'llama-3.3-70b-instruct' });
    await expect.poll(() => large.textContent()).toContain('8× GH200');
    await expect.poll(() => large.textContent()).toContain('105 of 128, 7 wait');
    /** Minutes in its text, and how many have passed since it was made. */
    const minutes = async (pattern: RegExp): Promise<[shown: number, passed: number]> => {
      const shown = Number(pattern.exec((await large.textContent()) ?? '')?.[1]);
      return [shown, Math.floor((Date.now() - made_ms) / 60_000)];
    };
    const waits = /Job 481561 waits for (\d+) min: jobs of higher priority/;
    await expect.poll(() => minutes(waits).then(([shown, passed]) => shown - passed)).toBe(12);
    const tensLeft = (pattern: RegExp): Promise<number> =>
      minutes(pattern).then(([shown, passed]) => Math.floor((shown + passed) / 10));
    await expect.poll(() => tensLeft(/Job 481561 waits for .*? in (\d+) min/)).toBe(2);
    await large.getByRole('button', { name: '2 replicas' }).click();
    await expect.poll(() => tensLeft(/nid002.*?(\d\d) min/)).toBe(3);
    await picture(page, 'models-open');
    const asleep = page.getByRole('region', { name: 'deepseek-r1' });
    expect(await asleep.textContent()).toContain('The next request starts it');
    await page.getByRole('searchbox').fill('xeon');
    expect(await page.locator('.model h2').allTextContents()).toEqual(['qwen3-8b']);
  });

  it('makes a key, chats with it, and revokes it', async () => {
    const page = await asOperator();
    await goTo(page, 'keys');
    await page.getByRole('button', { name: 'New key' }).click();
    await page.getByRole('textbox', { name: /^Name/ }).fill('<b>alice</b>');
    await page.getByLabel('Budget, tokens').fill('100000');
    await page.getByLabel('Requests a minute').fill('2');
    await picture(page, 'key-form');
    expect(await seriousFindings(page)).toEqual([]);
    await page.getByRole('button', { name: 'Make the key' }).click();
    const key = await page.locator('.secret code').textContent();
    expect(key).toMatch(/^hsk-/);
    await picture(page, 'key-made');
    await page.getByRole('button', { name: 'Use it for the chat here' }).click();
    const row = page.getByRole('row', { name: /alice/ });
    expect(await row.textContent()).toContain('<b>alice</b>');
    await expect.poll(() => row.textContent()).toContain('100,000 tokens a month');
    await goTo(page, 'chat');
    await page.getByRole('combobox').selectOption('qwen3-8b');
    await page.getByLabel('Message').fill('What happens at the time limit?');
    await page.keyboard.press('Enter');
    await page.getByText('tokens/s').waitFor();
    await goTo(page, 'keys');
    await row.getByRole('button', { name: 'Revoke' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
    await expect.poll(() => row.count()).toBe(0);
    const refused = await fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
    expect(refused.status).toBe(401);
  });

  describe('the chat', () => {
    it('shows markdown as such, and nothing that would act', async () => {
      const page = await open();
      await signInWith(page, stage.key);
      await page.getByRole('link', { name: 'Chat' }).first().click();
      await page.getByRole('combobox').selectOption('large');
      await page.getByLabel('Message').fill('What happens when a job reaches its time limit?');
      await page.keyboard.press('Enter');
      const answer = page.locator('.message.assistant');
      await expect.poll(() => answer.locator('footer').count()).toBe(1);
      expect(await answer.locator('table td').allTextContents()).toContain('20 minutes before the end');
      expect(await answer.locator('pre').textContent()).toContain('hpcserve deploy model.yaml');
      expect(
        await answer.locator('a').evaluateAll((links) => links.map((link) => link.getAttribute('href'))),
      ).toEqual(['https://slurm.schedmd.com/sbatch.html', 'https://example.org/x.png']);
      expect(await answer.locator('img, script').count()).toBe(0);
      expect(await page.evaluate(`'attacked' in window`)).toBe(false);
      expect(await answer.locator('footer').textContent()).toMatch(
        /on nid00\d.*4 prompt \+ 3 answer tokens.*first after/,
      );
      await picture(page, 'chat-answer');
      expect(await seriousFindings(page)).toEqual([]);
      await page.getByRole('button', { name: 'Answer again' }).click();
      await expect.poll(() => answer.locator('footer').count()).toBe(1);
      expect(await page.locator('.message').count()).toBe(2);
      await page.getByRole('button', { name: 'Parameters' }).click();
      await picture(page, 'chat-parameters');
      expect(await seriousFindings(page)).toEqual([]);
    });

    it('stops when it is told to, by a key', async () => {
      const page = await open();
      await signInWith(page, stage.key);
      await page.keyboard.press('g');
      await page.keyboard.press('c');
      await page.getByRole('combobox').selectOption('talks-long');
      await page.getByLabel('Message').fill('go on');
      await page.keyboard.press('Enter');
      await page.getByText('word word word').waitFor();
      await page.keyboard.press('Escape');
      await page.getByText('stopped').waitFor();
      expect((await page.locator('.message.assistant').textContent())!.length).toBeLessThan(1500);
    });
  });

  /** Gateways that know users show them their own usage and keys; others, the way to the operator's. */
  const knowsUsers = async (): Promise<boolean> => (await stage.admin('/hpcserve/v1/me')).ok;

  it('shows a key no accounts but its own', async () => {
    const page = await open();
    await signInWith(page, stage.key);
    const seen = (await knowsUsers()) ? /of tester/i : 'This page is for the operator of the gateway.';
    for (const name of ['usage', 'keys']) {
      await goTo(page, name);
      await page.getByText(seen).waitFor();
    }
    await picture(page, 'keys-of-a-key');
  });

  it('rotates a key, and looks into usage, where the gateway can', async () => {
    const page = await asOperator();
    const { id, key } = await stage.newKey({});
    const valid = async (secret: string): Promise<boolean> =>
      (await fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${secret}` } })).ok;
    await goTo(page, 'keys');
    await page.getByRole('row', { name: id }).getByRole('button', { name: 'Rotate' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Rotate' }).click();
    if (!(await knowsUsers())) {
      await page.getByText('Not available at this gateway').waitFor();
      expect(await valid(key)).toBe(true);
      return;
    }
    const rotated = await page.locator('.secret code').textContent();
    expect([await valid(key), await valid(rotated!)]).toEqual([false, true]);
    await page.getByRole('button', { name: 'Done' }).click();
    await goTo(page, 'usage');
    await page.getByRole('button', { name: 'qwen3-8b' }).click();
    // Of this model only, by user.
    await expect.poll(() => page.locator('tbody').textContent()).toContain('tester');
    expect(await page.locator('tbody').textContent()).not.toContain('llama');
    await picture(page, 'usage-filter');
    expect(await seriousFindings(page)).toEqual([]);
    await page.getByRole('button', { name: 'Take the filter model qwen3-8b away' }).click();
    await expect.poll(() => page.locator('tbody').textContent()).toContain('llama');
  });

  it('changes of a key what was changed, and nothing that it does not show', async () => {
    const page = await asOperator();
    const expires_at_ms = Date.now() + 3 * 86_400_000;
    const { id } = await stage.newKey({ expires_at_ms });
    const settings = async (): Promise<unknown> => {
      const answer = await stage.admin(`/hpcserve/v1/keys`);
      const { keys } = (await answer.json()) as { keys: { id: string; settings: unknown }[] };
      return keys.find((key) => key.id === id)?.settings;
    };
    await goTo(page, 'keys');
    const change = async (label: string, value: string): Promise<void> => {
      await page.getByRole('row', { name: id }).getByRole('button', { name: 'Change' }).click();
      await page.getByLabel(label).fill(value);
      await page.getByRole('button', { name: 'Change the key' }).click();
      await expect.poll(() => page.getByRole('dialog').count()).toBe(0);
    };
    await change('Requests a minute', '5');
    expect(await settings()).toEqual({ expires_at_ms, requests_per_minute: 5 });
    const day = new Date(expires_at_ms + 86_400_000).toISOString().slice(0, 10);
    await change('Valid until (UTC)', day);
    expect(await settings()).toEqual({
      expires_at_ms: Date.parse(`${day}T23:59:59Z`),
      requests_per_minute: 5,
    });
  });

  it('changes a key with less of a budget, or more time, than anybody would type', async () => {
    const page = await asOperator();
    const budget = { device_s: 10, window: 'total' as const };
    const expires_at_ms = Date.UTC(12_000, 0, 1, 12);
    const { id } = await stage.newKey({ budget, expires_at_ms });
    const settings = async (): Promise<unknown> => {
      const { keys } = (await (await stage.admin('/hpcserve/v1/keys')).json()) as {
        keys: { id: string; settings: unknown }[];
      };
      return keys.find((key) => key.id === id)?.settings;
    };
    await goTo(page, 'keys');
    const change = async (label: string, value: string): Promise<void> => {
      await page.getByRole('row', { name: id }).getByRole('button', { name: 'Change' }).click();
      await page.getByLabel(label).fill(value);
      await page.getByRole('button', { name: 'Change the key' }).click();
      await expect.poll(() => page.getByRole('dialog').count()).toBe(0);
    };
    await change('Requests a minute', '5');
    expect(await settings()).toEqual({ budget, expires_at_ms, requests_per_minute: 5 });
    await change('Valid until (UTC)', '12001-02-03');
    expect(await settings()).toMatchObject({ expires_at_ms: Date.UTC(12_001, 1, 3, 23, 59, 59), budget });
  });

  it('blocks a key, which is refused from then on, and lets it in again', async () => {
    const page = await asOperator();
    const { id, key } = await stage.newKey({});
    const derived = await fetch(`${stage.url}/hpcserve/v1/keys`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: '{"name":"of it"}',
    });
    const { key: child } = (await derived.json()) as { key: string };
    const statuses = async (): Promise<number[]> => {
      const asked = [key, child].map((each) =>
        fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${each}` } }),
      );
      return (await Promise.all(asked)).map(({ status }) => status);
    };
    const user = await open();
    await signInWith(user, key);
    await goTo(page, 'keys');
    const row = page.getByRole('row', { name: id });
    const act = async (name: 'Block' | 'Unblock'): Promise<void> => {
      await row.getByRole('button', { name, exact: true }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByRole('button', { name, exact: true }).click();
      await expect.poll(() => dialog.count()).toBe(0);
    };
    expect(await statuses()).toEqual([200, 200]);
    await act('Block');
    await expect.poll(() => row.textContent()).toContain('blocked');
    await picture(page, 'key-blocked');
    expect(await seriousFindings(page)).toEqual([]);
    expect(await statuses()).toEqual([401, 401]);
    // Whoever is signed in with it is out, and told why.
    await user.getByText('The gateway does not take this key any more').waitFor();
    await act('Unblock');
    await expect.poll(() => row.textContent()).toContain('valid');
    expect(await statuses()).toEqual([200, 200]);
    // What a user may block herself, the operator alone lets in again.
    await signInWith(user, key);
    await goTo(user, 'keys');
    const own = user.getByRole('row', { name: id });
    await own.getByRole('button', { name: 'Block', exact: true }).click();
    await user.getByRole('dialog').getByRole('button', { name: 'Block', exact: true }).click();
    await user.getByText('The gateway does not take this key any more').waitFor();
    expect(await statuses()).toEqual([401, 401]);
  });

  it('shows a key with few models its own, and says what it cannot measure', async () => {
    const { key } = await stage.newKey({ models: ['qwen3-8b'] });
    const page = await open();
    await signInWith(page, key);
    await page.getByRole('region', { name: 'qwen3-8b' }).waitFor();
    expect(await page.locator('.model h2').allTextContents()).toEqual(['qwen3-8b']);
    await goTo(page, 'live');
    await page.getByText('are not available to this key').waitFor();
  });

  it('fits a phone', async () => {
    const page = await asOperator({ viewport: { width: 360, height: 740 } });
    for (const name of pages) {
      await goTo(page, name);
      await page.getByRole('heading', { level: 1 }).waitFor();
      await picture(page, `${name}-360`);
      const wide = await page.evaluate<number>('document.documentElement.scrollWidth');
      expect(wide, name).toBeLessThanOrEqual(360);
      expect(await page.locator('main').evaluate((main) => main.scrollWidth - main.clientWidth), name).toBe(
        0,
      );
      expect(await seriousFindings(page), name).toEqual([]);
    }
  });

  it('can be used by keyboard alone', async () => {
    const page = await open();
    await page.getByLabel('API key, or the operator’s token').waitFor();
    await page.keyboard.type(stage.key);
    await page.keyboard.press('Enter');
    await page.getByRole('navigation').waitFor();
    await page.keyboard.press('Tab');
    expect(await page.evaluate(`document.activeElement?.textContent`)).toBe('Skip to the page');
    await page.keyboard.press('Enter');
    expect(await page.evaluate(`document.activeElement?.id`)).toBe('main');
    await page.keyboard.press('?');
    await page.getByRole('dialog', { name: 'Keyboard' }).waitFor();
    await picture(page, 'keyboard');
    await page.keyboard.press('Escape');
    await expect.poll(() => page.getByRole('dialog').count()).toBe(0);
    await page.keyboard.press('g');
    await page.keyboard.press('m');
    await page.keyboard.press('/');
    expect(await page.evaluate(`document.activeElement?.getAttribute('type')`)).toBe('search');
  });

  it('exports usage', async () => {
    const page = await asOperator();
    await goTo(page, 'usage');
    const [file] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name: 'CSV' }).click(),
    ]);
    const text = readFileSync(await file.path(), 'utf8');
    expect(text).toMatch(/^model,requests,errors,prompt_tokens/);
    expect(text).toMatch(/\r\nqwen3-8b,\d/);
  });

  // The last one: it ends the gateway.
  it('says that the gateway is gone, keeps what it showed, and goes on when it is back', async () => {
    const page = await asOperator();
    await page.getByRole('region', { name: 'qwen3-8b' }).waitFor();
    await stage.gateway.close();
    await page.getByText('The gateway does not answer').waitFor();
    await picture(page, 'disconnected');
    expect(await page.getByRole('region', { name: 'qwen3-8b' }).count()).toBe(1);
    expect(await seriousFindings(page)).toEqual([]);
    again = await startGateway(stage.config, {
      log: pino({ level: 'silent' }),
      times: { poll_ms: 50, drain_ms: 200 },
    });
    expect(again.endpoint.url).toBe(stage.url);
    await page.getByText('The gateway answers again.').waitFor();
    await expect.poll(() => page.getByText('The gateway does not answer').count()).toBe(0);
    await expect
      .poll(() => page.getByRole('region', { name: 'qwen3-8b' }).textContent())
      .toContain('serving');
  });

  it('did nothing in all this that its policy forbids, and asked nobody else', () => {
    expect(opened.length).toBeGreaterThan(10);
    expect(opened.flatMap(({ wrong }) => wrong)).toEqual([]);
  });
});
