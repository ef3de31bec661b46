/** The compute thread of a replica hangs while it answers, behind a gateway: its clients go on elsewhere. */
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { lacking, stopComputingThread, threadStopper } from '../agent/stop-thread.ts';
import { pidOfSession, Site, unitOf } from '../agent/support.ts';
import { gatewayOf } from '../gateway/with-agents.ts';

const timeouts = { first_token_s: 60, between_tokens_s: 60, total_s: 600, health_s: 4.5, stall_s: 2 };

describe.skipIf(lacking !== '')(`a stuck compute thread${lacking && ` [skipped: needs ${lacking}]`}`, () => {
  it('its streams go on at the letter on another replica', async () => {
    await using site = await Site.open();
    const model_path = join(site.folder, 'm.gguf');
    await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
    await using gateway = await gatewayOf(site, { continue_ms: 1500 });
    const client = gateway.client();
    const unit = unitOf(
      { name: 'm', batch_invariant: true, timeouts },
      { engine: 'native', model_path, context_tokens: 4096, kv_tokens: 8192 },
    );
    const agents = await Promise.all([site.start([unit]), site.start([unit])]);
    await gateway.untilServing('m', 2, 45_000);
    const body = {
      model: 'm',
      messages: [{ role: 'user' as const, content: 'Go on and on.' }],
      max_tokens: 3000,
      seed: 4,
      ignore_eos: true,
    };
    const program = threadStopper(site.folder);
    const undisturbed = await client.chat.completions.create(body);
    const { data: stream, response } = await client.chat.completions
      .create({ ...body, stream: true })
      .withResponse();
    const pid = await pidOfSession(agents, response.headers.get('x-hpcserve-session')!);
    const stopper = await stopComputingThread(pid, program);
    try {
      let text = '';
      for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
      expect(text).toBe(undisturbed.choices[0]!.message.content);
      expect(await gateway.continuations()).toBe(1);
    } finally {
      stopper.kill('SIGKILL');
    }
  }, 120_000);
});
