/** llama.cpp's server from end to end: on a socket, behind a real agent, with a model made by seed. */
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { headers } from '../../../spec/wire.ts';
import { llamaServerFolder } from '../../engines/environments.ts';
import { Site, unitOf } from '../support.ts';

const { found, lacking } = llamaServerFolder();

describe.skipIf(lacking !== '')(`llama-server${lacking}`, () => {
  test('answers a stream, and keeps to a schema', async () => {
    await using site = await Site.open();
    const path = join(site.folder, 'm.gguf');
    await synthesize({ path, shape: synthPresets['tiny-qwen3']!, quantization: 'F16', seed: 1 });
    const model = { name: 'tiny', max_sequences: 2 };
    const unit = unitOf(model, { engine: 'llama.cpp', model_path: path, context_tokens: 512 });
    await site.start([unit], {}, { PATH: `${found}:${process.env.PATH}` });
    const record = await site.serving('tiny', 60_000);
    expect(record.metadata.engine).toBe('llama.cpp');
    const ask = async (body: object): Promise<string> => {
      const answer = await site.pool(record).request({
        method: 'POST',
        path: '/v1/chat/completions',
        headers: { 'content-type': 'application/json', [headers.model]: 'tiny' },
        body: JSON.stringify({ model: 'tiny', messages: [{ role: 'user', content: 'hello' }], ...body }),
      });
      const text = await answer.body.text();
      expect(answer.statusCode, text).toBe(200);
      return text;
    };
    const text = await ask({ stream: true, max_tokens: 8 });
    expect(text.split('\n').filter((line) => line.startsWith('data: {')).length).toBeGreaterThan(1);
    expect(text.trim().endsWith('data: [DONE]')).toBe(true);
    const schema = {
      type: 'object',
      properties: { warm: { type: 'boolean' } },
      required: ['warm'],
      additionalProperties: false,
    };
    const response_format = { type: 'json_schema', json_schema: { name: 'w', schema, strict: true } };
    const answer = JSON.parse(await ask({ response_format, max_tokens: 128 }));
    expect(JSON.parse(answer.choices[0].message.content)).toEqual({ warm: expect.any(Boolean) });
  }, 120_000);
});
