/** A real Chromium with the dashboard in it, and pictures of what it shows. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { packageRoot } from '../../host/package-root.ts';
import { installPrograms } from '../cluster/install.ts';

/** Debian's, and what other systems call it. */
const names = ['chromium', 'chromium-browser', 'google-chrome', 'chrome'];

/** Undefined where this machine has none, and none can be installed. */
export const chromiumFile = process.env.HPCSERVE_TEST_CHROMIUM ?? found() ?? (await installed());

function found(): string | undefined {
  return names.map(fileOf).find(Boolean);
}

async function installed(): Promise<string | undefined> {
  const installation = await installPrograms(['chromium'], ['chromium']);
  return installation.ready ? found() : undefined;
}

function fileOf(name: string): string | undefined {
  const { stdout } = spawnSync('sh', ['-c', 'command -v "$0"', name], { encoding: 'utf8' });
  const file = stdout.trim();
  return file !== '' && existsSync(file) ? file : undefined;
}

/** Ignored by git. */
const pictureFolder = join(packageRoot, 'build', 'dashboard-pictures');

export async function openBrowser(): Promise<Browser> {
  mkdirSync(pictureFolder, { recursive: true });
  return await chromium.launch({
    executablePath: chromiumFile!,
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--force-color-profile=srgb'],
  });
}

export interface Watched {
  page: Page;
  /** What the page did that it must not: errors, refused content, questions to others. */
  wrong: string[];
}

/** A window of its own, with storage of its own. */
export async function openPage(
  browser: Browser,
  url: string,
  options: BrowserContextOptions = {},
): Promise<Watched> {
  const context = await browser.newContext({
    viewport: { width: 1360, height: 860 },
    locale: 'en',
    ...options,
  });
  const page = await context.newPage();
  const wrong: string[] = [];
  const { origin } = new URL(url);
  page.on('pageerror', (error) => wrong.push(`error: ${error.message}`));
  page.on('console', (message) => {
    // What a gateway refuses, and its absence, are shown on the page: here they are only written down.
    if (message.type() !== 'error' || message.text().startsWith('Failed to load resource')) return;
    wrong.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => {
    const asked = request.url();
    if (!asked.startsWith(origin) && !/^(data|blob):/.test(asked)) wrong.push(`asked ${asked}`);
  });
  await page.goto(url);
  return { page, wrong };
}

export async function signInWith(page: Page, secret: string): Promise<void> {
  await page.getByLabel('API key, or the operator’s token').fill(secret);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('navigation', { name: 'Pages' }).waitFor();
}

export async function picture(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: join(pictureFolder, `${name}.png`) });
}

const axe = readFileSync(join(packageRoot, 'node_modules/axe-core/axe.min.js'), 'utf8');

interface AxeResults {
  violations: { id: string; impact: string; nodes: { html: string; failureSummary: string }[] }[];
}

/** What axe-core finds serious or worse. It is given to the page by the debugger, past the page's own policy. */
export async function seriousFindings(page: Page): Promise<string[]> {
  const session = await page.context().newCDPSession(page);
  const run = async (expression: string): Promise<unknown> => {
    const answer = await session.send('Runtime.evaluate', {
      expression,
      awaitPromise: true,
      returnByValue: true,
    });
    if (answer.exceptionDetails) throw new Error(JSON.stringify(answer.exceptionDetails));
    return answer.result.value;
  };
  await run(`${axe}; undefined`);
  const { violations } = (await run('axe.run(document, { resultTypes: ["violations"] })')) as AxeResults;
  await session.detach();
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(
      ({ id, nodes }) =>
        `${id}: ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join(' | ')}`,
    );
}
