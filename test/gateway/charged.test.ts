/** What requests cost the budget of their key: while they run, and where their clients do not wait for the end. */

import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import Database from 'better-sqlite3';
import { describe, expect, it } from 'vitest';
import { LengthQuantiles } from '../../gateway/workload/length-quantiles.ts';
import type { DeviceDescription } from '../../spec/session-record.ts';
import { gatewayFiles } from '../../spec/state-layout.ts';
import {
  type Answer,
  chunkEvent,
  doneEvent,
  json,
  shareStage,
  stream,
  type TestSession,
  until,
} from './support.ts';

const shared = shareStage();
const { sessions } = shared;
const path = '/v1/chat/completions';

async function session(answer: Answer, engine = 'native'): Promise<TestSession> {
  const started = await shared.session(answer, { engine, context_tokens: 8192 });
  started.load = { max_sequences: 128 };
  return started;
}

/** Without a replica. */
const waits_s = 2;

interface Row {
  status: number;
  prompt_tokens: number | null;
  completion_tokens: number | null;
}

function row(request_id: string): Row | undefined {
  const ledger = new Database(join(shared.stage.config.gateway_folder, gatewayFiles.ledger), {
    readonly: true,
  });
  try {
    return ledger
      .prepare('select status, prompt_tokens, completion_tokens from requests where request_id = ?')
      .get(request_id) as Row | undefined;
  } finally {
    ledger.close();
  }
}

function timesOf(request_id: string): { device_s: number; duration_ms: number } {
  const ledger = new Database(join(shared.stage.config.gateway_folder, gatewayFiles.ledger), {
    readonly: true,
  });
  try {
    return ledger
      .prepare('select device_s, duration_ms from requests where request_id = ?')
      .get(request_id) as ReturnType<typeof timesOf>;
  } finally {
    ledger.close();
  }
}

/** What the ledger has of a request whose client goes away after the first bytes, or at once. */
async function leave(
  request_id: string,
  body: object,
  key: string,
  reads: boolean,
  asked = path,
): Promise<Row> {
  const abort = new AbortController();
  const answer = fetch(shared.stage.url + asked, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      'x-request-id': request_id,
    },
    body: JSON.stringify({ model: 'tiny', ...body }),
    signal: abort.signal,
  });
  if (reads) {
    await (await answer).body!.getReader().read();
    abort.abort();
  } else {
    await until(() => sessions.some(({ requests }) => requests.length > 0), 'the replica to have it');
    abort.abort();
    await answer.catch(() => undefined);
  }
  await until(() => row(request_id) !== undefined, 'the ledger to have it');
  return row(request_id)!;
}

describe('60 requests at a time of 5,000 tokens', () => {
  it.each([
    ['that say so', { max_tokens: 5000 }],
    ['that ask for two answers', { max_tokens: 2500, n: 2 }],
    ['that name no limit', {}],
  ])('%s pass a budget of 1,000 by one of them', async (_what, asked) => {
    const usage = { prompt_tokens: 100, completion_tokens: 4900, total_tokens: 5000 };
    await session(async (request, response) => {
      await delay(300);
      await json({ choices: [], usage })(request, response);
    });
    const { key } = await shared.stage.newKey({ budget: { tokens: 1000, window: 'total' } });
    const answers = await Promise.all(
      Array.from({ length: 60 }, () =>
        shared.stage.post(
          path,
          { model: 'tiny', messages: [], ...asked },
          { authorization: `Bearer ${key}` },
        ),
      ),
    );
    const statuses = answers.map(({ status }) => status);
    expect(statuses.filter((status) => status === 200)).toHaveLength(1);
    expect(statuses.filter((status) => status === 429)).toHaveLength(59);
  });
});

describe('a request for more than can be counted', () => {
  const ask = (key: string, body: object | string): Promise<Response> =>
    shared.stage.post(path, body, { authorization: `Bearer ${key}` });

  it.each([
    ['n', '1e300'],
    ['n', '1.5'],
    ['n', '"3"'],
    ['best_of', '100000'],
  ])('of answers is refused: %s %s', async (param, value) => {
    await session(json({ choices: [] }));
    const { key } = await shared.stage.newKey({ budget: { tokens: 1000, window: 'total' } });
    const answer = await ask(key, `{"model":"tiny","messages":[],"${param}":${value}}`);
    expect(answer.status).toBe(400);
    expect(await answer.json()).toMatchObject({ error: { type: 'invalid_request_error', param } });
    expect(sessions.flatMap(({ requests }) => requests)).toEqual([]);
  });

  it('of tokens lets nobody pass a budget beside it, and gives back no more than it held', async () => {
    const usage = { prompt_tokens: 100, completion_tokens: 4900, total_tokens: 5000 };
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    await session(async (request, response) => {
      await held;
      await json({ choices: [], usage })(request, response);
    });
    const { key } = await shared.stage.newKey({ budget: { tokens: 10_000, window: 'total' } });
    const running = ask(key, { model: 'tiny', messages: [], max_tokens: 8000 });
    await until(() => sessions.some(({ requests }) => requests.length === 1), 'the replica to have it');
    // No replica is known of this name, nor how long its context is: this one ends at once.
    for (const max_tokens of ['1e300', '1e999'])
      expect((await ask(key, `{"model":"unknown","messages":[],"max_tokens":${max_tokens}}`)).status).toBe(
        404,
      );
    const others = ['1', '2'].map(() => ask(key, { model: 'tiny', messages: [], max_tokens: 8000 }));
    await until(() => sessions.some(({ requests }) => requests.length === 2), 'the replica to have one more');
    release();
    const statuses = (await Promise.all([running, ...others])).map(({ status }) => status);
    expect(statuses.sort()).toEqual([200, 200, 429]);
  });
});

describe('an answer whose client goes away', () => {
  const prompt = 'word '.repeat(2000);
  const messages = [{ role: 'user', content: prompt }];
  /** A quarter of its bytes, and no more than the context. */
  const estimate = Math.ceil(JSON.stringify({ model: 'tiny', messages, stream: true }).length / 4);

  it('costs its prompt by its length, and what came of it', async () => {
    await session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(chunkEvent('a') + chunkEvent('b'));
    }, 'other');
    const { key } = await shared.stage.newKey({ budget: { tokens: 5000, window: 'total' } });
    expect(await leave('left-stream', { messages, stream: true }, key, true)).toEqual({
      status: 499,
      prompt_tokens: estimate,
      completion_tokens: 2,
    });
    await leave('left-stream-again', { messages, stream: true }, key, true);
    // It is as if it had been read to its end.
    const refused = await shared.stage.post(
      path,
      { model: 'tiny', messages },
      { authorization: `Bearer ${key}` },
    );
    expect(refused.status).toBe(429);
  });

  it('costs its prompt also where it is no stream, and no more than the context', async () => {
    await session(() => undefined, 'other');
    const { key } = await shared.stage.newKey({ budget: { tokens: 50_000, window: 'total' } });
    const long = [{ role: 'user', content: prompt.repeat(10) }];
    expect(await leave('left-json', { messages: long }, key, false)).toMatchObject({
      status: 499,
      prompt_tokens: 8192,
    });
  });

  const used = (tokens: number, choices: object[], prompt_tokens = 1234): string =>
    `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', choices, usage: { prompt_tokens, total_tokens: prompt_tokens + tokens, completion_tokens: tokens } })}\n\n`;
  const choice = (content: string, finish_reason: string | null = null, index = 0): object[] => [
    { index, delta: { content }, text: content, finish_reason },
  ];

  it('costs what the engine says in each chunk, which its client does not see', async () => {
    const upstream = await session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(used(3, choice('abc')));
    }, 'vllm');
    const { key } = await shared.stage.newKey({ budget: { tokens: 1e6, window: 'total' } });
    expect(await leave('left-vllm', { messages, stream: true }, key, true)).toEqual({
      status: 499,
      prompt_tokens: 1234,
      completion_tokens: 3,
    });
    expect(JSON.parse(upstream.requests[0]!.body)).toMatchObject({
      stream_options: { include_usage: true, continuous_usage_stats: true },
    });
    upstream.answer = stream([used(1, choice('a')), used(2, choice('b', 'stop')), used(2, []), doneEvent]);
    const read = async (stream_options?: object): Promise<object[]> => {
      const text = await (
        await shared.stage.post(path, { model: 'tiny', messages, stream: true, stream_options })
      ).text();
      return text
        .split('\n\n')
        .filter((event) => event.startsWith('data: {'))
        .map((event) => JSON.parse(event.slice(6)) as object);
    };
    const plain = await read();
    expect(plain).toHaveLength(2);
    for (const chunk of plain) expect(chunk).not.toHaveProperty('usage');
    const asked = await read({ include_usage: true });
    expect(asked.map((chunk) => (chunk as { usage: object | null }).usage)).toEqual([
      null,
      null,
      { prompt_tokens: 1234, total_tokens: 1236, completion_tokens: 2 },
    ]);
    const all = await read({ include_usage: true, continuous_usage_stats: true });
    expect(
      all.map((chunk) => (chunk as { usage: { completion_tokens: number } }).usage.completion_tokens),
    ).toEqual([1, 2, 2]);
  });

  const ofChoices = [used(2, choice('ab')), used(5, choice('b', null, 1)), used(3, choice('c'))];
  it.each([
    ['in each chunk, which its client does not see', undefined],
    ['as its client asked', { include_usage: true, continuous_usage_stats: true }],
  ])('costs what the engine says of each choice %s', async (_how, stream_options) => {
    const upstream = await session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(ofChoices.join(''));
    }, 'vllm');
    const { key } = await shared.stage.newKey({ budget: { tokens: 1e6, window: 'total' } });
    const name = `of-two-${stream_options ? 'asked' : 'unasked'}`;
    const body = { messages, stream: true, n: 2, stream_options };
    expect(await leave(name, body, key, true)).toEqual({
      status: 499,
      prompt_tokens: 1234,
      completion_tokens: 8,
    });
    // The last chunk of a stream that was read to its end says it of the whole.
    const finished = [used(6, choice('', 'stop', 1)), used(4, choice('', 'stop'))];
    upstream.answer = stream([...ofChoices, ...finished, used(11, []), doneEvent]);
    const whole = { 'x-request-id': `${name}-whole` };
    await (await shared.stage.post(path, { model: 'tiny', ...body }, whole)).text();
    await until(() => row(`${name}-whole`) !== undefined, 'the ledger to have the whole');
    expect(row(`${name}-whole`)).toEqual({ status: 200, prompt_tokens: 1234, completion_tokens: 11 });
  });

  it('costs each of its prompts once, with all of their answers', async () => {
    await session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const [first, second] = [100, 20];
      const ofFirst = used(1, choice('a'), first) + used(2, choice('b', null, 1), first);
      const ofSecond = used(4, choice('c', null, 2), second) + used(8, choice('d', null, 3), second);
      response.write(ofFirst + ofSecond);
    }, 'vllm');
    const { key } = await shared.stage.newKey({ budget: { tokens: 1e6, window: 'total' } });
    const body = { prompt: ['a', 'b'], stream: true, n: 2 };
    expect(await leave('two-prompts', body, key, true, '/v1/completions')).toEqual({
      status: 499,
      prompt_tokens: 120,
      completion_tokens: 15,
    });
  });
});

it('a stream that waits for another replica is charged with no devices meanwhile', async () => {
  const devices: DeviceDescription[] = [{ kind: 'gpu', model: 'A100-40GB', memory_bytes: 40e9, isa: [] }];
  const replica = (answer: Answer): Promise<TestSession> =>
    shared.session(answer, { engine: 'vllm', metadata: { devices } });
  let die = (): void => undefined;
  await replica((_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(chunkEvent('a'));
    die = () => void response.socket!.destroy();
  });
  const [first] = sessions;
  const headers = { 'x-request-id': 'waited' };
  const answer = await shared.stage.post(path, { model: 'tiny', messages: [], stream: true }, headers);
  const reader = answer.body!.getReader();
  await reader.read();
  // The session leaves, so that nobody is there who could go on.
  await first!.own.leave();
  die();
  await until(
    () => shared.stage.logged.some((line) => line.includes('in the middle of its stream')),
    'the break',
  );
  await delay(waits_s * 1000);
  await replica(stream([chunkEvent('b', 'stop'), doneEvent]));
  while (!(await reader.read()).done);
  await until(() => row('waited') !== undefined, 'the ledger to have it');
  expect(row('waited')!.status).toBe(200);
  const { device_s, duration_ms } = timesOf('waited');
  expect(device_s).toBeGreaterThan(0);
  expect(device_s).toBeLessThanOrEqual(duration_ms / 1000 - waits_s);
}, 20_000);

describe('a stream whose engine says no usage', () => {
  const events = [chunkEvent('a'), chunkEvent('b'), chunkEvent('', 'stop')];
  const ask = async (request_id: string, key: string): Promise<string> => {
    const headers = { authorization: `Bearer ${key}`, 'x-request-id': request_id };
    const answer = await shared.stage.post(path, { model: 'tiny', messages: [], stream: true }, headers);
    return answer.text();
  };
  const entered = async (request_id: string): Promise<Row> => {
    await until(() => row(request_id) !== undefined, 'the ledger to have it');
    return row(request_id)!;
  };

  it('costs its chunks where it ends well, as where its client leaves', async () => {
    await session(stream([...events, doneEvent]), 'other');
    const { key } = await shared.stage.newKey({ budget: { tokens: 3, window: 'total' } });
    expect(await ask('unsaid', key)).toBe([...events, doneEvent].join(''));
    expect(await entered('unsaid')).toMatchObject({ status: 200, completion_tokens: 3 });
    expect(JSON.parse(await ask('unsaid-again', key)).error.code).toBe('insufficient_quota');
  });

  it.each([
    ['other', {}, { prompt_tokens: null, completion_tokens: 2 }],
    [
      'native',
      { hpcserve_prompt_tokens: 9, hpcserve_seed: 3, hpcserve_token_ids: [5, 6, 7] },
      { prompt_tokens: 9, completion_tokens: 6 },
    ],
  ])('costs what came before an error of its engine (%s)', async (engine, told, used) => {
    const error = {
      message: 'it took too long',
      type: 'timeout_error',
      param: null,
      code: 'E_ENGINE_TIMEOUT',
    };
    const sent = ['a', 'b'].map((content) => {
      const choices = [{ index: 0, delta: { content }, finish_reason: null }];
      return `data: ${JSON.stringify({ id: 'c', created: 1, choices, ...told })}\n\n`;
    });
    await session(stream([...sent, `data: ${JSON.stringify({ error })}\n\n`]), engine);
    const { key } = await shared.stage.newKey({ budget: { tokens: 1000, window: 'total' } });
    const request_id = `error-of-${engine}`;
    expect(await ask(request_id, key)).toContain('it took too long');
    expect(await entered(request_id)).toEqual({ status: 502, ...used });
  });
});

describe('what a replica says that a request cannot have used', () => {
  /** JSON has no NaN, and engines write it all the same: of such text nothing is read. */
  const figures = ['9007199254740991', '100000', '1e300', '-5', '1.5', '"7"', 'NaN'];
  const events = (figure: string): string[] => [
    chunkEvent('a'),
    chunkEvent('b', 'stop'),
    `data: {"choices":[],"usage":{"prompt_tokens":${figure},"completion_tokens":${figure}}}\n\n`,
    doneEvent,
  ];

  it.each(figures)('is replaced by what the gateway counted: %s', async (figure) => {
    const upstream = await session(stream(events(figure)), 'other');
    const { key } = await shared.stage.newKey({ budget: { tokens: 100_000, window: 'total' } });
    const ask = async (stream: boolean): Promise<Row> => {
      const request_id = `figure-${figure}-${stream}`.replaceAll(/[^\w-]/g, '');
      const headers = { authorization: `Bearer ${key}`, 'x-request-id': request_id };
      const body = { model: 'tiny', messages: [], stream };
      const answer = await shared.stage.post(path, body, headers);
      expect(answer.status).toBe(200);
      await answer.text();
      await until(() => row(request_id) !== undefined, 'the ledger to have it');
      return row(request_id)!;
    };
    const streamed = await ask(true);
    expect(streamed.completion_tokens).toBeLessThanOrEqual(3);
    expect(streamed.prompt_tokens ?? 0).toBeLessThanOrEqual(20);
    upstream.answer = async (_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(`{"choices":[],"usage":{"prompt_tokens":${figure},"completion_tokens":${figure}}}`);
    };
    const whole = await ask(false);
    expect(whole.prompt_tokens ?? 0).toBeLessThanOrEqual(20);
    expect(whole.completion_tokens ?? 0).toBeLessThanOrEqual(40);
    // A budget that such a figure used up would let it in no more.
    expect((await ask(true)).status).toBe(200);
  });

  it('is said once a replica', async () => {
    const upstream = await session(stream(events('100000')), 'other');
    const said = (): number =>
      shared.stage.logged.filter(
        (line) => line.includes('more than it can have') && line.includes(upstream.own.id),
      ).length;
    for (let count = 0; count < 3; count++)
      await (await shared.stage.post(path, { model: 'tiny', messages: [], stream: true })).text();
    await until(() => said() > 0, 'it to be said');
    expect(said()).toBe(1);
  });

  it('is more than it asked for, or a part that is larger than the whole', async () => {
    const usage = {
      prompt_tokens: 30,
      completion_tokens: 11,
      prompt_tokens_details: { cached_tokens: 31 },
      completion_tokens_details: { reasoning_tokens: 12 },
    };
    await session(json({ choices: [], usage }));
    const headers = { 'x-request-id': 'more-than-asked' };
    await shared.stage.post(path, { model: 'tiny', messages: [], max_tokens: 10 }, headers);
    await until(() => row('more-than-asked') !== undefined, 'the ledger to have it');
    expect(row('more-than-asked')).toEqual({ status: 200, prompt_tokens: 30, completion_tokens: 10 });
  });
});

describe('lengths of answers', () => {
  it('are known to a fifth, and newer ones count more', () => {
    const lengths = new LengthQuantiles();
    for (let tokens = 1; tokens <= 1000; tokens++) lengths.add(tokens);
    const high = lengths.quantile(0.95);
    expect(high).toBeGreaterThanOrEqual(950);
    expect(high).toBeLessThan(950 * 1.25);
    const again = new LengthQuantiles(lengths.counts);
    expect(again.quantile(0.95)).toBe(high);
    for (let count = 0; count < 5000; count++) again.add(10);
    expect(again.quantile(0.95)).toBeLessThan(13);
    expect(new LengthQuantiles().quantile(0.95)).toBe(0);
  });
});
