/** The dashboard before a model that computes: chat, load and memory as they are, and all of it below a prefix. */
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { chromiumFile, openBrowser, openPage, picture, signInWith, type Watched } from './browser.ts';
import { type PrefixProxy, prefixProxy } from './prefix-proxy.ts';

const needed = chromiumFile ? '' : ' [skipped: needs Chromium]';

describe.skipIf(!chromiumFile)(`the dashboard before a native model${needed}`, () => {
  let site: Site;
  let gateway: SiteGateway;
  let proxy: PrefixProxy;
  let browser: Browser;
  let watched: Watched;
  let page: Page;

  beforeAll(async () => {
    site = await Site.open();
    const model_path = join(site.folder, 'tiny.gguf');
    await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
    const unit = { engine: 'native' as const, model_path, context_tokens: 2048, kv_tokens: 8192 };
    const guide = { engine: 'native' as const, model_path: join(packageRoot, 'examples/guide.gguf') };
    // So slow that one can press a button before the answer ends.
    await site.start(
      [
        unitOf({ name: 'tiny', max_sequences: 4, batch_invariant: true }, unit),
        unitOf({ name: 'guide', max_sequences: 4 }, { ...guide, context_tokens: 1024, kv_tokens: 4096 }),
      ],
      { emulated_step_ms: 20 },
    );
    gateway = await gatewayOf(site);
    await gateway.untilServing('tiny', 1);
    await gateway.untilServing('guide', 1);
    proxy = await prefixProxy('/portal/llm', gateway.url);
    browser = await openBrowser();
    watched = await openPage(browser, `${proxy.url}/`);
    page = watched.page;
    await signInWith(page, gateway.key);
  }, 60_000);
  afterAll(async () => {
    await browser?.close();
    await proxy?.[Symbol.asyncDispose]();
    await gateway?.[Symbol.asyncDispose]();
    await site?.[Symbol.asyncDispose]();
  });

  const answer = () => page.locator('.message.assistant').last();

  it('answers with the settings that it opens with, however short the context is', async () => {
    await page.getByRole('link', { name: 'Chat' }).first().click();
    await page.getByLabel('Model').selectOption('guide');
    await page.getByLabel('Message').fill('What is hpcserve?');
    await page.keyboard.press('Enter');
    // Drawn, and not the likeliest words each time: what it says may be another answer.
    await expect.poll(() => answer().locator('footer').textContent()).toMatch(/guide · on .* answer tokens/);
    expect((await answer().locator('.markdown').textContent())!.length).toBeGreaterThan(20);
    await picture(page, 'guide-chat');
    await page.getByRole('button', { name: 'New' }).click();
    await page.getByLabel('Model').selectOption('tiny');
  });

  it('answers with tokens that are counted', async () => {
    await page.getByRole('button', { name: 'Parameters' }).click();
    await page.getByLabel('Most tokens').fill('24');
    await page.getByLabel('Seed').fill('7');
    await page.getByLabel('Message').fill('How long is a queue?');
    await page.keyboard.press('Enter');
    await expect
      .poll(() => answer().locator('footer').textContent())
      .toMatch(/tiny · on .* 24 answer tokens · .* tokens\/s/);
    const first = await answer().locator('.markdown').textContent();
    expect(first!.length).toBeGreaterThan(10);
    await picture(page, 'native-chat');
    await page.getByRole('button', { name: 'Answer again' }).click();
    await expect.poll(() => answer().locator('footer').count()).toBe(1);
    // The same seed, the same words.
    expect(await answer().locator('.markdown').textContent()).toBe(first);
  });

  it('stops an answer, and the replica computes it no further', async () => {
    await page.getByLabel('Most tokens').fill('1500');
    await page.getByLabel('Message').fill('And how wide?');
    await page.keyboard.press('Enter');
    await expect.poll(() => answer().locator('.markdown').count()).toBe(1);
    await expect.poll(async () => (await gateway.serving('tiny'))[0]?.models[0]?.running).toBe(1);
    await page.getByRole('button', { name: 'Stop' }).click();
    await page.getByText('stopped').waitFor();
    await expect.poll(async () => (await gateway.serving('tiny'))[0]?.models[0]?.running).toBe(0);
  });

  it('shows what that took, as it was measured', async () => {
    await page.getByRole('link', { name: 'Live' }).click();
    const legend = (title: string) => page.locator('.chart', { hasText: title }).locator('.legend');
    // Points of the answers above: the page has listened since the sign-in.
    await expect.poll(() => legend('Time to first token').textContent()).toMatch(/p50 [\d.]+ m?s/);
    await expect.poll(() => legend('Time per output token').textContent()).toMatch(/TPOT [\d.]+ ms/);
    await picture(page, 'native-live');
    await page.getByRole('link', { name: 'Models' }).click();
    const model = page.getByRole('region', { name: 'tiny' });
    await expect.poll(() => model.textContent()).toContain('0 of 4');
  });

  it('asked nothing beside the prefix that it lies below', () => {
    expect(proxy.strayed).toEqual([]);
    expect(watched.wrong).toEqual([]);
  });
});
