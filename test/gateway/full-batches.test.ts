/**
 * Batches that another gateway has filled: a request looks for a free place first, and waits only where there is none.
 */
import { describe, expect, it } from 'vitest';
import { headers } from '../../spec/wire.ts';
import { type Answer, chatAnswer, json, shareStage } from './support.ts';

const shared = shareStage({ continue_ms: 20_000 });
const { sessions } = shared;
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'hi' }] };
const path = '/v1/chat/completions';
const full = { error: { message: 'all sequences run', type: 'rate_limit_exceeded', code: 'E_WORKER_BUSY' } };

/** As a native replica whose batch is full: refuses what is not to wait, answers what is. */
function fullBatch(asked: string[], node: string): Answer {
  return (request, response) => {
    const atOnce = request.headers[headers.at_once] === '1';
    asked.push(`${node} ${atOnce ? 'at once' : 'may wait'}`);
    json(atOnce ? full : chatAnswer, atOnce ? 429 : 200)(request, response);
  };
}

async function start(count: number, asked: string[], engine?: string): Promise<void> {
  for (let at = 0; at < count; at++) {
    const node = `node${at}`;
    await shared.session(fullBatch(asked, node), { node, ...(engine && { engine }) });
  }
}

describe('a request', () => {
  it('goes to the replica that has a place', async () => {
    const asked: string[] = [];
    await start(2, asked);
    await shared.session(json(chatAnswer), { node: 'free' });
    for (let turn = 0; turn < 6; turn++) expect((await shared.stage.post(path, chat)).status).toBe(200);
    expect(sessions.at(-1)!.requests.length).toBe(6);
    expect(asked.filter((words) => words.endsWith('may wait'))).toEqual([]);
    expect(asked.length).toBeGreaterThan(0);
  });

  it('waits at one of them where all are full', async () => {
    const asked: string[] = [];
    await start(3, asked);
    const answer = await shared.stage.post(path, chat);
    expect([answer.status, await answer.json()]).toMatchObject([200, { choices: [{}] }]);
    expect(asked.map((words) => words.replace(/^\w+ /, ''))).toEqual([
      'at once',
      'at once',
      'at once',
      'may wait',
    ]);
    expect(new Set(asked.slice(0, 3)).size).toBe(3);
  });

  it('asks four at most before it waits', async () => {
    const asked: string[] = [];
    await start(7, asked);
    expect((await shared.stage.post(path, chat)).status).toBe(200);
    expect(asked.filter((words) => words.endsWith('at once')).length).toBe(4);
    expect(asked.length).toBe(5);
  });

  it('is told nothing of it at a wrapped engine, which waits or refuses by its own lights', async () => {
    const asked: string[] = [];
    await start(1, asked, 'vllm');
    expect((await shared.stage.post(path, chat)).status).toBe(200);
    expect(asked).toEqual(['node0 may wait']);
  });
});
