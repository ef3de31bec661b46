/** An engine that may sleep, behind a real agent: nobody who asks notices, but for the time that it takes to wake. */
import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { test } from 'vitest';
import { sleepReportSchema } from '../../../spec/sleep-report.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { writeVllmSources } from '../adapters/vllm-sources.ts';
import { type RunningAgent, Site, unitOf } from '../support.ts';

/** Programs and Python packages as an installation of vLLM has them, with a server that keeps to its rules. */
async function installed(site: Site): Promise<Record<string, string>> {
  const folder = join(site.folder, 'installed');
  await writeVllmSources(folder, '0.18.0');
  const server = fileURLToPath(new URL('../adapters/vllm-rules.mjs', import.meta.url));
  await mkdir(join(folder, 'bin'));
  await writeFile(join(folder, 'bin/vllm'), `#!/bin/sh\nexec '${process.execPath}' '${server}' "$@"\n`);
  await chmod(join(folder, 'bin/vllm'), 0o755);
  return { PATH: `${join(folder, 'bin')}${delimiter}${process.env.PATH}`, PYTHONPATH: folder };
}

async function start(
  site: Site,
  name: string,
  keep_alive_s: number,
  { wake_ms = 50, stall_s = 300 } = {},
): Promise<RunningAgent> {
  const { timeouts } = unitOf({ name }).model;
  const model = { name, engine_args: ['--enable-sleep-mode'], timeouts: { ...timeouts, stall_s } };
  const environment = { ...(await installed(site)), VLLM_RULES_WAKE_MS: String(wake_ms) };
  return site.start([unitOf(model, { engine: 'vllm' })], { sharing: { keep_alive_s } }, environment);
}

const words = async (agent: RunningAgent): Promise<string[]> =>
  (await agent.engineLog(agent.launch.units[0]!.unit)).filter((line) => /^(sleep|wake|asked)/.test(line));

test.concurrent('sleeps when nobody asks, and is woken once for all that ask then', async ({ expect }) => {
  await using site = await Site.open();
  const agent = await start(site, 'dozing', 2);
  const record = await site.serving('dozing', 30_000);
  const answers = async (count: number): Promise<string[]> => {
    const asked = await Promise.all(Array.from({ length: count }, () => site.ask(record, 'hello')));
    return Promise.all(
      asked.map(async ({ body }) => JSON.parse(await body.text()).choices[0].message.content),
    );
  };
  const sleepsAfter = (count: number) =>
    eventually(
      async () => (await words(agent)).filter((word) => word === 'sleep 1').length > count || undefined,
      'sleep',
      20_000,
    );
  await sleepsAfter(0);
  const state = async () => {
    const { body } = await site.pool(record).request({ method: 'GET', path: agentPaths.sleep });
    return sleepReportSchema.parse(await body.json());
  };
  // Its answer is on its way when it says so in its log.
  await expect.poll(async () => (await state()).state).toBe('asleep');
  expect(await state()).toMatchObject({ model: 'dozing', engine: 'vllm', running: 0, waiting: 0 });
  expect(await answers(5)).toEqual(Array(5).fill('awake'));
  const count = async (word: string) => (await words(agent)).filter((each) => each === word).length;
  // What the engine says is in its log a moment after its answer.
  await expect.poll(() => count('asked')).toBe(5);
  expect(await count('wake')).toBe(1);
  await sleepsAfter(1);
  expect(await answers(1)).toEqual(['awake']);
  expect(await words(agent)).not.toContain('asked asleep');
}, 60_000);

test.concurrent('one that does not wake is said to be unable to serve, so that another is asked', async ({
  expect,
}) => {
  await using site = await Site.open();
  const agent = await start(site, 'deep', 0.3);
  const record = await site.serving('deep', 30_000);
  await eventually(async () => (await words(agent)).includes('sleep 1') || undefined, 'sleep');
  const { statusCode, body } = await site.ask(record, 'hello');
  expect(statusCode).toBe(503);
  expect(await body.text()).toMatch(/sleeps and does not wake.*\/wake_up answers 500/);
}, 60_000);

test.concurrent('one that fell asleep and could not say so is woken all the same', async ({ expect }) => {
  await using site = await Site.open();
  const agent = await start(site, 'mute', 0.3);
  const record = await site.serving('mute', 30_000);
  await eventually(async () => (await words(agent)).includes('sleep 1') || undefined, 'sleep');
  const { statusCode, body } = await site.ask(record, 'hello');
  expect([statusCode, JSON.parse(await body.text()).choices[0].message.content]).toEqual([200, 'awake']);
  expect(await words(agent)).not.toContain('asked asleep');
}, 60_000);

test.concurrent('is not taken for one that hangs while requests wait until it is awake', async ({
  expect,
}) => {
  await using site = await Site.open();
  const agent = await start(site, 'slow', 1, { wake_ms: 6000, stall_s: 1 });
  const record = await site.serving('slow', 30_000);
  await eventually(async () => (await words(agent)).includes('sleep 1') || undefined, 'sleep', 20_000);
  const { statusCode, body } = await site.ask(record, 'hello');
  expect([statusCode, JSON.parse(await body.text()).choices[0].message.content]).toEqual([200, 'awake']);
}, 60_000);

test.concurrent('is not taken for one that hangs while a client sends its request', async ({ expect }) => {
  await using site = await Site.open();
  const agent = await start(site, 'patient', 60, { stall_s: 1 });
  const record = await site.serving('patient', 30_000);
  async function* slowly(): AsyncGenerator<string> {
    yield '{"model":"m","messages":[{"role":"user",';
    await delay(6000);
    yield '"content":"hello"}]}';
  }
  const { statusCode, body } = await site.pool(record).request({
    method: 'POST',
    path: '/v1/chat/completions',
    headers: { 'content-type': 'application/json' },
    body: Readable.from(slowly()),
  });
  expect([statusCode, JSON.parse(await body.text()).choices[0].message.content]).toEqual([200, 'awake']);
  expect((await agent.state())?.sessions.find(({ unit }) => unit)?.error).toBeUndefined();
}, 60_000);

test.concurrent('one that is asked again and again does not sleep, and does once nobody asks', async ({
  expect,
}) => {
  await using site = await Site.open();
  const keep_alive_s = 3;
  const agent = await start(site, 'awake', keep_alive_s);
  const record = await site.serving('awake', 30_000);
  const until_ms = performance.now() + 2 * 1000 * keep_alive_s;
  const asked: string[] = [];
  let last_ms = 0;
  while (performance.now() < until_ms) {
    last_ms = performance.now();
    await (await site.ask(record, 'hello')).body.dump();
    asked.push('asked');
    await delay(500);
  }
  await expect.poll(() => words(agent)).toEqual(asked);
  await eventually(async () => (await words(agent)).length > asked.length || undefined, 'sleep', 20_000);
  expect(performance.now() - last_ms).toBeGreaterThanOrEqual(1000 * keep_alive_s);
  // It is looked at meanwhile, and sleeps already.
  await delay(1500 * keep_alive_s);
  expect(await words(agent)).toEqual([...asked, 'sleep 1']);
}, 60_000);
