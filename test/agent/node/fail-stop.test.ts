/** Engines that break for good: seen, reported, announced, and left; nothing limps on, and nobody waits for ever. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import type { FailureReport } from '../../../agent/node/failure-report.ts';
import type { ModelSpec } from '../../../spec/model-yaml.ts';
import { eventually } from '../../mesh/support.ts';
import { alive, fixtureUnit, type RunningAgent, Site, unitOf } from '../support.ts';

const engine = fileURLToPath(new URL('../fragile-engine.mjs', import.meta.url));
const quick = { first_token_s: 60, between_tokens_s: 60, total_s: 600, health_s: 0.9, stall_s: 1 };
/** Of engines that are not to be taken for hung, however busy the machine is. */
const calm = { health_s: 45, stall_s: 300 };
const gpu = { emulated: 'cpu', device_model: 'A100-40GB', device_memory_bytes: 2 ** 30 } as const;

function fragile(name: string, timeouts: Partial<ModelSpec['timeouts']> = calm, unit = {}) {
  return unitOf(
    { name, command: [process.execPath, engine, '{socket}'], timeouts: { ...quick, ...timeouts } },
    { model_path: engine, ...unit },
  );
}

async function reportOf(agent: RunningAgent, unit: string): Promise<FailureReport> {
  const path = join(agent.launch.launch_folder, `n0.${unit}.failure.json`);
  return JSON.parse(await readFile(path, 'utf8')) as FailureReport;
}

function agentLog(agent: RunningAgent): Promise<string> {
  return readFile(join(agent.launch.launch_folder, 'n0.agent.log'), 'utf8');
}

/** What an answer ends with: its text, or why it was cut. */
async function endOf(answer: Promise<{ body: { text(): Promise<string> } }>): Promise<string> {
  try {
    return await (await answer).body.text();
  } catch (error) {
    return String(error);
  }
}

describe('a wrapped engine that hangs and lives', () => {
  test.each([
    [
      'answers no health check',
      'deaf',
      { health_s: 0.9, stall_s: 300 },
      /3 health checks failed in a row: .* not answered within 0.2 s/,
    ],
    // Time for an answer that comes late: it is what the answer says that counts.
    [
      'answers them with an error',
      'sick',
      { health_s: 4.5, stall_s: 300 },
      /3 health checks failed in a row: \/v1\/models answers 500/,
    ],
    [
      'computes nothing',
      'stall',
      { health_s: 4.5, stall_s: 1 },
      /has given no token to its 1 running stream\(s\) for \d+(\.5)? s while 1 request\(s\) run; its processes rest/,
    ],
  ])(
    '%s: DOWN with the reason, its requests end, and it is started again',
    async (_, verb, timeouts, why) => {
      await using site = await Site.open();
      const agent = await site.start([fragile('m', timeouts)]);
      const record = await site.serving('m');
      const pid = await agent.pidOf(record);
      const ended = endOf(site.ask(record, verb));
      const down = await eventually(() => {
        const now = site.registry.get(record.session_id)!;
        return now.lifecycle === 'DOWN' || now.lifecycle === 'LEFT' ? now : undefined;
      }, 'it is DOWN');
      // A moment later it is LEFT, which says no more than that.
      if (down.lifecycle === 'DOWN')
        expect(down.metadata.models[0]).toMatchObject({
          state: 'failed',
          error: expect.stringMatching('hangs'),
        });
      expect(await ended).toBeTruthy(); // not awaited in vain
      expect(alive(pid)).toBe(false);
      // No device is condemned for it: what hung may work again.
      const next = await site.serving('m', 10_000);
      expect(next.session_id).not.toBe(record.session_id);
      expect(await endOf(site.ask(next, 'count 2'))).toContain('[DONE]');
      expect(await agentLog(agent)).toMatch(why);
    },
  );

  test('stopped by SIGSTOP: its stream is handed over at once, it gets no requests, and goes on by SIGCONT', async () => {
    await using site = await Site.open();
    const agent = await site.start([fragile('m')]);
    const record = await site.serving('m');
    const pid = await agent.pidOf(record);
    const stateOf = () => site.registry.get(record.session_id)!.metadata.models[0]!;
    const stream = await site.ask(record, 'slow 600000');
    const began_ms = performance.now();
    process.kill(pid, 'SIGSTOP');
    const text = await stream.body.text();
    expect(performance.now() - began_ms).toBeLessThan(5000);
    expect(JSON.parse(text.trim().slice(6)).error).toMatchObject({
      code: 'E_AGENT_ENGINE_STALLED',
      type: 'server_error',
    });
    const stalled = await eventually(
      () => (stateOf().state === 'stalled' ? stateOf() : undefined),
      'stalled',
    );
    expect(stalled.error).toMatch(/^it stalls: its process \S+ \(\d+\) is stopped$/);
    expect(site.registry.get(record.session_id)!.lifecycle).toBe('SERVING');
    const refused = await site.ask(record, 'count 2');
    expect(JSON.parse(await refused.body.text()).error).toMatchObject({ code: 'E_AGENT_NOT_READY' });
    process.kill(pid, 'SIGCONT');
    await site.serving('m');
    expect(stateOf().error).toBeUndefined();
    expect(await endOf(site.ask(record, 'count 2'))).toContain('[DONE]');
    expect(await agent.pidOf(record)).toBe(pid);
  });

  test('a child of it that is stopped, and stays so: it is started again', async () => {
    await using site = await Site.open();
    const unit = fixtureUnit('m', ['--child']);
    const model = { ...unit.model, timeouts: { ...unit.model.timeouts, stall_s: 3 } };
    const agent = await site.start([{ ...unit, model }]);
    const record = await site.serving('m');
    const said = await eventually(
      async () => (await agent.engineLog('m-0')).find((line) => line.startsWith('child ')),
      'the engine to have said what it started',
    );
    const child = said.slice(6);
    process.kill(Number(child), 'SIGSTOP');
    await eventually(
      () => site.registry.get(record.session_id)!.metadata.models[0]!.state === 'stalled',
      'it has stalled',
    );
    await eventually(() => site.registry.get(record.session_id)?.lifecycle === 'LEFT', 'it is gone', 15_000);
    expect((await site.serving('m', 10_000)).session_id).not.toBe(record.session_id);
    await eventually(() => !alive(Number(child)), 'its child is gone');
  });

  test('a child of it is killed, and no token comes after it: its stream is handed over at once', async () => {
    await using site = await Site.open();
    const { model, ...unit } = fragile('m');
    const command = [...model.command!, '--child'];
    const agent = await site.start([{ ...unit, model: { ...model, command } }]);
    const record = await site.serving('m');
    const stateOf = () => site.registry.get(record.session_id)!.metadata.models[0]!;
    const said = await eventually(
      async () => (await agent.engineLog('m-0')).find((line) => line.startsWith('child ')),
      'the engine to have said what it started',
    );
    const child = Number(said.slice(6));
    // Once it was seen to stop, it is known.
    process.kill(child, 'SIGSTOP');
    await eventually(() => stateOf().state === 'stalled', 'it has stalled');
    process.kill(child, 'SIGCONT');
    await site.serving('m');
    const stream = await site.ask(record, 'pause 4000');
    const began_ms = performance.now();
    process.kill(child, 'SIGKILL');
    expect(await stream.body.text()).toContain('E_AGENT_ENGINE_STALLED');
    expect(performance.now() - began_ms).toBeLessThan(5000);
    await expect
      .poll(() => agentLog(agent))
      .toMatch(/its process sleep \(\d+\) has ended, and no token came/);
    await eventually(() => stateOf().state === 'stalled', 'it has stalled');
    // It computes without that one all the same, and gets requests again.
    expect((await site.serving('m')).session_id).toBe(record.session_id);
    expect(await endOf(site.ask(record, 'count 2'))).toContain('[DONE]');
  });

  test('no token for ten seconds: its stream is handed over, and it is asked for one until it gives it', async () => {
    await using site = await Site.open();
    const agent = await site.start([fragile('m')]);
    const record = await site.serving('m');
    const text = await endOf(site.ask(record, 'pause 14000'));
    expect(text).toContain('E_AGENT_ENGINE_STALLED');
    await eventually(
      () => site.registry.get(record.session_id)!.metadata.models[0]!.state === 'stalled',
      'it has stalled',
    );
    expect((await site.serving('m', 10_000)).session_id).toBe(record.session_id);
    expect(await endOf(site.ask(record, 'count 2'))).toContain('[DONE]');
    expect(await agentLog(agent)).toContain('the engine goes on: it gets requests again');
  }, 40_000);

  test('a busy one is let be: its stream comes slowly, its health check in time', async () => {
    await using site = await Site.open();
    // All of it takes longer than an engine may be without progress, and each pause is much shorter than that.
    const agent = await site.start([fragile('m', { health_s: 9, stall_s: 4 })]);
    const record = await site.serving('m');
    expect(await endOf(site.ask(record, 'slow 1500'))).toContain('[DONE]');
    expect((await agent.state())!.phase).toBe('serving');
  });
});

describe('an engine that says that its device failed', () => {
  test('what else is on that device ends with it, and nothing starts again', async () => {
    const line = 'CUDA error: an illegal memory access was encountered';
    await using site = await Site.open();
    const on = (index: number) => ({ device_kind: 'gpu', first_device: index });
    const agent = await site.start(
      [fragile('a', calm, on(0)), fragile('b', calm, on(0)), fragile('c', calm, on(1))],
      gpu,
    );
    const [a, b, c] = await Promise.all([site.serving('a'), site.serving('b'), site.serving('c')]);
    await endOf(site.ask(a, 'cuda'));
    await eventually(() => site.registry.get(b.session_id)?.lifecycle !== 'SERVING', 'its neighbour is DOWN');
    const first = await eventually(() => reportOf(agent, 'a-0').catch(() => undefined), 'a report');
    expect(first).toMatchObject({ fatal: 'device', signal: 'SIGABRT' });
    expect(first.error.because.join()).toContain(line);
    expect(first.lines.join()).toContain(line);
    const second = await eventually(() => reportOf(agent, 'b-0').catch(() => undefined), 'another');
    expect(second.error).toMatchObject({
      code: 'E_AGENT_DEVICE_FAILED',
      what: 'A100-40GB of n0 failed under a-0',
    });
    // The other device goes on, and with it the agent.
    expect(await endOf(site.ask(c, 'count 2'))).toContain('[DONE]');
    const { phase } = await agent.stateWhere(
      ({ sessions }) => sessions.filter(({ unit, pid }) => unit && pid !== undefined).length === 1,
      'only one unit has a process',
    );
    expect(phase).toBe('serving');
    await endOf(site.ask(c, 'cuda'));
    expect(await agent.ended).toEqual({ code: 8, signal: null });
  });

  test('that its ranks waited in vain condemns no device: it is started again, and its neighbour goes on', async () => {
    await using site = await Site.open();
    const on = { device_kind: 'gpu', first_device: 0 };
    const agent = await site.start([fragile('a', calm, on), fragile('b', calm, on)], gpu);
    const [a, b] = await Promise.all([site.serving('a'), site.serving('b')]);
    await endOf(site.ask(a, 'nccl'));
    const next = await site.session(
      ({ session_id, metadata, lifecycle }) =>
        lifecycle === 'SERVING' && metadata.unit === 'a-0' && session_id !== a.session_id,
      10_000,
    );
    expect(await endOf(site.ask(next, 'count 2'))).toContain('[DONE]');
    expect(await agentLog(agent)).toContain('a collective operation between ranks did not end in time');
    expect((await site.serving('b')).session_id).toBe(b.session_id);
  });

  test('that its memory is used up: only itself, and it is not started again at once', async () => {
    await using site = await Site.open();
    const on = { device_kind: 'gpu', first_device: 0 };
    const agent = await site.start([fragile('a', calm, on), fragile('b', calm, on)], gpu);
    const [a, b] = await Promise.all([site.serving('a'), site.serving('b')]);
    await endOf(site.ask(a, 'memory'));
    const report = await eventually(() => reportOf(agent, 'a-0').catch(() => undefined), 'a report');
    expect(report).toMatchObject({ fatal: 'process' });
    expect(report.error.because.join()).toContain('the memory of the device is used up');
    expect(await endOf(site.ask(b, 'count 2'))).toContain('[DONE]');
    await agent.stateWhere(({ phase }) => phase === 'serving', 'its neighbour serves');
  });
});

describe('answers that take too long', () => {
  test.each([
    [
      'before the first token',
      { first_token_s: 0.3 },
      'slow 5000',
      'has not begun after 0.3 s',
      'server_error',
    ],
    [
      'between two',
      { between_tokens_s: 0.3, first_token_s: 9 },
      'slow 700',
      'nothing more of the answer',
      'server_error',
    ],
    ['as a whole', { total_s: 0.6 }, 'slow 400', 'not complete after 0.6 s', 'timeout_error'],
  ])('%s end with an event that says so', async (_, timeouts, verb, words, type) => {
    await using site = await Site.open();
    await site.start([fragile('m', { ...calm, ...timeouts })]);
    const record = await site.serving('m');
    const answer = await site.pool(record).request({
      method: 'POST',
      path: '/v1/chat/completions',
      headers: { 'content-type': 'application/json', accept: 'text/event-stream' },
      body: JSON.stringify({ model: 'm', stream: true, messages: [{ role: 'user', content: verb }] }),
    });
    const text = await answer.body.text();
    const { error } = JSON.parse(text.trim().split('\n\n').at(-1)!.slice(6));
    expect(error).toMatchObject({ type, code: 'E_AGENT_TIMEOUT', message: expect.stringContaining(words) });
  });
});
