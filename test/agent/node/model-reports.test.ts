import { describe, expect, test } from 'vitest';
import { ModelReports } from '../../../agent/node/model-reports.ts';
import type { ModelLoad } from '../../../spec/agent-state.ts';
import type { StreamedWeights } from '../../../spec/streamed-weights.ts';

const streamed: StreamedWeights = { arena_bytes: 100, resident_bytes: 20, step_bytes: 80 };
const serving = (name: string) =>
  ({ type: 'model', name, state: 'serving', layouts: { CPU: 10 }, streamed }) as const;

describe('what a worker said of its models', () => {
  test.each(['unloaded', 'failed'] as const)('is forgotten of one that is %s, and of no other', (state) => {
    const reports = new ModelReports();
    for (const name of ['goes', 'stays']) reports.take(serving(name));
    expect(Object.keys(reports.streamed)).toEqual(['goes', 'stays']);
    reports.take({ type: 'model', name: 'goes', state });
    expect(reports.streamed).toEqual({ stays: streamed });
    expect(reports.layouts).toEqual({ stays: { CPU: 10 } });
    reports.take(serving('goes'));
    expect(Object.keys(reports.layouts).sort()).toEqual(['goes', 'stays']);
  });

  test('tells how weights were loaded last, until they go', () => {
    const reports = new ModelReports();
    const loaded = (loaded_bytes: number) => ({
      reused_bytes: 0,
      loaded_bytes,
      duration_ms: 1,
      from_nodes: {},
    });
    const come = (name: string, bytes: number): void =>
      reports.takeLoaded({ type: 'weights_loaded', name, loaded: loaded(bytes), because: '' });
    come('goes', 1);
    come('stays', 1);
    reports.take(serving('stays'));
    come('stays', 2);
    reports.take({ type: 'model', name: 'goes', state: 'unloaded' });
    expect(reports.loaded).toEqual({ stays: loaded(2) });
  });

  test('is kept while a model is in another state', () => {
    const reports = new ModelReports();
    reports.take(serving('m'));
    reports.take({ type: 'model', name: 'm', state: 'draining' });
    expect(reports.streamed).toEqual({ m: streamed });
  });
});

test('of a mixture, what a step brings and how much is at hand are news like rates', () => {
  const reports = new ModelReports();
  reports.take(serving('m'));
  const measured = (step_bytes: number, experts_at_hand: number): boolean =>
    reports.measured([{ name: 'm', streamed: { ...streamed, step_bytes, experts_at_hand } } as ModelLoad]);
  expect(measured(80, 0.5)).toBe(true);
  expect(measured(90, 0.55)).toBe(false);
  expect(measured(120, 0.55)).toBe(true);
  expect(measured(120, 0.7)).toBe(true);
  expect(measured(120, 0.7)).toBe(false);
});

test('a rate is news first, and again when it is a quarter more or less; so is a reason', () => {
  const reports = new ModelReports();
  const measured = (more: Partial<StreamedWeights>, name = 'm'): boolean =>
    reports.measured([{ name, streamed: { ...streamed, ...more } } as ModelLoad]);
  expect(measured({ link_bytes_per_s: 1e9 })).toBe(false);
  reports.take(serving('m'));
  expect(measured({})).toBe(false);
  expect(measured({ link_bytes_per_s: 1e9 })).toBe(true);
  expect(measured({ link_bytes_per_s: 1.2e9 })).toBe(false);
  expect(reports.streamed.m!.link_bytes_per_s).toBe(1e9);
  expect(measured({ link_bytes_per_s: 0.7e9 })).toBe(true);
  expect(measured({ link_bytes_per_s: 0.7e9, because: ['the link gives 0.7 GB/s'] })).toBe(true);
  expect(measured({ link_bytes_per_s: 0.7e9, because: ['the link gives 0.6 GB/s'] })).toBe(false);
  expect(measured({ resident_bytes: 0, link_bytes_per_s: 0.7e9, because: ['other'] })).toBe(true);
  const most = { resident_bytes: 0, link_bytes_per_s: 0.7e9, because: ['other'] };
  expect(measured({ ...most, link_bytes_per_s_max: 1e9 })).toBe(true);
  expect(measured({ ...most, link_bytes_per_s_max: 1.2e9 })).toBe(false);
  expect(measured({ ...most, link_bytes_per_s_max: 1.3e9 })).toBe(true);
  expect(measured({ link_bytes_per_s: 9e9 }, 'unknown')).toBe(false);
  expect(reports.measured([{ name: 'm' } as ModelLoad])).toBe(false);
});
