/** What a launch says of a model, on its way to the thread that computes. */
import { expect, test } from 'vitest';
import { loadMessage } from '../../../agent/device-worker/load-message.ts';
import { nativeModel } from '../../../agent/node/native-model.ts';
import type { UnitSpec } from '../../../spec/launch.ts';
import { unitOf } from '../support.ts';

const memory = { device_bytes: 2 ** 30, kv_bytes: 2 ** 20, arena_bytes: 2 ** 22, share: 0.1 };
const context = { runtime_folder: '/run/agent/1', session_id: 'ab'.repeat(16) };

function streamedOf(wanted: object, more: Partial<UnitSpec['memory'] & object>): unknown {
  const unit = unitOf(
    { name: 'm', source: '/m.gguf', ...wanted },
    { engine: 'native', memory: { ...memory, ...more } },
  );
  const text = { vocabulary: { address: 1n }, utf8: {} } as unknown as Parameters<typeof loadMessage>[1];
  const learned = { threads: 1 } as Parameters<typeof loadMessage>[2];
  return loadMessage(nativeModel(unit, context, 'a device'), text, learned).streamed;
}

test('of one that is streamed: what stays of it, what is assumed of its link, its share of that, and its copies', () => {
  const streamed = { weights: 'streamed' };
  const memory = { resident_bytes: 7, link_share: 0.4, link_bytes_per_s: 5e10, locked_bytes: 0 };
  expect(streamedOf(streamed, memory)).toEqual(memory);
  expect(streamedOf(streamed, {})).toEqual({ resident_bytes: 0 });
  expect(streamedOf({}, { resident_bytes: 7, link_share: 0.4 })).toBeUndefined();
});

test('of its chunks: what the plan chose for its device, before what model.yaml asks for', () => {
  const told = { name: 'm', source: '/m.gguf', prefill_chunk_tokens: 64 };
  const chunkOf = (...unit: Parameters<typeof unitOf>) =>
    nativeModel(unitOf(...unit), context, 'a device').prefill_chunk_tokens;
  expect(chunkOf(told, { engine: 'native', prefill_chunk_tokens: 512 })).toBe(512);
  expect(chunkOf(told, { engine: 'native' })).toBe(64);
  expect(chunkOf({ name: 'm', source: '/m.gguf' }, { engine: 'native' })).toBe(256);
});
