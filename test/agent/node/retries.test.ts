/** Units that fail while others of their job live: they are tried again. */
import { rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pino from 'pino';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { ModelRestarts } from '../../../agent/node/model-restarts.ts';
import { pausesBesideOthers } from '../../../agent/node/restart-policy.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { synthesize } from '../../../native/synth/synthesize.ts';
import type { AgentState } from '../../../spec/agent-state.ts';
import { fixtureUnit, Site, unitOf } from '../support.ts';

const environment = { HPCSERVE_RETRY_S: '2' };
const stateOf = ({ sessions }: AgentState, name: string) =>
  sessions.flatMap(({ models }) => models).find((model) => model.name === name)?.state;
const nextTry = ({ sessions }: AgentState, unit: string) =>
  sessions.map(({ next_tries_ms }) => next_tries_ms?.[unit]).find(Boolean);

test('an engine that was given up serves once what it lacked is there', async () => {
  await using site = await Site.open();
  const settings = join(site.folder, 'settings');
  const units = [fixtureUnit('sound'), fixtureUnit('late', ['--needs', settings])];
  const agent = await site.start(units, {}, environment);
  await site.serving('sound');
  const failed = await agent.stateWhere(
    (now) => nextTry(now, 'late-0') !== undefined && stateOf(now, 'sound') === 'serving',
    'its next try',
  );
  expect(stateOf(failed, 'late')).toBe('failed');
  expect(nextTry(failed, 'late-0')! - Date.now()).toBeGreaterThan(0);
  await writeFile(settings, '');
  const record = await site.serving('late', 20_000);
  expect((await site.ask(record, 'count 1')).statusCode).toBe(200);
  const now = await agent.stateWhere((state) => stateOf(state, 'late') === 'serving', 'it serves');
  expect(nextTry(now, 'late-0')).toBeUndefined();
  expect(now.sessions.find(({ unit }) => unit === 'late-0')?.error).toBeUndefined();
});

test('a job of which nothing is left ends at once', async () => {
  await using site = await Site.open();
  const agent = await site.start([fixtureUnit('one', ['--fail']), fixtureUnit('other', ['--fail'])]);
  expect(await agent.ended).toEqual({ code: 8, signal: null });
});

test('one that is told to stop meanwhile does not wait for the next try', async () => {
  await using site = await Site.open();
  const agent = await site.start([fixtureUnit('sound'), fixtureUnit('broken', ['--fail'])]);
  await agent.stateWhere((now) => nextTry(now, 'broken-0') !== undefined, 'its next try');
  agent.process.kill('SIGTERM');
  expect(await agent.ended).toEqual({ code: 0, signal: null });
});

test('a native model that could not be loaded beside another one is loaded once its file is whole', async () => {
  await using site = await Site.open();
  const path = (name: string): string => join(site.folder, name);
  const shape = synthPresets['tiny-llama']!;
  await synthesize({ path: path('good.gguf'), shape, quantization: 'F16', seed: 1 });
  await synthesize({ path: path('whole.gguf'), shape, quantization: 'F16', seed: 2 });
  await writeFile(path('late.gguf'), 'not yet');
  const units = ['good', 'late'].map((name) =>
    unitOf({ name }, { engine: 'native', model_path: path(`${name}.gguf`) }),
  );
  const agent = await site.start(units, {}, environment);
  await site.serving('good');
  const failed = await agent.stateWhere((now) => nextTry(now, 'late-0') !== undefined, 'its next try');
  expect(stateOf(failed, 'late')).toBe('failed');
  await rename(path('whole.gguf'), path('late.gguf'));
  await site.serving('late', 20_000);
  const now = await agent.stateWhere((state) => stateOf(state, 'late') === 'serving', 'it serves');
  expect(now.sessions.flatMap(({ model_errors }) => Object.keys(model_errors ?? {}))).toEqual([]);
});

describe('a model of a worker that lives', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());
  const loads: string[] = [];
  const restarts = (): ModelRestarts => {
    loads.length = 0;
    return new ModelRestarts({
      log: pino({ level: 'silent' }),
      environment: {},
      load: (name) => void loads.push(name),
    });
  };

  test('that served and broke is loaded soon, three times; then as one that never served', async () => {
    const models = restarts();
    const pauses: number[] = [];
    for (let times = 0; times < 5; times++) {
      models.serves('m');
      models.failed('m');
      pauses.push(models.nextTry_ms('m')! - Date.now());
      await vi.advanceTimersToNextTimerAsync();
    }
    expect(pauses).toEqual([1000, 4000, 16_000, 60_000, 240_000]);
    expect(loads).toEqual(Array(5).fill('m'));
  });

  test('that never served is tried ever more seldom, and each on its own', async () => {
    const models = restarts();
    models.failed('m');
    models.failed('m');
    models.failed('other');
    await vi.advanceTimersByTimeAsync(60_000);
    expect(loads).toEqual(['m', 'other']);
    models.failed('m');
    expect(models.nextTry_ms('m')! - Date.now()).toBe(240_000);
    models.forget('m');
    expect(models.nextTry_ms('m')).toBeUndefined();
    models.failed('other');
    models.close();
    await vi.advanceTimersByTimeAsync(3_600_000);
    models.failed('m');
    await vi.advanceTimersByTimeAsync(3_600_000);
    expect(loads).toEqual(['m', 'other']);
  });
});

test('pauses beside others grow to an hour, and never end', () => {
  const policy = pausesBesideOthers({});
  const pauses: number[] = [];
  for (let tries = 0, now_ms = 0; tries < 12; tries++) {
    pauses.push(policy.next(now_ms)! / 60_000);
    now_ms += pauses.at(-1)! * 60_000;
  }
  expect(pauses.slice(0, 5)).toEqual([1, 4, 16, 60, 60]);
  expect(Math.min(...pauses.slice(5))).toBeGreaterThanOrEqual(16);
  expect(Math.max(...pauses)).toBe(60);
});
