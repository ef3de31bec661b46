// instructor for JavaScript. Its modes JSON and MD_JSON put the schema into the prompt alone, which a model with random
// weights does not heed: what binds the answer is the schema of TOOLS, FUNCTIONS and JSON_SCHEMA.
import assert from 'node:assert/strict';
import instructor from '@instructor-ai/instructor';
import OpenAI from 'openai';
import { z } from 'zod';
import { bound_tokens, chat_model, digits, run, server, story, tools_model } from './checks.mjs';

const Instructor = instructor.default ?? instructor;
const schema = z.object({ digit: z.enum(digits), count: z.number().int().min(1).max(9) });

const extracts = (mode, model) => async () => {
  const client = Instructor({ client: new OpenAI({ ...server, maxRetries: 0 }), mode });
  const { digit, count } = await client.chat.completions.create({
    model,
    messages: [{ role: 'user', content: story }],
    max_tokens: bound_tokens,
    temperature: 0,
    response_model: { schema, name: 'Digits' },
    max_retries: 0,
  });
  assert.ok(digits.includes(digit));
  assert.ok(count >= 1 && count <= 9);
};

const streams = (mode, model) => async () => {
  const client = Instructor({ client: new OpenAI({ ...server, maxRetries: 0 }), mode });
  const stream = await client.chat.completions.create({
    model,
    messages: [{ role: 'user', content: story }],
    max_tokens: bound_tokens,
    temperature: 0,
    response_model: { schema, name: 'Digits' },
    max_retries: 0,
    stream: true,
  });
  let last;
  for await (const part of stream) last = part;
  assert.ok(digits.includes(last.digit), JSON.stringify(last));
};

await run({
  tools: extracts('TOOLS', tools_model),
  'tools, streamed': streams('TOOLS', tools_model),
  functions: extracts('FUNCTIONS', tools_model),
  schema: extracts('JSON_SCHEMA', chat_model),
});
