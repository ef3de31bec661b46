/** How soon the dashboard can be used, in a real Chromium on cores that nobody else has. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Stage } from '../gateway/support.ts';
import { chromiumFile, openBrowser, openPage, picture, seriousFindings } from './browser.ts';
import { startDemoSite } from './demo-site.ts';

const interactive_ms_max = 1000;

describe.skipIf(!chromiumFile)(`the dashboard${chromiumFile ? '' : ' [skipped: needs Chromium]'}`, () => {
  let stage: Stage;
  let browser: Browser;

  beforeAll(async () => {
    stage = await startDemoSite();
    browser = await openBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    await stage?.close();
  });

  it('can be used in under a second', async () => {
    const { page, wrong } = await openPage(browser, `${stage.url}/dashboard/`);
    await page.getByRole('button', { name: 'Sign in' }).waitFor();
    const ready_ms = await page.evaluate<number>(
      `Math.max(performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd,
        performance.getEntriesByName('first-contentful-paint')[0].startTime)`,
    );
    console.log(`interactive after ${Math.round(ready_ms)} ms`);
    expect(ready_ms).toBeLessThan(interactive_ms_max);
    await picture(page, 'sign-in');
    expect(await seriousFindings(page)).toEqual([]);
    expect(wrong).toEqual([]);
  });
});
