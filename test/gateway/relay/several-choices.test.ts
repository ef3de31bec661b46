/** Streams with several choices, each of which ends by itself. */
import type { ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { doneEvent, shareStage } from '../support.ts';

const shared = shareStage();
const chat = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }], stream: true, n: 2 };
const prompts = { model: 'tiny', prompt: ['a', 'b'], stream: true };

function event(index: number, text: string, finish_reason: string | null = null): string {
  const choices = [{ index, text, delta: { content: text }, finish_reason }];
  return `data: ${JSON.stringify({ id: 'c1', object: 'chat.completion.chunk', choices })}\n\n`;
}

const begun = [event(0, 'a'), event(1, 'b'), event(0, 'c')];
const second = event(1, '', 'stop');
const ends: Record<string, (response: ServerResponse) => void> = {
  'a broken connection': (response) => void response.destroy(),
  'an end': (response) => void response.end(),
};

/** What a client gets of a stream that ends like this. */
async function read(
  asked: { body: object; path: string },
  events: readonly string[],
  end: (response: ServerResponse) => void,
): Promise<string> {
  await shared.session(
    async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (const one of events) response.write(one);
      await delay(50);
      end(response);
    },
    { engine: 'other' },
  );
  return (await shared.stage.post(asked.path, asked.body)).text();
}

const kinds = [
  ['two choices', { body: chat, path: '/v1/chat/completions' }],
  ['two prompts', { body: prompts, path: '/v1/completions' }],
] as const;

for (const [kind, asked] of kinds)
  for (const [how, end] of Object.entries(ends)) {
    it(`of ${kind}, ${how} before both are finished is an error, whichever came last`, async () => {
      const events = [...begun, second];
      const text = await read(asked, events, end);
      expect(text.startsWith(events.join(''))).toBe(true);
      const rest = text.slice(events.join('').length);
      expect(rest).toMatch(/^data: .*\n\n$/);
      expect(JSON.parse(rest.slice(6)).error).toMatchObject({ code: 'E_REPLICA_BROKE_OFF' });
    });

    it(`of ${kind}, ${how} behind both is the end of the stream`, async () => {
      const events = [...begun, second, event(0, 'd', 'length')];
      expect(await read(asked, events, end)).toBe(events.join('') + doneEvent);
    });
  }
