// Ollama's client.
import assert from 'node:assert/strict';
import { Ollama } from 'ollama';
import {
  bound_tokens,
  chat_model,
  digits,
  engine,
  host,
  image,
  long_tokens,
  refusesImages,
  run,
  server,
  story,
  story_tokens,
  thrownBy,
} from './checks.mjs';

const client = new Ollama({ host, headers: { authorization: `Bearer ${server.apiKey}` } });
const messages = [{ role: 'user', content: story }];
const asked = { model: chat_model, messages, options: { num_predict: story_tokens, temperature: 0 } };

await run({
  async models() {
    const { models } = await client.list();
    assert.ok(models.some(({ name }) => name === chat_model));
    assert.ok((await client.show({ model: chat_model })).capabilities.includes('completion'));
  },

  async chat() {
    const answer = await client.chat(asked);
    assert.equal(answer.done_reason, 'length');
    assert.equal(answer.eval_count, story_tokens);
    assert.equal((await thrownBy(() => client.chat({ ...asked, model: 'none' }))).status_code, 404);
  },

  async stream() {
    const whole = await client.chat(asked);
    let text = '';
    for await (const part of await client.chat({ ...asked, stream: true })) text += part.message.content;
    assert.equal(text, whole.message.content);
  },

  async abort() {
    const stream = await client.chat({ ...asked, options: { num_predict: long_tokens }, stream: true });
    let parts = 0;
    const error = await thrownBy(async () => {
      for await (const _ of stream) if (++parts === 3) stream.abort();
    });
    assert.equal(error.name, 'AbortError');
    // What has come by then is still given out.
    assert.ok(parts < long_tokens / 2, `${parts} parts`);
  },

  async schema() {
    const format = { type: 'object', properties: { digit: { enum: digits } }, required: ['digit'] };
    const { message } = await client.chat({ ...asked, format, options: { num_predict: bound_tokens } });
    assert.ok(digits.includes(JSON.parse(message.content).digit));
  },

  async embeddings() {
    const ask = () => client.embed({ model: chat_model, input: ['one', 'two'] });
    if (engine === 'native') assert.equal((await ask()).embeddings.length, 2);
    else assert.ok([400, 404].includes((await thrownBy(ask)).status_code));
  },

  async image() {
    const seen = [{ ...messages[0], images: [image] }];
    await refusesImages(
      () => client.chat({ ...asked, messages: seen }),
      ({ status_code }) => status_code,
    );
  },
});
