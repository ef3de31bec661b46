/** Answers of engines that cannot be told in another API: their client is told so, the ledger, and nobody else. */
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { expect, it } from 'vitest';
import { gatewayFiles } from '../../../spec/state-layout.ts';
import { type Answer, chunkEvent, doneEvent, json, shareStage, stream, until } from '../support.ts';

const shared = shareStage();
const messages = [{ role: 'user', content: 'hi' }];
const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
const message = (tool_calls: unknown): object => ({
  choices: [{ index: 0, message: { role: 'assistant', content: 'x', tool_calls }, finish_reason: 'stop' }],
  usage,
});
const chunk = (tool_calls: unknown): string =>
  `data: ${JSON.stringify({ id: 'c', choices: [{ index: 0, delta: { content: 'x', tool_calls }, finish_reason: 'stop' }] })}\n\n`;
const unreadable = /could not be read/;

interface Row {
  status: number;
  error_code: string | null;
  prompt_tokens: number | null;
}

/** What the ledger has of a request. */
async function entered(request_id: string): Promise<Row> {
  const ledger = new Database(join(shared.stage.config.gateway_folder, gatewayFiles.ledger), {
    readonly: true,
  });
  const rows = ledger.prepare('select status, error_code, prompt_tokens from requests where request_id = ?');
  try {
    await until(() => rows.get(request_id) !== undefined, 'the ledger to have it');
    return rows.get(request_id) as Row;
  } finally {
    ledger.close();
  }
}

/** More than is held for a translation, in pieces of a MiB. */
const endless: Answer = async (_request, response) => {
  response.writeHead(200, { 'content-type': 'application/json' });
  response.write('{"data":[');
  const piece = `${'1,'.repeat(2 ** 19)}`;
  for (let at = 0; at < 33; at++) await new Promise((resolve) => response.write(piece, resolve));
  response.end('1]}');
};

let asked_count = 0;

/** Asks something while the stream of another client is in its middle. Returns the answer, and that stream. */
async function askBeside(
  answer: Answer,
  path: string,
  body: object,
): Promise<{ status: number; text: string; other: string; row: Row }> {
  let release = (): void => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const upstream = await shared.session(async (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(chunkEvent('a'));
    await released;
    response.end(chunkEvent('b', 'stop') + doneEvent);
  });
  const other = await shared.stage.post('/v1/chat/completions', { model: 'tiny', messages, stream: true });
  upstream.answer = answer;
  const request_id = `req-${asked_count++}`;
  const asked = await shared.stage.post(path, { model: 'tiny', ...body }, { 'x-request-id': request_id });
  const text = await asked.text();
  release();
  return { status: asked.status, text, other: await other.text(), row: await entered(request_id) };
}

it.each([
  ['embeddings without data', '/api/embed', { input: 'x' }, json({}), unreadable],
  ['an embedding without data', '/api/embeddings', { prompt: 'x' }, json({}), unreadable],
  ['calls that are no list', '/api/chat', { messages, stream: false }, json(message({})), unreadable],
  ['calls that are null', '/api/chat', { messages, stream: false }, json(message([null])), unreadable],
  ['calls of Anthropic', '/v1/messages', { messages, max_tokens: 9 }, json(message({})), unreadable],
  ['more than is held', '/api/embed', { input: 'x' }, endless, /larger than 32 MiB/],
])(
  '%s are a 502 in the API of the client',
  async (_what, path, body, answer, said) => {
    const got = await askBeside(answer, path, body);
    expect(got.status).toBe(502);
    expect(got.row).toMatchObject({ status: 502, error_code: 'E_REPLICA_FAILED' });
    const { error } = JSON.parse(got.text) as { error: string | { type: string; message: string } };
    if (path.startsWith('/api/')) expect(error).toMatch(said);
    else expect(error).toMatchObject({ type: 'api_error', message: expect.stringMatching(said) });
    expect(got.other).toBe(chunkEvent('a') + chunkEvent('b', 'stop') + doneEvent);
  },
  30_000,
);

it('calls that are no list, in the middle of a stream, end it with an error', async () => {
  const pieces = [chunk({}), doneEvent];
  const got = await askBeside(stream(pieces), '/api/chat', { messages, stream: true });
  const lines = got.text.trim().split('\n');
  expect(JSON.parse(lines.at(-1)!)).toHaveProperty('error');
  expect(got.row).toMatchObject({ status: 502, error_code: 'E_REPLICA_FAILED' });
  expect(got.other).toBe(chunkEvent('a') + chunkEvent('b', 'stop') + doneEvent);
});

it('what can be told is entered as it was answered, with what it used', async () => {
  const got = await askBeside(json(message([])), '/v1/messages', { messages, max_tokens: 9 });
  expect(got.status).toBe(200);
  expect(got.row).toEqual({ status: 200, error_code: null, prompt_tokens: 1 });
});
