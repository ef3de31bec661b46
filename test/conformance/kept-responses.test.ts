/** `store` and `previous_response_id` of the responses API, where the site keeps answers. */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import type { ResponseCreateParamsNonStreaming } from 'openai/resources/responses/responses';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newId, SealedFolder } from '../../gateway/kept/sealed-folder.ts';
import { siteSecret } from '../../gateway/kept/site-secret.ts';
import { context_tokens, openStage, type Stage } from './support.ts';

const asked = { model: 'tiny', input: 'Tell me a story of rivers.', max_output_tokens: 8, temperature: 0 };

let stage: Stage;
let client: OpenAI;
beforeAll(async () => {
  stage = await openStage({ responses_kept_s: 3600 });
  client = stage.client;
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

const ask = (more: Partial<ResponseCreateParamsNonStreaming> = {}) =>
  client.responses.create({ ...asked, ...more });

describe('an answer that is kept', () => {
  it('is gone on from as if its items had been sent, without its instructions', async () => {
    const first = await ask({ instructions: 'Be brief.' });
    expect(first).toMatchObject({ store: true });
    const second = await ask({ input: 'And then?', previous_response_id: first.id });
    expect(second.previous_response_id).toBe(first.id);
    const third = await ask({ input: 'And at last?', previous_response_id: second.id });
    const turn = (content: string) => ({ role: 'user' as const, content });
    const answer = (text: string) => ({ role: 'assistant' as const, content: text });
    const sent = await ask({
      store: false,
      input: [
        turn(asked.input),
        answer(first.output_text),
        turn('And then?'),
        answer(second.output_text),
        turn('And at last?'),
      ],
    });
    expect(third.output_text).toBe(sent.output_text);
    expect(third.usage!.input_tokens).toBe(sent.usage!.input_tokens);
  });

  it('can be had again, with its input, until it is deleted', async () => {
    const made = await ask();
    expect(await client.responses.retrieve(made.id)).toMatchObject({
      id: made.id,
      output: made.output,
      usage: made.usage,
    });
    const { data } = await client.responses.inputItems.list(made.id);
    expect(data).toMatchObject([{ role: 'user', content: [{ text: asked.input }] }]);
    await client.responses.delete(made.id);
    await expect(client.responses.retrieve(made.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    await expect(client.responses.delete(made.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    const refused = ask({ previous_response_id: made.id });
    await expect(refused).rejects.toMatchObject({ status: 404, param: 'previous_response_id' });
  });

  it('is one that was streamed, too, at once', async () => {
    let id = '';
    for await (const event of await client.responses.create({ ...asked, stream: true }))
      if (event.type === 'response.incomplete') id = event.response.id;
    expect((await ask({ input: 'And then?', previous_response_id: id })).output_text).not.toBe('');
  });

  it('is of its key alone, and none is kept that the client does not want kept', async () => {
    const made = await ask();
    const other = (await (
      await stage.admin('/hpcserve/v1/keys', { method: 'POST', body: JSON.stringify({ name: 'other' }) })
    ).json()) as { key: string };
    const stranger = stage.clientWith({ apiKey: other.key });
    await expect(stranger.responses.retrieve(made.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    await expect(
      stranger.responses.create({ ...asked, previous_response_id: made.id }),
    ).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    const unkept = await ask({ store: false });
    expect(unkept).toMatchObject({ store: false });
    await expect(client.responses.retrieve(unkept.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    for (const id of ['..%2f..%2fkept.key', 'resp_1/../x', 'kept.key'])
      expect((await stage.fetch(`/v1/responses/${id}`)).status).toBe(404);
    expect((await fetch(`${stage.url}/v1/responses/${made.id}`)).status).toBe(401);
  });

  it('lies encrypted in files of the operator alone', async () => {
    const made = await ask();
    await client.responses.retrieve(made.id);
    const folder = join(stage.folder, 'responses');
    const [owner] = readdirSync(folder);
    const path = join(folder, owner!, made.id);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(readFileSync(path).includes('rivers')).toBe(false);
    expect(statSync(join(stage.folder, 'kept.key')).mode & 0o777).toBe(0o600);
  });
});

describe('a folder of sealed entries', () => {
  it('opens them with their key, owner and name alone, for as long as they are kept', async () => {
    const path = join(stage.folder, 'sealed');
    const secret = siteSecret(join(stage.folder, 'kept.key'));
    const kept = { kept_ms: 1000, owner_bytes_max: 1000 };
    const folder = new SealedFolder(path, secret, kept);
    const [first, second] = [newId('resp_'), newId('resp_')];
    await folder.put('key_1', first, Buffer.from('a'));
    expect((await folder.get('key_1', first))!.toString()).toBe('a');
    expect(await folder.get('key_2', first)).toBeUndefined();
    const other = new SealedFolder(path, Buffer.alloc(32, 1), kept);
    expect(await other.get('key_1', first)).toBeUndefined();
    // Beyond what one owner may keep, the oldest goes.
    await folder.put('key_1', second, Buffer.alloc(950));
    await folder.sweep();
    expect((await folder.list('key_1')).map(({ id }) => id)).toEqual([second]);
    await folder.sweep(Date.now() + 2000);
    expect(await folder.list('key_1')).toEqual([]);
  });
});

it('truncation: auto leaves out the oldest turns where all do not fit', async () => {
  const turns = Array.from({ length: 60 }, (_, at) => [
    { role: 'user' as const, content: `Question ${at}: ${'more '.repeat(40)}` },
    { role: 'assistant' as const, content: 'Yes.' },
  ]).flat();
  const input = [...turns, { role: 'user' as const, content: 'And?' }];
  await expect(ask({ input })).rejects.toMatchObject({ code: 'context_length_exceeded' });
  const cut = await ask({ input, truncation: 'auto', instructions: 'Be brief.' });
  expect(cut.truncation).toBe('auto');
  // As many turns as there is room for, by the model's own tokens.
  const counts = await Promise.all(
    [...turns.keys(), turns.length]
      .filter((at) => at % 2 === 0)
      .map(async (at) => {
        const messages = [{ role: 'system', content: 'Be brief.' }, ...input.slice(at)];
        const answer = await stage.post('/tokenize', { model: 'tiny', messages });
        return ((await answer.json()) as { count: number }).count;
      }),
  );
  const room = context_tokens - asked.max_output_tokens;
  expect(cut.usage!.input_tokens).toBe(counts.find((count) => count <= room));
});
