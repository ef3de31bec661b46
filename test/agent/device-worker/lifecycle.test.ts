import { readFileSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { tinyModel, WorkerHarness } from './support.ts';

const messages = [{ role: 'user', content: 'Go on and on.' }];
const endless = { model: 'm', messages, max_tokens: 900, ignore_eos: true, seed: 1 };
/**
 * Least time of an iteration where an answer must not be over before it is disturbed: 900 take seconds on any machine.
 */
const step_ms_min = 5;

describe('one worker', () => {
  const worker = new WorkerHarness();
  let path = '';
  beforeAll(async () => {
    path = await tinyModel(worker.folder, 'tiny-llama');
    const listening = await worker.configure({ slow_client_ms: 400 }, { step_ms_min });
    expect(listening.library_version).toMatch(/^\d/);
    await worker.load({ name: 'm', model_path: path, batch_invariant: true });
  });
  afterAll(() => worker.close());

  it('a client that goes away frees its KV at once', async () => {
    const before = await worker.report('m', ({ running }) => running === 0);
    const controller = new AbortController();
    const stream = await worker.client.chat.completions.create(
      { ...endless, messages: [{ role: 'user', content: 'Go on.' }], stream: true },
      { signal: controller.signal },
    );
    for await (const _ of stream) break;
    controller.abort();
    const after = await worker.report('m', ({ running, waiting }) => running === 0 && waiting === 0);
    expect(after.kv_tokens_used).toBeLessThanOrEqual(before.kv_tokens_used);
    expect((await worker.request('GET', '/metrics')).text).not.toMatch(
      /hpcserve_generated_tokens_total\{[^}]*\} 900\b/,
    );
  });

  it('a stream that is cancelled while it waits leaves nothing behind', async () => {
    const streams = await Promise.all(
      Array.from({ length: 12 }, () =>
        worker.client.chat.completions.create({
          ...endless,
          messages: [{ role: 'user', content: 'x' }],
          stream: true,
        }),
      ),
    );
    await worker.report('m', ({ running }) => running > 0);
    for (const stream of streams) stream.controller.abort();
    await worker.report('m', ({ running, waiting }) => running === 0 && waiting === 0);
  });

  it('a client that does not read is bounded, then given up', async () => {
    const body = JSON.stringify({ ...endless, stream: true, logprobs: true, top_logprobs: 20 });
    const socket = connect(worker.socket);
    socket.pause();
    const closed = new Promise((resolve) => socket.on('close', resolve));
    socket.on('error', () => {});
    socket.write(
      `POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    );
    await worker.report('m', ({ running }) => running > 0);
    await worker.report('m', ({ running }) => running === 0);
    const { text } = await worker.request('GET', '/health');
    expect(JSON.parse(text).status).toBe('ok');
    let received = '';
    socket.on('data', (chunk) => {
      received += chunk;
    });
    socket.resume();
    await closed;
    expect(received).toContain('data: ');
    expect(received).not.toContain('[DONE]');
  });

  it('an answer continued from its tokens is the undisturbed answer, letter for letter', async () => {
    const header = { 'x-hpcserve-token-ids': '1' };
    for (const more of [
      { temperature: 0.9, stop: ['never so'], frequency_penalty: 0.3 },
      { temperature: 0 },
      {
        temperature: 1.2,
        response_format: {
          type: 'json_schema',
          json_schema: {
            name: 'x',
            schema: { type: 'array', items: { type: 'integer' }, minItems: 5, maxItems: 9 },
          },
        },
      },
    ]) {
      const request = {
        model: 'm',
        messages,
        max_tokens: 48,
        stream_options: { include_usage: true },
        ...more,
      };
      const events = await worker.stream('/v1/chat/completions', request, header);
      const { hpcserve_seed, hpcserve_prompt_tokens } = events[0];
      expect(hpcserve_prompt_tokens).toBe(events.at(-1).usage.prompt_tokens);
      const said = (list: typeof events) =>
        list.map(({ choices }) => choices[0]?.delta.content ?? '').join('');
      const ids = (list: typeof events): number[] => list.flatMap((event) => event.hpcserve_token_ids ?? []);
      expect(ids(events)).toHaveLength(events.at(-1).usage.completion_tokens);
      for (const cut of [1, 3, Math.floor(events.length / 2), events.length - 1]) {
        const got = events.slice(0, cut);
        const rest = await worker.stream(
          '/v1/chat/completions',
          { ...request, seed: hpcserve_seed, hpcserve_continue: { token_ids: ids(got) } },
          header,
        );
        expect(said(got) + said(rest)).toBe(said(events));
        expect([...ids(got), ...ids(rest)]).toEqual(ids(events));
        expect(rest.at(-1).usage).toMatchObject({
          completion_tokens: events.at(-1).usage.completion_tokens,
          prompt_tokens: events.at(-1).usage.prompt_tokens,
        });
        // The proof that the comparison can fail: other tokens before the cut give another answer.
        if (cut === 3 && more.temperature === 0.9) {
          const other = await worker.stream(
            '/v1/chat/completions',
            {
              ...request,
              seed: hpcserve_seed,
              hpcserve_continue: { token_ids: ids(got).map((id) => id + 1) },
            },
            header,
          );
          expect(said(other)).not.toBe(said(rest));
        }
      }
    }
  });

  it('tokens that do not follow the grammar cannot be continued, and the worker goes on', async () => {
    const { status, text } = await worker.post('/v1/completions', {
      model: 'm',
      prompt: 'x',
      grammar: 'root ::= "yes"',
      hpcserve_continue: { token_ids: [0, 1] },
    });
    expect(status).toBe(400);
    expect(text).toContain('not allowed by the grammar');
    expect((await worker.post('/v1/completions', { model: 'm', prompt: 'x' })).status).toBe(200);
  });

  it('without the header no extension is sent', async () => {
    const [first] = await worker.stream('/v1/chat/completions', { model: 'm', messages, max_tokens: 2 });
    expect(Object.keys(first).filter((key) => key.startsWith('hpcserve'))).toEqual([]);
  });

  it('a model that does not load fails alone, and unloading frees the name', async () => {
    const broken = join(worker.folder, 'broken.gguf');
    writeFileSync(broken, 'GGUF but not really');
    await expect(worker.load({ name: 'broken', model_path: broken })).rejects.toThrow(/E_/);
    const { status, text } = await worker.post('/v1/completions', { model: 'broken', prompt: 'x' });
    expect([status, JSON.parse(text).error.type]).toEqual([503, 'server_error']);
    expect((await worker.post('/v1/completions', { model: 'm', prompt: 'x', max_tokens: 2 })).status).toBe(
      200,
    );
    await worker.load({ name: 'second', model_path: path });
    worker.send({ type: 'unload', name: 'second' });
    await worker.message(
      (message) => message.type === 'model' && message.name === 'second' && message.state === 'unloaded',
    );
    expect((await worker.post('/v1/completions', { model: 'second', prompt: 'x' })).status).toBe(404);
  });
});

describe('the end of a worker', () => {
  let worker: WorkerHarness;
  const start = async (limits = {}, more: { step_ms_min?: number } = {}) => {
    worker = new WorkerHarness();
    const model_path = await tinyModel(worker.folder, 'tiny-llama');
    await worker.configure(limits, more);
    await worker.load({ name: 'm', model_path });
  };
  afterEach(() => worker.close());

  it('a client that pauses gets the whole answer, in fewer and larger pieces', async () => {
    await start({}, { step_ms_min });
    const body = JSON.stringify({ ...endless, stream: true, logprobs: true, top_logprobs: 20 });
    const socket = connect(worker.socket);
    let received = '';
    socket.on('data', (chunk) => {
      received += chunk;
    });
    socket.write(
      `POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\nconnection: close\r\nx-hpcserve-token-ids: 1\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    );
    await worker.report('m', ({ running }) => running > 0);
    socket.pause();
    await worker.report('m', ({ running }) => running === 0);
    socket.resume();
    await new Promise((resolve) => socket.on('close', resolve));
    const lists = [...received.matchAll(/"hpcserve_token_ids":\[([\d,]*)\]/g)].map(([, ids]) => ids!);
    expect(lists.flatMap((ids) => ids.split(',').filter(Boolean))).toHaveLength(900);
    expect(lists.length).toBeLessThan(850);
    expect(received).toContain('[DONE]');
  });

  it('drain finishes what runs and admits nothing new', async () => {
    await start();
    const running = worker.stream('/v1/chat/completions', { ...endless, max_tokens: 300 });
    await worker.report('m', (load) => load.running > 0);
    worker.send({ type: 'drain' });
    const refused = await worker.post('/v1/completions', { model: 'm', prompt: 'x' });
    expect([refused.status, refused.headers['retry-after']]).toEqual([503, '1']);
    expect((await worker.request('GET', '/health')).status).toBe(503);
    await worker.message(({ type }) => type === 'drained');
    expect((await running).at(-1).choices[0].finish_reason).toBe('length');
  });

  it('a full queue refuses at once, says when to come back, and takes requests again later', async () => {
    await start({ waiting_sequences: 0 }, { step_ms_min: 20 });
    const body = { model: 'm', prompt: 'x', max_tokens: 2 };
    expect((await worker.post('/v1/completions', { ...body, n: 9 })).status).toBe(400);
    const running = worker.stream('/v1/chat/completions', { ...endless, max_tokens: 200, n: 8 });
    await worker.report('m', (load) => load.running === 8);
    const refused = await worker.post('/v1/completions', body);
    expect([refused.status, refused.headers['retry-after']]).toEqual([429, '1']);
    expect(JSON.parse(refused.text).error.type).toBe('rate_limit_error');
    await running;
    expect((await worker.post('/v1/completions', body)).status).toBe(200);
  });

  it('a full batch is said at once, and what is not to wait is refused though others may', async () => {
    await start({}, { step_ms_min: 20 });
    const body = { model: 'm', prompt: 'x', max_tokens: 2 };
    const asked_ms = performance.now();
    const running = worker.stream('/v1/chat/completions', { ...endless, max_tokens: 200, n: 8 });
    await worker.report('m', (load) => load.running === 8);
    const refused = await worker.post('/v1/completions', body, { 'x-hpcserve-at-once': '1' });
    expect([refused.status, JSON.parse(refused.text).error.type]).toEqual([429, 'rate_limit_error']);
    expect(performance.now() - asked_ms).toBeLessThan(200 * 20);
    // It waits for one of the eight.
    expect((await worker.post('/v1/completions', body)).status).toBe(200);
    await running;
    expect((await worker.post('/v1/completions', body, { 'x-hpcserve-at-once': '1' })).status).toBe(200);
  });

  it('an idle worker sleeps', async () => {
    await start();
    await worker.post('/v1/completions', { model: 'm', prompt: 'x', max_tokens: 4 });
    // Fields 14 and 15 of proc_pid_stat(5), counted after the parenthesised name: ticks of 10 ms.
    const ticks = () => {
      const fields = readFileSync(`/proc/${worker.process.pid}/stat`, 'utf8').split(') ')[1]!.split(' ');
      return Number(fields[11]) + Number(fields[12]);
    };
    const before = ticks();
    const began = performance.now();
    for (let reports = 0; reports < 10; reports++) await worker.report('m', () => true);
    const busy_ms = (ticks() - before) * 10;
    expect(busy_ms).toBeLessThan(0.2 * (performance.now() - began));
  });

  it('SIGTERM lets answers end for a while, then it exits with 0', async () => {
    await start({ drain_ms: 100 }, { step_ms_min });
    const running = worker.stream('/v1/chat/completions', endless).catch((error: Error) => error);
    await worker.report('m', (load) => load.running > 0);
    worker.process.kill('SIGTERM');
    expect(await worker.exited).toEqual({ code: 0, signal: null });
    await running;
  });

  it('ends when its agent is gone', async () => {
    await start();
    worker.process.disconnect();
    expect(await worker.exited).toEqual({ code: 0, signal: null });
  });

  it('a folder that others can read is fatal, with the reason', async () => {
    worker = new WorkerHarness();
    worker.send({
      type: 'configure',
      socket_path: '/tmp/w.sock',
      pool_bytes: 2 ** 30,
      threads: 1,
      heartbeat_ms: 50,
      device: 'test',
    });
    const fatal = await worker.message(({ type }) => type === 'fatal');
    expect(fatal.type === 'fatal' && fatal.error.code).toBe('E_WORKER_SOCKET');
    expect((await worker.exited).code).toBe(11);
  });
});

describe('a worker of an emulated device with a declared speed', () => {
  const worker = new WorkerHarness();
  afterAll(() => worker.close());

  it('takes that long for an iteration, whatever the cores could do', async () => {
    await worker.configure({}, { step_ms_min: 20 });
    await worker.load({ name: 'm', model_path: await tinyModel(worker.folder, 'tiny-llama') });
    const started_ms = performance.now();
    const answer = await worker.client.chat.completions.create({
      ...endless,
      messages: [{ role: 'user', content: 'Go on.' }],
      max_tokens: 24,
    });
    // One iteration gives the first token with the prompt; each further one gives one.
    expect(performance.now() - started_ms).toBeGreaterThan(23 * 20);
    expect(answer.usage!.completion_tokens).toBe(24);
  });
});
