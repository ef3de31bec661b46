/** Several engines that may sleep, on one device: one is awake, and requests decide which. */
import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import type { AgentState } from '../../../spec/agent-state.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { sleepReportSchema } from '../../../spec/sleep-report.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { gatewayOf } from '../../gateway/with-agents.ts';
import { eventually } from '../../mesh/support.ts';
import { writeVllmSources } from '../adapters/vllm-sources.ts';
import { Site, unitOf } from '../support.ts';

/** As `sleep.test.ts` has it; all engines of the device write to one file who is awake on it. */
async function installed(site: Site): Promise<Record<string, string>> {
  const folder = join(site.folder, 'installed');
  await writeVllmSources(folder, '0.18.0');
  const server = fileURLToPath(new URL('../adapters/vllm-rules.mjs', import.meta.url));
  await mkdir(join(folder, 'bin'));
  await writeFile(join(folder, 'bin/vllm'), `#!/bin/sh\nexec '${process.execPath}' '${server}' "$@"\n`);
  await chmod(join(folder, 'bin/vllm'), 0o755);
  return {
    PATH: `${join(folder, 'bin')}${delimiter}${process.env.PATH}`,
    PYTHONPATH: folder,
    VLLM_RULES_DEVICE: join(site.folder, 'device'),
  };
}

const sleeping = (name: string) => unitOf({ name, engine_args: ['--enable-sleep-mode'] }, { engine: 'vllm' });
const promised = (name: string, ttft_ms = 100) =>
  unitOf({ name, engine_args: ['--enable-sleep-mode'], slo: { ttft_ms } }, { engine: 'vllm' });

const reportOf = (state: AgentState, unit: string) =>
  state.sessions.find((session) => session.unit === unit)?.turns;
/** How many wait for a turn now: the agent writes it down where something else changes, too. */
async function waitingFor(site: Site, record: SessionRecord): Promise<number> {
  const { body } = await site.pool(record).request({ method: 'GET', path: agentPaths.state });
  return reportOf((await body.json()) as AgentState, record.metadata.unit!)!.waiting;
}

test('three start one after the other, and each is woken when its turn comes; two are never awake', async () => {
  await using site = await Site.open();
  const names = ['one', 'two', 'three'];
  const agent = await site.start(names.map(sleeping), {}, await installed(site));
  const records = await Promise.all(names.map((name) => site.serving(name, 60_000)));
  const ask = async (at: number): Promise<string> => {
    const { body, statusCode } = await site.ask(records[at]!, 'hello');
    expect(statusCode).toBe(200);
    return JSON.parse(await body.text()).choices[0].message.content;
  };
  // All at once, more than a turn's worth of each; then the first again, which sleeps by then or does not.
  const all = await Promise.all(Array.from({ length: 12 }, (_, request) => ask(request % 3)));
  expect(all).toEqual(Array(12).fill('awake'));
  expect(await ask(0)).toBe('awake');
  const words = async (name: string) =>
    (await agent.engineLog(`${name}-0`)).filter((line) => /^(sleep|wake|asked|beside)/.test(line));
  for (const name of names) {
    const told = await eventually(async () => {
      const lines = await words(name);
      return lines.filter((line) => line === 'asked').length >= 4 ? lines : undefined;
    }, 'answers');
    expect(told).not.toContain('asked asleep');
    // What it says where another has the device's memory as it starts or wakes.
    expect(told.filter((line) => line.startsWith('beside'))).toEqual([]);
    // Four requests at once are one turn, not four.
    expect(told.filter((line) => line === 'wake').length).toBeLessThanOrEqual(2);
  }
}, 90_000);

test('which one is awake, and who waits for another to wake, is told over the gateway', async () => {
  await using site = await Site.open();
  await using gateway = await gatewayOf(site);
  await site.start(
    ['one', 'two'].map(sleeping),
    {},
    { ...(await installed(site)), VLLM_RULES_WAKE_MS: '3000' },
  );
  await Promise.all(['one', 'two'].map((name) => gateway.untilServing(name, 1, 60_000)));
  const told = async () => {
    const answer = await gateway.admin('/hpcserve/v1/devices');
    const { engines } = (await answer.json()) as { engines: { node: string; report: unknown }[] };
    expect(engines.map(({ node }) => node)).toEqual(['n0', 'n0']);
    return engines.map(({ report }) => sleepReportSchema.parse(report));
  };
  const first = await told();
  expect(first.map(({ state }) => state).sort()).toEqual(['asleep', 'awake']);
  expect(new Set(first.map(({ device }) => device))).toEqual(new Set(['cpu 0']));
  const { model } = first.find(({ state }) => state === 'asleep')!;
  const answer = site.ask(await site.serving(model), 'hello').then(({ body }) => body.text());
  const wakes = await eventually(async () => {
    const now = await told();
    return now.some(({ state }) => state === 'wakes') ? now : undefined;
  }, 'it wakes');
  expect(wakes.find((one) => one.model === model)).toMatchObject({ state: 'wakes', running: 0, waiting: 1 });
  expect(wakes.find((one) => one.model !== model)).toMatchObject({ state: 'asleep', waiting: 0 });
  expect(JSON.parse(await answer).choices[0].message.content).toBe('awake');
  const after = (await told()).find((one) => one.model === model)!;
  expect(after).toMatchObject({ state: 'awake', waiting: 0, turns: { waited: 1, refused: 0 } });
  expect(after.wake_ms).toBeGreaterThanOrEqual(3000);
}, 90_000);

test('of those that wait, the one with the least headroom is woken first, whoever asked before', async () => {
  await using site = await Site.open();
  // Long enough that all of them wait while the first change is under way.
  const slow = { ...(await installed(site)), VLLM_RULES_WAKE_MS: '4000' };
  const units = [sleeping('one'), sleeping('two'), promised('patient', 90_000), promised('urgent')];
  await site.start(units, {}, slow);
  const records = await Promise.all(units.map(({ model }) => site.serving(model.name, 60_000)));
  const answered: string[] = [];
  const ask = async (at: number): Promise<void> => {
    const { statusCode, body } = await site.ask(records[at]!, 'hello');
    await body.dump();
    expect(statusCode).toBe(200);
    answered.push(units[at]!.model.name);
  };
  await ask(0);
  const asked: Promise<void>[] = [];
  for (const at of [1, 2, 3]) {
    asked.push(ask(at));
    await eventually(async () => (await waitingFor(site, records[at]!)) === 1 || undefined, 'it waits');
  }
  await Promise.all(asked);
  expect(answered).toEqual(['one', 'two', 'urgent', 'patient']);
}, 90_000);

test('one that ends leaves the device to the others, and comes back when it can', async () => {
  await using site = await Site.open();
  const agent = await site.start(['one', 'two'].map(sleeping), {}, await installed(site));
  const [one, two] = await Promise.all(['one', 'two'].map((name) => site.serving(name, 60_000)));
  const answer = async (record: typeof one): Promise<number> => {
    const { body, statusCode } = await site.ask(record!, 'hello');
    await body.dump();
    return statusCode;
  };
  expect(await answer(one)).toBe(200);
  const before = (await agent.engineLog('one-0')).find((line) => line.startsWith('pid '))!;
  process.kill(Number(before.split(' ')[1]), 'SIGKILL');
  expect(await answer(two)).toBe(200);
  const again = await eventually(async () => {
    const record = await site.serving('one', 60_000);
    return record.session_id === one!.session_id ? undefined : record;
  }, 'a new session');
  expect(await answer(again)).toBe(200);
  expect(await answer(two)).toBe(200);
}, 90_000);

test('what would break a promise is refused with a time; what is certain, or promised nothing, waits', async () => {
  await using site = await Site.open();
  const units = [promised('one'), promised('two'), sleeping('free')];
  const slow = { ...(await installed(site)), VLLM_RULES_ANSWER_MS: '4000' };
  const agent = await site.start(units, {}, slow);
  const names = ['one', 'two', 'free'];
  const [one, two, free] = await Promise.all(names.map((name) => site.serving(name, 60_000)));
  const ask = async (record: typeof one, headers: Record<string, string> = {}) => {
    const { statusCode, body, headers: said } = await site.ask(record!, 'hello', { headers });
    return { status: statusCode, text: await body.text(), after: Number(said['retry-after']) };
  };
  // On a device where nobody is asked, its waking keeps nobody out; and what answers take is known from then on.
  expect((await ask(one)).status).toBe(200);
  expect((await ask(two)).status).toBe(200);
  const long = ask(two);
  const asked = async (unit: string) =>
    (await agent.engineLog(unit)).filter((line) => line === 'asked').length;
  await eventually(async () => ((await asked('two-0')) === 2 ? true : undefined), 'the long one');
  // The first is let in, late as it is; those that follow are measured by it.
  const first = ask(one);
  await eventually(async () => (await waitingFor(site, one!)) === 1 || undefined, 'it waits');
  const refused = await ask(one);
  expect([refused.status, JSON.parse(refused.text).error]).toMatchObject([
    429,
    { type: 'rate_limit_error', code: 'rate_limit_exceeded' },
  ]);
  expect((await ask(one)).status).toBe(429);
  expect(refused.text).toMatch(/its first token would come \d+ ms late: others have their turns before/);
  expect(refused.after).toBeGreaterThanOrEqual(1);
  expect(refused.after).toBeLessThanOrEqual(4);
  const [certain, unpromised] = await Promise.all([ask(one, { 'x-hpcserve-continues': '1' }), ask(free)]);
  const let_in = [await long, await first, certain, unpromised];
  expect(let_in.map(({ status }) => status)).toEqual([200, 200, 200, 200]);
  const state = await agent.stateWhere(
    (seen) => reportOf(seen, 'free-0')?.waited === 1 && reportOf(seen, 'one-0')?.waiting === 0,
    'turns in the state',
  );
  // The log has them together, once a minute.
  const log = await readFile(join(agent.launch.launch_folder, 'n0.agent.log'), 'utf8');
  expect(log.match(/requests are refused/g)).toHaveLength(1);
  expect(reportOf(state, 'one-0')).toMatchObject({ refused: 2, change_ms: expect.any(Number) });
  expect(reportOf(state, 'free-0')).toMatchObject({ refused: 0, waiting: 0 });
}, 120_000);

test('one that is always asked gives the device up to another that something is promised to', async () => {
  await using site = await Site.open();
  const slow = { ...(await installed(site)), VLLM_RULES_ANSWER_MS: '2000' };
  const agent = await site.start(
    ['busy', 'rare'].map((name) => promised(name)),
    {},
    slow,
  );
  const [busy, rare] = await Promise.all(['busy', 'rare'].map((name) => site.serving(name, 60_000)));
  const ask = async (record: typeof busy): Promise<number> => {
    const { body, statusCode } = await site.ask(record!, 'hello');
    await body.dump();
    return statusCode;
  };
  let isOver = false;
  const keepAsking = async (after_ms: number): Promise<number> => {
    await delay(after_ms);
    let answered = 0;
    while (!isOver) {
      if ((await ask(busy)) === 200) answered++;
      else await delay(200);
    }
    return answered;
  };
  // At each moment one of its answers has more left than is promised to the other.
  const neighbours = [keepAsking(0), keepAsking(1000)];
  await eventually(
    async () => (await agent.engineLog('busy-0')).filter((line) => line === 'asked').length >= 4 || undefined,
    'answers',
    60_000,
  );
  expect(await ask(rare)).toBe(200);
  isOver = true;
  for (const answered of await Promise.all(neighbours)) expect(answered).toBeGreaterThan(0);
}, 120_000);

test('who leaves or is refused waits no more, and no engine sleeps while it computes', async () => {
  await using site = await Site.open();
  const slow = { ...(await installed(site)), VLLM_RULES_ANSWER_MS: '6000' };
  const agent = await site.start([promised('next'), sleeping('awake')], {}, slow);
  const [next, awake] = await Promise.all(['next', 'awake'].map((name) => site.serving(name, 60_000)));
  const ask = async (record: typeof next, more: { signal?: AbortSignal } = {}): Promise<number> => {
    const { body, statusCode } = await site.ask(record!, 'hello', more);
    await body.dump();
    return statusCode;
  };
  let isAnswered = false;
  const long = ask(awake).finally(() => {
    isAnswered = true;
  });
  const words = () => agent.engineLog('awake-0');
  await eventually(async () => (await words()).includes('asked') || undefined, 'the long one');
  // Something is promised there: the turn of the one that is awake is over, and it gets nothing new.
  const other = ask(next);
  await eventually(async () => (await waitingFor(site, next!)) === 1 || undefined, 'it waits');
  const gone = new AbortController();
  const left = ask(awake, gone).catch((error: Error) => error.name);
  await eventually(async () => (await waitingFor(site, awake!)) === 1 || undefined, 'one more waits');
  gone.abort();
  await eventually(async () => (await waitingFor(site, awake!)) === 0 || undefined, 'it waits no more');
  expect(await left).toBe('AbortError');
  const image = { type: 'image_url', image_url: { url: 'http://169.254.169.254/' } };
  const refused = await site.pool(awake!).request({
    method: 'POST',
    path: '/v1/chat/completions',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: [image] }] }),
  });
  await refused.body.dump();
  expect([refused.statusCode, await waitingFor(site, awake!), isAnswered]).toEqual([400, 0, false]);
  expect(await Promise.all([long, other])).toEqual([200, 200]);
  const told = await words();
  expect([told.includes('sleep 1'), told.includes('sleep amid')]).toEqual([true, false]);
}, 120_000);
