/** What a replica is asked for a request of OpenAI's responses API. */
import { expect, it } from 'vitest';
import { chatAnswer, json, shareStage } from '../support.ts';

const shared = shareStage();

it.each([
  ['alone', { verbosity: 'low' }, { verbosity: 'low' }],
  [
    'beside a format',
    { verbosity: 'high', format: { type: 'json_object' } },
    { verbosity: 'high', response_format: { type: 'json_object' } },
  ],
  // As of a chat, it is the replica that refuses what it does not know.
  ['that nobody knows', { verbosity: 'loud' }, { verbosity: 'loud' }],
  ['that is not said', { verbosity: null, format: { type: 'text' } }, { response_format: { type: 'text' } }],
])('has the verbosity of `text` that is asked for, %s', async (_which, text, asked) => {
  const replica = await shared.session(json(chatAnswer));
  const answer = await shared.stage.post('/v1/responses', { model: 'tiny', input: 'hi', text });
  expect(answer.status).toBe(200);
  const { messages, ...rest } = JSON.parse(replica.requests[0]!.body) as Record<string, unknown>;
  expect(messages).toEqual([{ role: 'user', content: 'hi' }]);
  expect(rest).toEqual({ model: 'tiny', ...asked });
});
