/** Files and batches as the official client uses them, on a replica that is lent while nobody else needs its node. */
import { join } from 'node:path';
import OpenAI, { toFile } from 'openai';
import type { Batch } from 'openai/resources/batches';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SiteGateway } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';

const endpoint = '/v1/chat/completions';
let site: Site;
let gateway: SiteGateway;
let client: OpenAI;
/** All of these tests are of one key, which is made with the first gateway. */
let key: string;

beforeAll(async () => {
  site = await Site.open();
  const model_path = join(site.folder, 'm.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  await site.start(
    [
      unitOf(
        { name: 'm', batch_invariant: true, max_sequences: 8 },
        { engine: 'native', model_path, context_tokens: 1024, kv_tokens: 8192 },
      ),
    ],
    { tier: 'scavenger', emulated_step_ms: 5 },
  );
  gateway = await gatewayOf(site);
  ({ key } = gateway);
  client = gateway.client();
  await gateway.untilServing('m', 1, 45_000);
}, 90_000);
afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await site?.[Symbol.asyncDispose]();
});

const lineOf = (custom_id: string, more: object = {}) =>
  JSON.stringify({
    custom_id,
    method: 'POST',
    url: endpoint,
    body: {
      model: 'm',
      messages: [{ role: 'user', content: `Say ${custom_id}.` }],
      max_tokens: 8,
      temperature: 0,
      ...more,
    },
  });
const upload = async (lines: readonly string[]) =>
  client.files.create({ file: await toFile(Buffer.from(lines.join('\n')), 'in.jsonl'), purpose: 'batch' });
const begin = async (lines: readonly string[]): Promise<Batch> => {
  const { id } = await upload(lines);
  return client.batches.create({ input_file_id: id, endpoint, completion_window: '24h' });
};
const ended = ({ id }: Batch) =>
  eventually(
    async () => {
      const batch = await client.batches.retrieve(id);
      return ['completed', 'failed', 'cancelled', 'expired'].includes(batch.status) ? batch : undefined;
    },
    'the batch to end',
    40_000,
  );
interface Line {
  custom_id: string;
  response: { status_code: number; body: OpenAI.ChatCompletion };
}
const linesOf = async (id: string): Promise<Line[]> =>
  (await (await client.files.content(id)).text())
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Line);

describe('files', () => {
  it('are kept, listed and given back as they were, and deleted', async () => {
    const file = await upload([lineOf('a')]);
    expect(file).toMatchObject({
      object: 'file',
      filename: 'in.jsonl',
      purpose: 'batch',
      status: 'processed',
    });
    expect(await (await client.files.content(file.id)).text()).toBe(lineOf('a'));
    expect((await client.files.list()).data.map(({ id }) => id)).toContain(file.id);
    expect(await client.files.retrieve(file.id)).toEqual(expect.objectContaining({ id: file.id }));
    expect(await client.files.delete(file.id)).toMatchObject({ deleted: true });
    await expect(client.files.retrieve(file.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
  });

  it('for other uses, or without a key, are refused', async () => {
    const file = await toFile(Buffer.from('x'), 'x');
    await expect(client.files.create({ file, purpose: 'fine-tune' })).rejects.toMatchObject({
      status: 400,
      param: 'purpose',
    });
    const form = new FormData();
    form.set('file', new Blob(['x']));
    expect((await fetch(`${gateway.url}/v1/files`, { method: 'POST', body: form })).status).toBe(401);
  });
});

describe('a batch', () => {
  it('is answered line by line, as the same requests are', async () => {
    const ids = Array.from({ length: 20 }, (_, at) => `r${at}`);
    const made = await begin([...ids.map((id) => lineOf(id)), lineOf('wrong', { model: 'none' }), '']);
    expect(made).toMatchObject({ object: 'batch', status: 'validating' });
    const batch = await ended(made);
    expect(batch).toMatchObject({
      status: 'completed',
      request_counts: { total: 21, completed: 20, failed: 1 },
    });
    const lines = await linesOf(batch.output_file_id!);
    expect(lines.map(({ custom_id }) => custom_id)).toEqual(ids);
    const one = await client.chat.completions.create({
      model: 'm',
      messages: [{ role: 'user', content: 'Say r7.' }],
      max_tokens: 8,
      temperature: 0,
    });
    expect(lines[7]!.response.body.choices).toEqual(one.choices);
    const [error] = await linesOf(batch.error_file_id!);
    expect(error).toMatchObject({ custom_id: 'wrong', response: { status_code: 404 } });
    expect((await client.batches.list()).data[0]!.id).toBe(batch.id);
  });

  it('of the responses API is answered in its form', async () => {
    const url = '/v1/responses';
    const input = 'Say something.';
    const asked = { model: 'm', input, max_output_tokens: 8, temperature: 0 };
    const lines = [asked, { ...asked, background: true }].map((body, at) =>
      JSON.stringify({ custom_id: `r${at}`, method: 'POST', url, body }),
    );
    const { id } = await upload(lines);
    const batch = await ended(
      await client.batches.create({ input_file_id: id, endpoint: url, completion_window: '24h' }),
    );
    expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 1, failed: 1 } });
    const [line] = await linesOf(batch.output_file_id!);
    const { output } = await client.responses.create(asked);
    const text = (items: unknown) => (items as [{ content: [{ text: string }] }])[0].content[0].text;
    const { body } = line!.response as unknown as { body: OpenAI.Responses.Response };
    expect(body).toMatchObject({ object: 'response', status: 'incomplete', usage: { output_tokens: 8 } });
    expect(text(body.output)).toBe(text(output));
    const [refused] = await linesOf(batch.error_file_id!);
    expect(refused).toMatchObject({
      custom_id: 'r1',
      response: { status_code: 400, body: { error: { param: 'background' } } },
    });
  });

  it('that is wrong fails with its lines', async () => {
    const batch = await ended(await begin([lineOf('a'), '{', lineOf('a'), lineOf('b', { stream: true })]));
    expect(batch.status).toBe('failed');
    expect(batch.errors!.data!.map(({ line }) => line)).toEqual([2, 3, 4]);
    for (const [param, more] of [
      ['endpoint', { endpoint: '/v1/moderations' }],
      ['completion_window', { completion_window: '1h' }],
      ['input_file_id', { input_file_id: 'file-none' }],
    ] as const)
      await expect(
        client.batches.create({
          input_file_id: 'file-0',
          endpoint,
          completion_window: '24h',
          ...more,
        } as never),
      ).rejects.toMatchObject({ param });
  });

  it('that is cancelled ends, with what there is', async () => {
    const made = await begin(Array.from({ length: 200 }, (_, at) => lineOf(`c${at}`, { max_tokens: 60 })));
    await eventually(
      async () => (await client.batches.retrieve(made.id)).request_counts!.completed > 0,
      'results',
    );
    expect((await client.batches.cancel(made.id)).status).toBe('cancelling');
    const batch = await ended(made);
    expect(batch.status).toBe('cancelled');
    expect(batch.request_counts!.completed).toBeLessThan(200);
    expect((await linesOf(batch.output_file_id!)).length).toBeGreaterThan(0);
  });

  it('goes on when its gateway is back, without what was answered', async () => {
    const ids = Array.from({ length: 150 }, (_, at) => `s${at}`);
    const made = await begin(ids.map((id) => lineOf(id, { max_tokens: 16 })));
    await eventually(
      async () => (await client.batches.retrieve(made.id)).request_counts!.completed >= 10,
      'results',
    );
    await gateway[Symbol.asyncDispose]();
    gateway = await gatewayOf(site);
    client = new OpenAI({ baseURL: `${gateway.url}/v1`, apiKey: key, maxRetries: 0 });
    const stopped = await client.batches.retrieve(made.id);
    expect(stopped.request_counts!.completed).toBeGreaterThanOrEqual(10);
    const batch = await ended(made);
    expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 150, completed: 150 } });
    expect((await linesOf(batch.output_file_id!)).map(({ custom_id }) => custom_id)).toEqual(ids);
  }, 90_000);
});
