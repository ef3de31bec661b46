/** Pools so small that the results of graphs, which grow with what is computed, take what requests were let in for. */
import { expect, test } from 'vitest';
import { model } from '../engine/support.ts';
import { limit_ms, slow_device } from '../engine/test-backend.ts';
import { WorkerHarness } from './support.ts';

const mib = 2 ** 20;
/** What a slow device computes less of: attention over thousands of tokens takes it minutes. */
const part = slow_device ? 4 : 1;
/** Of tens of thousands of tokens. */
const timeout_ms = limit_ms(120_000);

test(
  'a request for which no memory is left is told when to ask again, and the next one is served',
  async () => {
    const worker = new WorkerHarness();
    try {
      await worker.configure({ profile_ms: 50 }, { pool_bytes: (1 + 3 / part) * mib });
      const limits = { kv_tokens: 65_536, context_tokens: 65_536, batch_invariant: true };
      await worker.load({ name: 'first', model_path: await model('tiny-llama', 'Q4_0'), ...limits });
      const ask = (tokens: number) =>
        worker.post('/v1/completions', {
          model: 'first',
          prompt: Array.from({ length: tokens }, (_, index) => 5 + (index % 90)),
          max_tokens: 4,
          temperature: 0,
          ignore_eos: true,
        });
      const small = await ask(20);
      expect(small.status, small.text).toBe(200);
      const refused: string[] = [];
      // Some are more than the books have, some more than the pool has: wherever it shows, the answer is an honest one.
      for (let tokens = 1000 / part; tokens < 40_000 / part; tokens = Math.ceil(1.3 * tokens)) {
        const { status, text, headers } = await ask(tokens);
        if (status === 200) continue;
        expect([400, 429, 503], text).toContain(status);
        if (status === 400) continue;
        expect(Number(headers['retry-after']), text).toBeGreaterThan(0);
        refused.push(text);
      }
      expect(refused.join('\n')).toMatch(/has no memory for this request now/);
      const again = await ask(20);
      expect(again.status, again.text).toBe(200);
      const textOf = ({ text }: { text: string }) => JSON.parse(text).choices[0].text;
      expect(textOf(again)).toBe(textOf(small));
    } finally {
      await worker.close();
    }
  },
  timeout_ms,
);
