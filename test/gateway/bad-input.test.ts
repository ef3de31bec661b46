import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { gatewayFiles } from '../../spec/state-layout.ts';
import { limits } from '../../spec/wire.ts';
import { chatAnswer, json, type Stage, startStage, type TestSession, writeDeployment } from './support.ts';

let stage: Stage;
let upstream: TestSession;
const chat = { model: 'tiny', messages: [{ role: 'user', content: 'the secret prompt' }] };
const path = '/v1/chat/completions';

beforeAll(async () => {
  stage = await startStage();
  upstream = await stage.session(json(chatAnswer));
  await stage.session(json(chatAnswer), {
    name: 'org/big-model',
    state: 'loading',
    bytes_loaded: 30,
    bytes_total: 100,
  });
});
afterAll(() => stage.close());

/** Every bad request is followed by a good one: the server goes on. */
async function stillServes(): Promise<void> {
  expect((await stage.post(path, chat)).status).toBe(200);
}

async function errorOf(
  answer: Response,
): Promise<{ message: string; type: string; param: unknown; code: string }> {
  expect(answer.headers.get('content-type')).toMatch(/^application\/json/);
  expect(answer.headers.get('x-request-id')).toBeTruthy();
  const { error } = (await answer.json()) as { error: Awaited<ReturnType<typeof errorOf>> };
  expect(Object.keys(error).sort()).toEqual(['code', 'message', 'param', 'type']);
  return error;
}

/** Writes raw bytes, and returns what comes until the connection ends. */
function raw(...pieces: string[]): Promise<string> {
  return rawTo(stage, ...pieces);
}

function rawTo({ gateway }: Stage, ...pieces: string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const { port } = gateway.endpoint;
    const socket: Socket = connect(port, '127.0.0.1', () => {
      for (const piece of pieces) socket.write(piece);
    });
    let text = '';
    socket.on('data', (chunk) => {
      text += chunk.toString();
    });
    socket.on('close', () => resolve(text));
    socket.on('error', (error: NodeJS.ErrnoException) =>
      error.code === 'ECONNRESET' || error.code === 'EPIPE' ? resolve(text) : reject(error),
    );
  });
}

const head = (extra: string, { key } = stage): string =>
  `POST ${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${key}\r\n${extra}\r\n`;

describe('requests that are wrong', () => {
  it.each([
    ['not JSON', '{"model": ', 400, 'E_REQUEST_JSON'],
    ['empty', '', 400, 'E_REQUEST_JSON'],
    ['an array', '[]', 400, 'invalid_value'],
    ['no model', '{"messages":[]}', 400, 'invalid_value'],
    ['a model that is a number', '{"model":7}', 400, 'invalid_value'],
    ['a stream that is a word', '{"model":"tiny","stream":"yes"}', 400, 'invalid_value'],
    [
      'stream options that are a list',
      '{"model":"tiny","stream":true,"stream_options":[]}',
      400,
      'invalid_value',
    ],
  ])('body: %s', async (_what, body, status, code) => {
    const before = upstream.requests.length;
    const answer = await stage.post(path, body);
    expect(answer.status).toBe(status);
    expect((await errorOf(answer)).code).toBe(code);
    expect(upstream.requests.length).toBe(before);
    await stillServes();
  });

  it('an unknown model gets the list and the nearest name', async () => {
    const answer = await stage.post(path, { ...chat, model: 'tniy' });
    expect(answer.status).toBe(404);
    const error = await errorOf(answer);
    expect(error).toMatchObject({ code: 'model_not_found', param: 'model', type: 'invalid_request_error' });
    expect(error.message).toContain('org/big-model, tiny');
    expect(error.message).toContain('did you mean "tiny"?');
  });

  it('are told where they are wrong, at whatever depth', async () => {
    const deep = `{"model":"tiny","stream":true,"stream_options":${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}}`;
    const answer = await stage.post(path, deep);
    expect(answer.status).toBe(400);
    expect((await errorOf(answer)).message).toContain('nested deeper than 1000 levels');
    const wrong = await stage.post(path, '{"model":"tiny",\n"x":}');
    expect((await errorOf(wrong)).message).toContain('line 2, column 5');
    await stillServes();
  });

  it('names that nobody has are kept short and printable', async () => {
    const name = `evil\u001b]0;pwned\u0007\r\n\u202eROOT${'x'.repeat(1_000_000)}`;
    const answer = await stage.post(path, { ...chat, model: name }, { 'x-request-id': 'made-up-name' });
    expect(answer.status).toBe(404);
    const { message } = await errorOf(answer);
    expect(message.length).toBeLessThan(2000);
    const { key } = await stage.newKey({ models: ['tiny'] });
    const forbidden = await stage.post(path, { ...chat, model: name }, { authorization: `Bearer ${key}` });
    const said = [message, (await errorOf(forbidden)).message];
    for (const text of said) expect(text).not.toMatch(/[\p{Cc}\p{Cf}]/u);
    // Sums are of models that are served: who makes names up makes no rows there.
    const usage = await (await stage.admin('/hpcserve/v1/usage?group_by=model')).text();
    expect(usage).not.toContain('evil');
    const ledger = new Database(join(stage.config.gateway_folder, gatewayFiles.ledger), { readonly: true });
    const kept = ledger.prepare("SELECT model FROM requests WHERE model LIKE 'evil%'").pluck().all();
    ledger.close();
    expect(kept).toEqual([expect.stringMatching(/^[^\p{Cc}\p{Cf}]{1,256}$/u)]);
    expect(await (await stage.admin('/metrics')).text()).not.toContain('evil');
    expect(stage.logged.join('')).not.toContain('x'.repeat(300));
  });

  it('a key for some models is told of no others', async () => {
    const { key } = await stage.newKey({ models: ['gone'] });
    const headers = { authorization: `Bearer ${key}` };
    const answer = await stage.post(path, { ...chat, model: 'gone' }, headers);
    expect(answer.status).toBe(404);
    expect((await errorOf(answer)).message).not.toMatch(/tiny|big-model/);
    expect((await fetch(`${stage.url}/metrics`, { headers })).status).toBe(401);
    const table = (await (await fetch(`${stage.url}/mesh/table`, { headers })).json()) as object;
    expect(table).toEqual({ sessions: [], idle_nodes: [], workload: [] });
    const all = { authorization: `Bearer ${stage.key}` };
    expect((await fetch(`${stage.url}/metrics`, { headers: all })).status).toBe(200);
    expect(await (await fetch(`${stage.url}/mesh/table`, { headers: all })).json()).toHaveProperty(
      'gateways',
    );
  });

  it.each([
    ['none', undefined],
    ['unknown', 'Bearer hsk-0000000000000000000000000000000000000000000'],
    ['the admin token', 'admin'],
    ['of another scheme', 'Basic dGVzdDp0ZXN0'],
    ['empty', 'Bearer '],
  ])('API key: %s', async (_what, authorization) => {
    const before = upstream.requests.length;
    const sent = authorization === 'admin' ? `Bearer ${stage.gateway.admin_token}` : authorization;
    for (const target of [path, '/v1/completions', '/v1/embeddings', '/v1/responses']) {
      const answer = await fetch(stage.url + target, {
        method: 'POST',
        body: JSON.stringify(chat),
        headers: sent === undefined ? {} : { authorization: sent },
      });
      expect(answer.status).toBe(401);
      expect((await errorOf(answer)).code).toBe('invalid_api_key');
    }
    expect(upstream.requests.length).toBe(before);
    await stillServes();
  });

  it('paths and methods', async () => {
    const headers = { authorization: `Bearer ${stage.key}` };
    const missing = await fetch(`${stage.url}/v1/nothing`, { headers });
    expect([missing.status, (await errorOf(missing)).code]).toEqual([404, 'E_REQUEST_PATH']);
    const known = await fetch(`${stage.url}/tokenizer_info`, { headers });
    expect([known.status, (await errorOf(known)).message]).toEqual([
      404,
      expect.stringContaining('tokenizer=FOLDER'),
    ]);
    const get = await fetch(stage.url + path, { headers });
    expect([get.status, get.headers.get('allow'), (await errorOf(get)).code]).toEqual([
      405,
      'POST',
      'E_REQUEST_METHOD',
    ]);
    const post = await fetch(`${stage.url}/v1/models`, { method: 'POST', headers });
    expect([post.status, post.headers.get('allow'), (await errorOf(post)).code]).toEqual([
      405,
      'GET, HEAD',
      'E_REQUEST_METHOD',
    ]);
  });

  it('a body that is too large, announced or not', async () => {
    const announced = await raw(head(`content-length: ${limits.body_bytes + 1}\r\n`));
    expect(announced).toContain('HTTP/1.1 413');
    expect(announced).toContain('E_REQUEST_TOO_LARGE');
    const chunk = `${(1024 * 1024).toString(16)}\r\n${'x'.repeat(1024 * 1024)}\r\n`;
    const chunked = await raw(head('transfer-encoding: chunked\r\n'), ...Array(33).fill(chunk));
    expect(chunked).toContain('HTTP/1.1 413');
    await stillServes();
  });

  it('a header that is too large', async () => {
    const answer = await raw(head(`x-long: ${'x'.repeat(limits.header_bytes)}\r\n`));
    expect(answer).toContain('HTTP/1.1 431');
    expect(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n'))).error.code).toBe('E_REQUEST_HEADERS');
    await stillServes();
  });

  it('bytes that are no HTTP, and ambiguous lengths', async () => {
    for (const bytes of [
      '\x16\x03\x01\x02\x00 tls?\r\n\r\n',
      head('content-length: 5\r\ntransfer-encoding: chunked\r\n'),
    ]) {
      const answer = await raw(bytes);
      expect(answer).toContain('HTTP/1.1 400');
      expect(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n'))).error.code).toBe('E_REQUEST_MALFORMED');
    }
    await stillServes();
  });

  it.each([1, 2])('clients that send too slowly are cut off, by gateways of %i', async (processes) => {
    // A gateway of its own: clients of the others are not slow where the machine is.
    const impatient = await startStage({ headers_ms: 400, request_ms: 800, check_ms: 100 }, { processes });
    try {
      const slowHeader = await rawTo(impatient, `POST ${path} HTTP/1.1\r\nhost: x\r\nx-a:`);
      expect(slowHeader).toContain('HTTP/1.1 408');
      expect(slowHeader).toContain('E_REQUEST_TIMEOUT');
      const slowBody = await rawTo(impatient, head('content-length: 100\r\n', impatient), '{"model":');
      expect(slowBody === '' || slowBody.includes('HTTP/1.1 408')).toBe(true);
      const headers = { authorization: `Bearer ${impatient.key}` };
      expect((await fetch(`${impatient.url}/v1/models`, { headers })).status).toBe(200);
    } finally {
      await impatient.close();
    }
  });

  it('request ids that could harm logs are replaced', async () => {
    const answer = await stage.post(path, chat, { 'x-request-id': 'a"b{} c' });
    expect(answer.headers.get('x-request-id')).toMatch(/^req_/);
  });
});

describe('models that cannot answer now', () => {
  it('say what their replicas do', async () => {
    const answer = await stage.post(
      path,
      { ...chat, model: 'org/big-model' },
      { 'x-hpcserve-qos': 'wait=0' },
    );
    expect(answer.status).toBe(503);
    expect(answer.headers.get('retry-after')).toBe('15');
    expect((await errorOf(answer)).message).toMatch(/cannot be reached|loading its weights \(30 %\)/);
  });

  it('say why their job is pending, since when, and when it may start', async () => {
    const submitting_since_ms = Date.UTC(2026, 2, 1, 9, 30, 12);
    const estimated_start_ms = Date.now() + 600_000;
    writeDeployment(stage.config, 'queued', {
      spec: { models: [{ name: 'queued-model', aliases: ['q'] }] },
      launches: [
        {
          phase: 'submitted',
          job_id: '99',
          submitting_since_ms,
          last: {
            phase: 'pending',
            state: 'PENDING',
            pending: { reason: 'Priority', explanation: 'other jobs come first' },
            estimated_start_ms,
          },
        },
      ],
    });
    await new Promise((resolve) => setTimeout(resolve, 2100));
    const answer = await stage.post(path, { ...chat, model: 'q' });
    expect(answer.status).toBe(503);
    expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(500);
    expect((await errorOf(answer)).message).toContain(
      `job 99 of deployment queued is pending since 2026-03-01T09:30Z, expected at ${new Date(estimated_start_ms).toISOString().slice(0, 16)}Z: other jobs come first (Priority)`,
    );
  });
});

describe('what operators see', () => {
  it('health needs no key, metrics do', async () => {
    expect(await (await fetch(`${stage.url}/health`)).json()).toEqual({ status: 'ok' });
    expect((await fetch(`${stage.url}/metrics`)).status).toBe(401);
    await stillServes();
    const metrics = await (await stage.admin('/metrics')).text();
    expect(metrics).toMatch(
      /hpcserve_requests_total\{model_name="tiny",endpoint="\/v1\/chat\/completions",node="node1",status="200"\} [1-9]/,
    );
    expect(metrics).toMatch(
      /hpcserve_generation_tokens_total\{model_name="tiny",endpoint="\/v1\/chat\/completions",node="node1"\} [1-9]/,
    );
    expect(metrics).toMatch(
      /hpcserve_e2e_request_latency_seconds_bucket\{model_name="tiny",endpoint="\/v1\/chat\/completions",node="node1",le="\+Inf"\} [1-9]/,
    );
    expect(metrics).toContain('hpcserve_sessions{state="reachable"}');
    // Names that clients make up must not become series.
    for (let index = 0; index < 20; index++) await stage.post(path, { ...chat, model: `made-up-${index}` });
    expect(await (await stage.admin('/metrics')).text()).not.toContain('made-up');
  });

  it('admin paths take the admin token only', async () => {
    for (const [method, target] of [
      ['GET', '/hpcserve/v1/table'],
      ['GET', '/hpcserve/v1/audit'],
      ['POST', `/hpcserve/v1/keys/${stage.key_id}/unblock`],
    ] as const) {
      for (const token of [stage.key, 'x', undefined]) {
        const answer = await fetch(stage.url + target, {
          method,
          headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
        });
        expect([target, answer.status]).toEqual([target, 401]);
      }
    }
    const wrong = await stage.admin('/hpcserve/v1/keys', { method: 'POST', body: { nome: 'x' } });
    expect(wrong.status).toBe(400);
    expect((await stage.admin('/hpcserve/v1/usage?group_by=moon')).status).toBe(400);
    expect((await stage.admin('/hpcserve/v1/keys/key_none', { method: 'DELETE' })).status).toBe(404);
  });

  it('a revoked key is refused at once', async () => {
    const made = (await (
      await stage.admin('/hpcserve/v1/keys', { method: 'POST', body: { name: 'short' } })
    ).json()) as { key: string; id: string };
    const headers = { authorization: `Bearer ${made.key}` };
    expect((await fetch(`${stage.url}/v1/models`, { headers })).status).toBe(200);
    expect((await stage.admin(`/hpcserve/v1/keys/${made.id}`, { method: 'DELETE' })).status).toBe(200);
    expect((await fetch(`${stage.url}/v1/models`, { headers })).status).toBe(401);
    const listed = await (await stage.admin('/hpcserve/v1/keys')).text();
    expect(listed).toContain('"name":"short"');
    expect(listed).not.toContain(made.key);
  });

  it('logs hold no key, no token and no prompt', async () => {
    await stillServes();
    const all = stage.logged.join('');
    expect(all.length).toBeGreaterThan(100);
    for (const secret of [stage.key, stage.gateway.admin_token, 'secret prompt'])
      expect(all).not.toContain(secret);
    for (const line of stage.logged) expect(() => JSON.parse(line)).not.toThrow();
  });
});
