/** One thread of a device worker hangs in what the kernel does not interrupt, and the rest of it lives. */
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import { eventually } from '../../mesh/support.ts';
import { lacking, stopComputingThread, threadStopper } from '../stop-thread.ts';
import { alive, Site, unitOf } from '../support.ts';

const timeouts = { first_token_s: 60, between_tokens_s: 60, total_s: 600, health_s: 0.9, stall_s: 2 };

describe.skipIf(lacking !== '')(
  `a compute thread that is stuck${lacking && ` [skipped: needs ${lacking}]`}`,
  () => {
    test('in a worker whose main thread lives: DOWN at once, though not even SIGKILL ends it, and started again when it is gone', async () => {
      await using site = await Site.open();
      const model_path = join(site.folder, 'toy.gguf');
      await synthesize({
        path: model_path,
        shape: synthPresets['tiny-llama']!,
        quantization: 'F16',
        seed: 1,
      });
      const program = threadStopper(site.folder);
      const native = { engine: 'native', model_path, context_tokens: 4096, kv_tokens: 4096 } as const;
      const agent = await site.start([unitOf({ name: 'toy', timeouts }, native)]);
      const record = await site.serving('toy', 20_000);
      // Before the answer begins: it is written down at the agent's leisure, and the answer ends within seconds.
      const pid = await agent.pidOf(record);
      const answer = await site.pool(record).request({
        method: 'POST',
        path: '/v1/chat/completions',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({
          model: 'toy',
          stream: true,
          ignore_eos: true,
          messages: [{ role: 'user', content: 'Go on.' }],
        }),
      });
      const cut = answer.body.text().then(
        () => 'ended',
        () => 'cut',
      );
      const stopper = await stopComputingThread(pid, program);
      try {
        expect(await cut).toBe('cut');
        await eventually(
          () => site.registry.get(record.session_id)?.lifecycle !== 'SERVING',
          'it is DOWN',
          1000,
        );
        expect(alive(pid)).toBe(true); // it hangs in what the kernel does not interrupt
        const error = await eventually(
          async () => (await agent.state())?.sessions.find(({ unit }) => unit === 'toy-0')?.error,
          'its state',
        );
        expect(error).toMatchObject({
          code: 'E_WORKER_STUCK',
          what: expect.stringMatching(/^the compute thread has been stuck for \d+ s$/),
        });
      } finally {
        stopper.kill('SIGKILL');
      }
      await eventually(() => !alive(pid), 'it is gone');
      const again = await site.serving('toy', 20_000);
      expect(again.session_id).not.toBe(record.session_id);
    }, 120_000);
  },
);
