/** From requests at a gateway to a trace that says nothing of them but what is alike. */
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { analyzeTrace, exportTrace } from '../../../ledger/index.ts';
import { gatewayFiles } from '../../../spec/state-layout.ts';
import { chatAnswer, json, shareStage } from '../support.ts';

const shared = shareStage({}, { trace: true });
const path = '/v1/chat/completions';

it('requests that begin alike have equal ids so far, in one export alone', async () => {
  await shared.session(json(chatAnswer));
  const opening = 'a system prompt that every request has. '.repeat(8);
  const chat = (content: string, more: object = {}) => ({
    model: 'tiny',
    messages: [
      { role: 'system', content: opening },
      { role: 'user', content },
    ],
    ...more,
  });
  const first = 'the first question, which nobody may read anywhere '.repeat(4);
  const second = 'another question, of something else altogether, '.repeat(4);
  const { stage } = shared;
  expect(
    (await stage.post(path, chat(first, { temperature: 0.5, top_p: 0.9, user: 'alice', seed: 7 }))).status,
  ).toBe(200);
  expect((await stage.post(path, chat(second))).status).toBe(200);
  expect((await stage.post(path, chat(first), { 'x-hpcserve-usage': 'counts' })).status).toBe(200);
  const ledger = join(stage.config.gateway_folder, gatewayFiles.ledger);
  const rows = [...exportTrace(ledger, { secret: Buffer.alloc(32, 1) })];
  expect(rows).toHaveLength(2);
  const [one, two] = rows;
  expect(one).toMatchObject({
    model: 'tiny',
    input_tokens: 5,
    output_tokens: 7,
    status: 200,
    parameters: { temperature: 0.5, top_p: 0.9 },
  });
  const alike = one!.buckets.findIndex((bucket, index) => bucket !== two!.buckets[index]);
  expect(alike).toBe(Math.floor(opening.length / 64));
  // All that follows differs, also where the text itself would be the same.
  expect(new Set([...one!.buckets, ...two!.buckets]).size).toBe(
    one!.buckets.length + two!.buckets.length - alike,
  );
  const again = [...exportTrace(ledger, { secret: Buffer.alloc(32, 2), hidesModels: true })];
  expect(again[0]!.buckets.some((bucket) => one!.buckets.includes(bucket))).toBe(false);
  expect(again[0]!.model).toMatch(/^model-[0-9a-f]{12}$/);
  expect(JSON.stringify(rows)).not.toMatch(/question|alice|key_|tester|req_/);
  const bytes = readFileSync(ledger).toString('latin1') + readFileSync(`${ledger}-wal`).toString('latin1');
  expect(bytes).not.toContain('question');
  expect(statSync(join(stage.config.gateway_folder, gatewayFiles.trace_salt)).mode & 0o077).toBe(0);
  expect(analyzeTrace(rows, 60_000).models[0]!.reused_share).toBeCloseTo(
    alike / (one!.buckets.length + two!.buckets.length),
    9,
  );
});
