/** A native replica is lost, and the only other one of its model has not opened its file yet. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { synthPresets } from '../../native/synth/presets.ts';
import { synthesize } from '../../native/synth/synthesize.ts';
import { Site, unitOf } from '../agent/support.ts';
import { gatewayOf, type SessionRow } from '../gateway/with-agents.ts';
import { eventually } from '../mesh/support.ts';

test('its stream goes on at the letter with that one, though nobody is waited for who is not known', async () => {
  await using site = await Site.open();
  await using gateway = await gatewayOf(site, { continue_ms: 0 });
  const model_path = join(site.folder, 'm.gguf');
  await synthesize({ path: model_path, shape: synthPresets['tiny-llama']!, quantization: 'F16', seed: 1 });
  const unit = unitOf(
    { name: 'm', batch_invariant: true },
    { engine: 'native', model_path, context_tokens: 4096, kv_tokens: 8192, device_kind: 'gpu' },
  );
  // Answers take longer than the second replica needs to be known.
  const slow = {
    emulated: 'cpu',
    emulated_step_ms: 20,
    device_model: 'A100',
    device_memory_bytes: 2 ** 30,
  } as const;
  const first = await site.start([unit], slow);
  await gateway.untilServing('m', 1, 45_000);
  const body = { model: 'm', prompt: 'On and on', max_tokens: 500, seed: 4, ...{ ignore_eos: true } };
  const client = gateway.client();
  const undisturbed = await client.completions.create(body);

  const coming = async (): Promise<string | undefined> => {
    const table = await (await gateway.admin('/hpcserve/v1/table')).json();
    const states = (table as { sessions: SessionRow[] }).sessions.flatMap(({ reachable, models }) =>
      reachable ? models.map(({ state }) => state) : [],
    );
    return states.find((state) => state === 'pending' || state === 'loading');
  };
  const lose = async (): Promise<void> => {
    await site.start([unit], slow);
    await eventually(coming, 'the second replica to be known', 45_000);
    await first.kill();
    expect(await coming(), 'it has not served before the first one was lost').toBeDefined();
  };
  let text = '';
  let lost: Promise<void> | undefined;
  for await (const { choices } of await client.completions.create({ ...body, stream: true })) {
    text += choices[0]?.text ?? '';
    lost ??= lose();
  }
  await lost;
  expect(text).toBe(undisturbed.choices[0]!.text);
  expect(await gateway.continuations()).toBe(1);
}, 180_000);
