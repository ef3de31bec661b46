/** A node agent with the native engine: real device workers, real (synthetic) models. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { parseNumberList } from '../../../host/number-list.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { alive, Site, unitOf } from '../support.ts';

async function toyModel(site: Site): Promise<string> {
  const path = join(site.folder, 'toy.gguf');
  await synthesize({ path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  return path;
}

const chat = (model: string) => ({
  method: 'POST' as const,
  path: '/v1/chat/completions',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({
    model,
    max_tokens: 4,
    stream: true,
    messages: [{ role: 'user', content: 'hello' }],
  }),
});

describe('the native engine on a node', () => {
  test('two models share the worker of an emulated GPU; one that cannot be loaded does not hurt the other', async () => {
    await using site = await Site.open();
    const model_path = await toyModel(site);
    const unit = { engine: 'native', device_kind: 'gpu', model_path } as const;
    const agent = await site.start(
      [
        unitOf({ name: 'toy', max_sequences: 4 }, unit),
        unitOf({ name: 'bad' }, { ...unit, model_path: join(site.folder, 'launch.gguf') }),
      ],
      { emulated: 'cpu', device_model: 'A100-40GB', device_memory_bytes: 2 ** 30 },
    );
    const record = await site.serving('toy', 20_000);
    expect(record.metadata).toMatchObject({
      role: 'device-worker',
      engine: 'native',
      engine_version: expect.any(String),
      devices: [{ kind: 'gpu', model: 'A100-40GB', emulated: 'cpu', memory_bytes: 2 ** 30 }],
    });
    await eventually(() => {
      const models = site.registry.get(record.session_id)?.metadata.models;
      return models?.find((one) => one.name === 'bad')?.error;
    }, 'the other says why it failed');
    const { sessions } = await agent.stateWhere((now) => JSON.stringify(now).includes('failed'), 'its state');
    const worker = sessions.find((session) => session.role === 'device-worker')!;
    expect(worker).toMatchObject({
      units: ['toy-0', 'bad-0'],
      devices: [{ index: 0, kind: 'gpu', model: 'A100-40GB', emulated: 'cpu' }],
      error: { code: 'E_AGENT_MODEL_PATH' },
      model_errors: { bad: { code: 'E_AGENT_MODEL_PATH', because: [expect.stringContaining('ENOENT')] } },
    });
    expect(worker.models[1]!.error).toMatch(/^node \S+ cannot read \S+launch.gguf, the model of unit bad-0$/);

    const answer = await site.pool(record).request(chat('toy'));
    const text = await answer.body.text();
    expect([answer.statusCode, text.trimEnd().endsWith('data: [DONE]')]).toEqual([200, true]);
    const watch = await site.pool(record).request({ method: 'GET', path: agentPaths.watch });
    for await (const line of watch.body) {
      expect(JSON.parse(String(line))).toMatchObject({
        models: [
          { name: 'toy', state: 'serving', max_sequences: 4 },
          { name: 'bad', state: 'failed' },
        ],
      });
      break;
    }
    const pid = await agent.pidOf(record);
    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
    expect(alive(pid)).toBe(false);
  });

  test('a worker that dies is seen at once, and another takes its place; none outlives the agent', async () => {
    await using site = await Site.open();
    const agent = await site.start([
      unitOf({ name: 'toy' }, { engine: 'native', model_path: await toyModel(site) }),
    ]);
    const first = await site.serving('toy', 20_000);
    const watch = await site.pool(first).request({ method: 'GET', path: agentPaths.watch });
    const streamEnd = watch.body.text().then(() => performance.now());
    const pid = await agent.pidOf(first);
    const killed_ms = performance.now();
    process.kill(pid, 'SIGKILL');
    expect((await streamEnd) - killed_ms).toBeLessThan(1000);
    // A moment later it is LEFT, and another has begun.
    const isOver = () => site.registry.get(first.session_id)?.lifecycle !== 'SERVING';
    await eventually(isOver, 'it is DOWN', 1000);
    const second = await site.serving('toy', 20_000);
    expect(second.session_id).not.toBe(first.session_id);
    expect((await site.pool(second).request(chat('toy'))).statusCode).toBe(200);

    const after = await agent.pidOf(second);
    agent.process.kill('SIGKILL');
    await agent.ended;
    await eventually(() => !alive(after), 'the worker is gone', 5000);
  });

  test('the log of a unit tells how the worker started, loaded, served and ended', async () => {
    await using site = await Site.open();
    const agent = await site.start([
      unitOf({ name: 'toy' }, { engine: 'native', model_path: await toyModel(site) }),
    ]);
    const record = await site.serving('toy', 20_000);
    const status = await readFile(`/proc/${await agent.pidOf(record)}/status`, 'utf8');
    const allowed = parseNumberList(/^Cpus_allowed_list:(.*)$/m.exec(status)![1]!);
    expect(allowed).toEqual(record.metadata.devices[0]!.cores);
    agent.process.kill('SIGTERM');
    await agent.ended;
    const lines = (await agent.engineLog('toy-0')).map((line) => JSON.parse(line));
    const told = lines.map(({ msg }) => msg);
    // With nothing to drain, the agent may ask it to stop before it has said that it is drained.
    expect(told.filter((msg) => msg !== 'drained')).toEqual([
      'device worker started',
      'listening',
      'loading a model',
      'weights are there',
      'serving a model',
      'asked to drain',
      'asked to stop',
      'device worker ends',
    ]);
    expect(lines[0]).toMatchObject({ level: 30, pid: expect.any(Number), threads: 1, cores: allowed });
    expect(lines[1].isa).toEqual(expect.any(Array));
    expect(lines[3]).toMatchObject({ name: 'toy', reused_bytes: 0, from_nodes: {} });
    expect(lines[4]).toMatchObject({
      name: 'toy',
      precision: 'F16',
      kv_tokens: expect.any(Number),
      kv_bytes: expect.any(Number),
      bytes_loaded: expect.any(Number),
      load_bytes_per_s: expect.any(Number),
    });
    expect(lines[4].bytes_loaded).toBeGreaterThan(100_000);
  });

  // Side by side: the first two are pauses of many seconds.
  test.concurrent('a worker that hangs is DOWN within seconds, its requests end, and it is started again', async () => {
    await using site = await Site.open();
    const agent = await site.start([
      unitOf({ name: 'toy' }, { engine: 'native', model_path: await toyModel(site) }),
    ]);
    const first = await site.serving('toy', 20_000);
    const pid = await agent.pidOf(first);
    process.kill(pid, 'SIGSTOP');
    const began_ms = performance.now();
    const named = (id: string) => {
      const request = chat('toy');
      return site.pool(first).request({ ...request, headers: { ...request.headers, 'x-request-id': id } });
    };
    const suspect = named('req_at_that_time');
    await delay(4000);
    const later = await named('req_later');
    expect((await suspect).statusCode).toBe(502);
    expect(await (await suspect).body.json()).toMatchObject({ error: { code: 'E_REPLICA_SILENT' } });
    // It was never read, so it is not to blame.
    expect(later.statusCode).toBe(502);
    expect(await later.body.json()).toMatchObject({ error: { code: 'E_AGENT_UPSTREAM' } });
    await eventually(() => site.registry.get(first.session_id)?.lifecycle !== 'SERVING', 'it is DOWN', 2000);
    expect(performance.now() - began_ms).toBeLessThan(16_000);
    const log = await readFile(join(agent.launch.launch_folder, 'n0.agent.log'), 'utf8');
    const told = log.split('\n').find((line) => line.includes('"E_REPLICA_SILENT"'));
    expect(JSON.parse(told!).error).toMatchObject({
      what: expect.stringContaining('does not answer any more and was killed'),
      details: { requests: ['req_at_that_time'] },
    });
    const second = await site.serving('toy', 20_000);
    expect(second.session_id).not.toBe(first.session_id);
    expect(alive(pid)).toBe(false);
    expect((await site.pool(second).request(chat('toy'))).statusCode).toBe(200);
  });

  test.concurrent('an agent and its worker that were suspended together go on as if nothing had been', async () => {
    await using site = await Site.open();
    const agent = await site.start([
      unitOf({ name: 'toy' }, { engine: 'native', model_path: await toyModel(site) }),
    ]);
    const record = await site.serving('toy', 20_000);
    const pid = await agent.pidOf(record);
    for (const one of [agent.process.pid!, pid]) process.kill(one, 'SIGSTOP');
    await new Promise((resolve) => setTimeout(resolve, 12_000)); // longer than the silence that counts as a hang
    for (const one of [agent.process.pid!, pid]) process.kill(one, 'SIGCONT');
    expect((await site.pool(record).request(chat('toy'))).statusCode).toBe(200);
    expect(await agent.pidOf(record)).toBe(pid);
    expect(site.registry.get(record.session_id)?.lifecycle).toBe('SERVING');
  }, 60_000);

  test.concurrent.each([
    ['before the agent hears of it', ['worker', 'agent']],
    ['after the agent', ['agent', 'worker']],
  ])('a worker that Slurm ends together with the job, %s, is no failure', async (_when, order) => {
    await using site = await Site.open();
    const agent = await site.start([
      unitOf({ name: 'toy' }, { engine: 'native', model_path: await toyModel(site) }),
    ]);
    const record = await site.serving('toy', 20_000);
    const pids = { agent: agent.process.pid!, worker: await agent.pidOf(record) };
    for (const one of order) process.kill(pids[one as keyof typeof pids], 'SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
    const state = (await agent.state())!;
    expect(state).toMatchObject({ phase: 'stopped', exit_reason: 'received SIGTERM' });
    expect([state.error, ...state.sessions.map((session) => session.error)]).toEqual(
      Array(1 + state.sessions.length).fill(undefined),
    );
    const log = await readFile(join(agent.launch.launch_folder, 'n0.agent.log'), 'utf8');
    expect(log).not.toContain('E_AGENT_WORKER');
  });

  test('a model file that is damaged: the agent ends and says which and why', async () => {
    await using site = await Site.open();
    const agent = await site.start([
      unitOf(
        { name: 'toy' },
        { engine: 'native', model_path: fileURLToPath(new URL('../support.ts', import.meta.url)) },
      ),
    ]);
    expect((await agent.ended).code).toBe(8);
    const state = (await agent.state())!;
    expect(state.error).toMatchObject({ code: 'E_AGENT_UNITS_FAILED' });
    expect(state.error!.because.join()).toMatch(/toy-0: error: .*E_(MODEL|ENGINE|NATIVE)_/);
  });
});
