/** Weights that stay in host memory under a real node agent: what is told of them, and that it is forgotten again. */
import { copyFileSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { AgentState, SessionState } from '../../../spec/agent-state.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { deepModel } from '../streaming/support.ts';
import { Site, unitOf } from '../support.ts';

const mib = 2 ** 20;
const emulated = { emulated: 'cpu', device_model: 'A100', device_memory_bytes: 256 * mib } as const;
const memory = { device_bytes: 64 * mib, kv_bytes: 8 * mib, arena_bytes: 4 * mib, share: 0.25 };

const workerOf = ({ sessions }: AgentState): SessionState =>
  sessions.find(({ role }) => role === 'device-worker')!;

async function answer(site: Site, record: SessionRecord, model: string): Promise<string> {
  const body = { model, prompt: 'S', max_tokens: 24, temperature: 0, ignore_eos: true };
  const { statusCode, body: answered } = await site.pool(record).request({
    method: 'POST',
    path: '/v1/completions',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  const text = await answered.text();
  return statusCode === 200 ? JSON.parse(text).choices[0].text : text;
}

test('layers stay as the plan says; the link is measured; a model that failed is told of no more', async () => {
  await using site = await Site.open();
  const kept = await deepModel('tiny-llama', 'BF16', 1, 16);
  const path = join(site.folder, 'changes.gguf');
  copyFileSync(kept, path);
  const weight_bytes = statSync(path).size;
  const native = { engine: 'native', kernels: 'ggml', batch_invariant: false } as const;
  const unit = { engine: 'native', device_kind: 'gpu', weight_bytes } as const;
  const resident_bytes = 5 * mib;
  const agent = await site.start(
    [
      unitOf({ name: 'lies', ...native }, { ...unit, model_path: kept }),
      unitOf(
        { name: 'streams', ...native, weights: 'streamed' },
        { ...unit, model_path: kept, memory: { ...memory, resident_bytes } },
      ),
      unitOf(
        { name: 'changes', ...native, weights: 'streamed' },
        { ...unit, model_path: path, memory: { ...memory, resident_bytes } },
      ),
    ],
    emulated,
  );
  const record = await site.serving('changes');
  await agent.stateWhere(
    ({ sessions }) => sessions.every(({ models }) => models.every(({ state }) => state === 'serving')),
    'all of them to serve',
  );
  const expected = await answer(site, record, 'lies');
  expect(expected.length).toBeGreaterThan(5);
  for (const model of ['streams', 'changes', 'streams'])
    expect(await answer(site, record, model)).toBe(expected);
  const state = await agent.stateWhere(
    (now) => workerOf(now).streamed?.streams?.link_bytes_per_s !== undefined,
    'a rate of the link',
  );
  const { streamed, layouts } = workerOf(state);
  expect(Object.keys(streamed!).sort()).toEqual(['changes', 'streams']);
  expect(streamed!.streams!.arena_bytes).toBe(4 * mib);
  expect(streamed!.streams!.resident_bytes).toBeGreaterThan(3 * mib);
  expect(streamed!.streams!.resident_bytes).toBeLessThanOrEqual(resident_bytes);
  expect(Object.keys(layouts!).sort()).toEqual(['changes', 'lies', 'streams']);

  utimesSync(path, 1, 1);
  expect(await answer(site, record, 'changes')).toMatch(/changed|error/);
  const after = await agent.stateWhere(
    (now) => workerOf(now).models.some(({ state: is }) => is === 'failed'),
    'the model whose file changed to fail',
  );
  expect(Object.keys(workerOf(after).streamed!)).toEqual(['streams']);
  expect(Object.keys(workerOf(after).layouts!).sort()).toEqual(['lies', 'streams']);
  expect(await answer(site, record, 'streams')).toBe(expected);
});

test('layers give way first where the site makes the pool smaller than the plan', async () => {
  await using site = await Site.open();
  const model_path = await deepModel('tiny-llama', 'BF16', 1, 16);
  const unit = { engine: 'native', device_kind: 'gpu', weight_bytes: statSync(model_path).size } as const;
  const native = { engine: 'native', kernels: 'ggml', batch_invariant: false } as const;
  const beside = { device_bytes: 40 * mib, kv_bytes: 8 * mib, share: 0.2 };
  const resident_bytes = 12 * mib;
  const left_bytes = 3 * mib;
  const streams = { ...memory, device_bytes: 20 * mib + 4 * mib + resident_bytes, resident_bytes };
  const agent = await site.start(
    [
      unitOf({ name: 'streams', ...native, weights: 'streamed' }, { ...unit, model_path, memory: streams }),
      unitOf({ name: 'lies', ...native }, { ...unit, model_path, memory: beside }),
    ],
    { ...emulated, sharing: { pool_gb: (60 * mib + 4 * mib + left_bytes) / 1e9 } as never },
  );
  const record = await site.serving('streams');
  const state = await agent.stateWhere(
    (now) =>
      workerOf(now).streamed?.streams !== undefined &&
      workerOf(now).models.every(({ state: is }) => is === 'serving'),
    'both to serve',
  );
  const told = workerOf(state).streamed!.streams!;
  expect(told.resident_bytes).toBeGreaterThan(left_bytes / 2);
  // The pool has whole huge pages.
  expect(told.resident_bytes).toBeLessThanOrEqual(left_bytes + 2 * mib);
  expect(told.because?.join()).toMatch(/were to stay, \d+ MiB come with every step/);
  expect(await answer(site, record, 'streams')).toBe(await answer(site, record, 'lies'));
});
