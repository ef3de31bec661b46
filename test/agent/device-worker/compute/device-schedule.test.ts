/**
 * The schedule of a device, over engines whose memory is said by the test: who found none is not forgotten, whatever
 * the other models of the device do.
 */
import { describe, expect, it } from 'vitest';
import {
  type ChosenIteration,
  DeviceSchedule,
} from '../../../../agent/device-worker/compute/device-schedule.ts';
import type { Submission } from '../../../../agent/device-worker/compute/messages.ts';
import { GrowingProfile } from '../../../../solver/sharing/growing-profile.ts';
import { defaultSharingSettings } from '../../../../solver/sharing/settings.ts';
import type { EngineStats, SequenceProgress, StepReport } from '../../../../spec/engine-contract.ts';

const kv_bytes_per_token = 100;
const pool_bytes = 100_000_000;

/** What an engine tells of its sequences, and where it has room. */
class ToldEngine {
  kv_bytes_used = 0;
  budget_bytes = 0;
  hasRoom = true;
  sequences: SequenceProgress[] = [];
  recomputed: number[] = [];
  readonly holds = new Set<number>();

  setKvBudget(bytes: number): number {
    this.budget_bytes = bytes;
    return bytes;
  }

  kvBytesOf(id: number): number {
    return this.holds.has(id) ? 1600 : 0;
  }

  parkSequence(id: number): number {
    this.holds.delete(id);
    this.sequences = this.sequences.filter((sequence) => sequence.id !== id);
    return 1600;
  }

  restoreSequence(): boolean {
    return this.hasRoom;
  }

  recomputeSequence(id: number): void {
    this.recomputed.push(id);
    this.sequences.unshift(waits(id));
  }

  progress(): SequenceProgress[] {
    return this.sequences;
  }

  stats(): EngineStats {
    const kv = { kv_tokens_total: 1024, kv_tokens_used: 0, kv_bytes: 1024 * kv_bytes_per_token };
    return { running: 0, waiting: 0, layouts: {}, weight_bytes: 1_000_000, compute_bytes: 0, ...kv };
  }
}

const prompt_tokens = 20;
const waits = (id: number): SequenceProgress => ({
  id,
  waiting: true,
  tokens: prompt_tokens,
  generated_tokens: 0,
  pending_tokens: prompt_tokens,
});
const decodes = (id: number, generated_tokens: number): SequenceProgress => ({
  id,
  waiting: false,
  tokens: prompt_tokens + generated_tokens,
  generated_tokens,
  pending_tokens: 1,
});

class Scheduled {
  readonly schedule = new DeviceSchedule(defaultSharingSettings);
  readonly engines = new Map<string, ToldEngine>();
  now_ms = 0;

  constructor(names: readonly string[]) {
    for (const name of names) {
      const engine = new ToldEngine();
      this.engines.set(name, engine);
      const growing = GrowingProfile.of({
        prefill: [
          { tokens: 16, ms: 100 },
          { tokens: 64, ms: 200 },
        ],
        decode: [
          { batch: 1, tokens: 16, ms: 5 },
          { batch: 4, tokens: 16, ms: 6 },
        ],
      });
      const model = { name, max_sequences: 4, prefill_chunk_tokens: 64, tokens_max: 512 };
      this.schedule.add(model, { growing }, engine, pool_bytes, this.now_ms);
    }
  }

  ask(model: string, id: number, progress: SequenceProgress): void {
    const submission: Submission = {
      id,
      model,
      tokens: new Int32Array(prompt_tokens),
      n_prompt: prompt_tokens,
      sampling: {} as NonNullable<Submission['sampling']>,
      max_new_tokens: 50,
      arrival_ms: this.now_ms,
      reasoning: false,
      certain: true,
      movable: true,
      stop_tokens: [],
    };
    this.schedule.admit(submission, this.now_ms);
    const engine = this.engines.get(model)!;
    engine.sequences.push(progress);
    this.schedule.sync(model, engine.progress(), this.now_ms);
  }

  choose(): ChosenIteration | undefined {
    this.now_ms += 10;
    return this.schedule.choose(this.now_ms);
  }

  ended(chosen: ChosenIteration, report: Partial<StepReport>): void {
    const engine = this.engines.get(chosen.model)!;
    const nothing = { outputs: [], prefill_tokens: 0, decode_tokens: 0, elapsed_us: 10 };
    this.schedule.ended(chosen, { ...nothing, ...report }, engine.progress(), engine.stats(), 5, this.now_ms);
  }
}

describe('a prompt that found no memory', () => {
  it('is tried again when a sequence of another model ends', () => {
    const device = new Scheduled(['short', 'busy']);
    const busy = device.engines.get('busy')!;
    device.ask('short', 1, waits(1));
    const tried = device.choose()!;
    expect(tried.model).toBe('short');
    device.ask('busy', 2, decodes(2, 1));
    device.ended(tried, {});
    // It would find none as long as nothing is given up.
    for (let step = 0; step < 20; step++) {
      const chosen = device.choose()!;
      expect(chosen.model).toBe('busy');
      device.ended(chosen, { outputs: [{ id: 2 }], decode_tokens: 1 });
    }
    const last = device.choose()!;
    // The next of its clients is there already, so that the device has always something to do.
    device.ask('busy', 3, decodes(3, 1));
    busy.sequences = [decodes(3, 1)];
    device.ended(last, { outputs: [{ id: 2, finish: 'stop' }], decode_tokens: 1 });
    const models = [0, 1, 2, 3].map(() => {
      const chosen = device.choose()!;
      device.ended(chosen, { decode_tokens: 1, outputs: [] });
      return chosen.model;
    });
    expect(models).toContain('short');
  });

  it('is tried again when another model leaves', () => {
    const device = new Scheduled(['short', 'busy', 'leaves']);
    device.ask('short', 1, waits(1));
    const tried = device.choose()!;
    device.ask('busy', 2, decodes(2, 1));
    device.ended(tried, {});
    expect(device.choose()!.model).toBe('busy');
    device.schedule.remove('leaves', device.now_ms);
    const models = [0, 1, 2, 3].map(() => {
      const chosen = device.choose()!;
      device.ended(chosen, { decode_tokens: 1, outputs: [] });
      return chosen.model;
    });
    expect(models).toContain('short');
  });
});

it('a parked sequence that finds no room though nothing runs is computed again, in front of all others', () => {
  const device = new Scheduled(['one']);
  const engine = device.engines.get('one')!;
  engine.hasRoom = false;
  device.ask('one', 1, decodes(1, 2));
  device.ask('one', 2, decodes(2, 2));
  for (const id of [1, 2]) engine.holds.add(id);
  for (let tries = 0; engine.sequences.length === 2; tries++) {
    device.schedule.handleKvExhausted('one', { id: 1, bytes: 1600, youngest: 2 }, device.now_ms);
    expect(tries).toBeLessThan(5);
  }
  const [left] = engine.sequences;
  const parked = left!.id === 1 ? 2 : 1;
  const chosen = device.choose()!;
  engine.sequences = [];
  device.ended(chosen, { outputs: [{ id: left!.id, finish: 'stop' }], decode_tokens: 1 });
  expect(engine.recomputed).toEqual([]);
  // The first look finds nothing to run, and has its engine begin anew.
  device.choose();
  expect(engine.recomputed).toEqual([parked]);
  expect(device.choose()).toMatchObject({ model: 'one', plan: { first: parked } });
});

describe('exhausted KV', () => {
  const exhausted = { id: 1, bytes: 1600, youngest: 2 };

  it('is settled by the youngest of the model where nobody of the device holds anything else', () => {
    const device = new Scheduled(['one']);
    const engine = device.engines.get('one')!;
    for (const id of [1, 2]) device.ask('one', id, decodes(id, 2));
    device.schedule.handleKvExhausted('one', exhausted, device.now_ms);
    expect(engine.recomputed).toEqual([2]);
  });

  it('is settled by another model, whose request can wait, and whose memory goes over', () => {
    const device = new Scheduled(['one', 'other']);
    const [one, other] = [device.engines.get('one')!, device.engines.get('other')!];
    device.ask('one', 1, decodes(1, 2));
    device.ask('other', 7, decodes(7, 2));
    one.holds.add(1);
    other.holds.add(7);
    const before = one.budget_bytes;
    device.schedule.handleKvExhausted('one', { ...exhausted, youngest: 1 }, device.now_ms);
    expect([one.recomputed, [...one.holds]]).toEqual([[], [1]]);
    expect([other.recomputed, [...other.holds]]).toEqual([[], []]);
    expect(one.budget_bytes).toBe(before + 1600);
    expect(device.schedule.decisions.last.at(-1)).toMatchObject({
      kind: 'evict',
      model: 'other',
      request: 7,
    });
    expect(device.schedule.counted.evicted).toBe(1);
  });

  it('comes to an end for every model that reports it, whatever gave way before', () => {
    const device = new Scheduled(['one', 'other']);
    for (const [at, name] of ['one', 'other'].entries())
      for (const id of [1, 2, 3]) {
        device.ask(name, 10 * at + id, decodes(10 * at + id, id));
        device.engines.get(name)!.holds.add(10 * at + id);
      }
    // Each report takes one from those that hold memory, until only the oldest of the model that reports is left.
    for (let reports = 0; reports < 5; reports++)
      device.schedule.handleKvExhausted('one', { ...exhausted, youngest: 3 }, device.now_ms);
    expect([...device.engines.get('one')!.holds]).toEqual([1]);
    expect([...device.engines.get('other')!.holds]).toEqual([]);
  });
});
