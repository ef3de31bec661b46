/**
 * The schedule of a device, over engines whose memory is said by the test: who found none is not forgotten, whatever
 * the other models of the device do.
 */
import { describe, expect, it } from 'vitest';
import type { EngineStats } from '../../../../spec/engine-contract.ts';
import { decodes, kv_bytes_per_token, pool_bytes, Scheduled, ToldEngine, waits } from './support.ts';

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

  it('has KV wait on disk once host memory is full, and who finds no room there is computed again', () => {
    const disk = { bytes_max: 100_000, bytes_per_s: 1e9 };
    // A tenth of the pool may wait in host memory: one of the sequences, and so it is on disk.
    const device = new Scheduled(['one'], { bytes: 1_200_000, disk });
    const engine = device.engines.get('one')!;
    engine.parks_on_disk = true;
    engine.parked_bytes = 900 * kv_bytes_per_token;
    for (const id of [1, 2, 3, 4]) {
      device.ask('one', id, decodes(id, 880));
      engine.holds.add(id);
    }
    for (let tries = 0; engine.recomputed.length === 0; tries++) {
      device.schedule.handleKvExhausted('one', { ...exhausted, youngest: 4 }, device.now_ms);
      expect(tries).toBeLessThan(5);
    }
    expect(engine.parked.map(([, place]) => place)).toEqual(['memory', 'disk']);
    expect(engine.recomputed).not.toContain(1);
    const held = { memory_bytes: 90_000, disk_bytes: 90_000 };
    expect(device.schedule.counted.parked).toEqual({ ...held, disk_bytes_per_s: 1e9 });
    const words = device.schedule.decisions.last.flatMap(({ kind, because }) =>
      kind === 'evict' ? because : [],
    );
    expect(words).toEqual([
      expect.stringMatching(/; its KV is parked in host memory: restoring takes \d+ ms, computing \d+ ms$/),
      expect.stringMatching(/; its KV is parked on disk: restoring takes \d+ ms, computing \d+ ms$/),
      expect.stringMatching(/; it is computed again: 1 MiB do not fit the parking place$/),
    ]);
    for (const [id] of engine.parked) device.schedule.cancelled('one', id, engine.progress(), device.now_ms);
    expect(device.schedule.counted.parked).toMatchObject({ memory_bytes: 0, disk_bytes: 0 });
  });

  it('has no more KV wait in host memory than the job has left, which no plan counts', () => {
    const mib = 2 ** 20;
    // Beside what is kept free of it there is room for one of the sequences, and then for none.
    let room_bytes = 128 * mib + 100_000;
    const device = new Scheduled(['one'], { hostRoom_bytes: () => room_bytes });
    const engine = device.engines.get('one')!;
    engine.parked_bytes = 900 * kv_bytes_per_token;
    for (const id of [1, 2, 3]) {
      device.ask('one', id, decodes(id, 880));
      engine.holds.add(id);
    }
    device.schedule.handleKvExhausted('one', { ...exhausted, youngest: 3 }, device.now_ms);
    expect(engine.parked.map(([, place]) => place)).toEqual(['memory']);
    room_bytes -= 90_000;
    device.schedule.handleKvExhausted('one', { ...exhausted, youngest: 3 }, device.now_ms);
    expect(engine.parked).toHaveLength(1);
    expect(engine.recomputed).toHaveLength(1);
  });

  it('has a sequence computed again that the disk does not take after all', () => {
    const device = new Scheduled(['one'], { bytes: 1_200_000, disk: { bytes_max: 1e9, bytes_per_s: 1e9 } });
    const engine = device.engines.get('one')!;
    engine.parked_bytes = 900 * kv_bytes_per_token;
    // It says that it parks there, and does not.
    engine.parks_on_disk = true;
    engine.takes_disk = false;
    for (const id of [1, 2, 3]) {
      device.ask('one', id, decodes(id, 880));
      engine.holds.add(id);
    }
    for (let tries = 0; engine.recomputed.length === 0; tries++) {
      device.schedule.handleKvExhausted('one', { ...exhausted, youngest: 3 }, device.now_ms);
      expect(tries).toBeLessThan(5);
    }
    expect(engine.parked.map(([, place]) => place)).toEqual(['memory']);
    expect(device.schedule.decisions.last.at(-1)!.because).toMatch(
      /; it is computed again, for the disk did not take its KV: /,
    );
    expect(device.schedule.counted.parked).toMatchObject({ memory_bytes: 90_000, disk_bytes: 0 });
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

describe('a stage of a pipeline beside a model', () => {
  const kv_bytes = 1024 * kv_bytes_per_token;
  const budgetOf = (scheduled: Scheduled): number => scheduled.engines.get('m')!.budget_bytes;

  it('is not promised away: a model that comes later has what is left', () => {
    const scheduled = new Scheduled([]);
    scheduled.schedule.memory.hold('cut', pool_bytes - 1_000_000 - kv_bytes / 2, pool_bytes);
    scheduled.comes('m');
    expect(budgetOf(scheduled)).toBe(kv_bytes / 2);
  });

  it('leaves no room for a model whose weights it takes the place of, until it is gone', () => {
    const scheduled = new Scheduled([]);
    const { schedule } = scheduled;
    const model = { name: 'm', max_sequences: 4, prefill_chunk_tokens: 64, tokens_max: 512 };
    const could = (): boolean => schedule.couldAdd(model, new ToldEngine().stats(), pool_bytes);
    expect(could()).toBe(true);
    schedule.memory.hold('cut', pool_bytes - 500_000, pool_bytes);
    expect(could()).toBe(false);
    schedule.memory.letGo('cut');
    expect(could()).toBe(true);
  });

  it('takes what a model has of KV that nobody uses', () => {
    const scheduled = new Scheduled(['m']);
    expect(budgetOf(scheduled)).toBe(kv_bytes);
    scheduled.schedule.memory.hold('cut', pool_bytes - 1_000_000 - kv_bytes / 4, pool_bytes);
    expect(budgetOf(scheduled)).toBeLessThanOrEqual(kv_bytes / 4);
  });
});

describe('what an engine has of the pool beside weights and KV', () => {
  const kv_bytes = 1024 * kv_bytes_per_token;
  const least_bytes = 512 * kv_bytes_per_token;
  const budgetOf = ({ engines }: Scheduled, name: string): number => engines.get(name)!.budget_bytes;
  const promised_bytes = ({ schedule }: Scheduled): number => schedule.view(0, () => 0).budget_bytes;

  /** An iteration of one of its sequences. */
  function computes(device: Scheduled, name: string, working_bytes: number): void {
    device.engines.get(name)!.working_bytes = working_bytes;
    device.ended({ model: name, plan: { decode: true, prefill_tokens: 0 } }, { decode_tokens: 1 });
  }

  function withWorking(name: string, working_bytes: number, bytes: number): Scheduled {
    const device = new Scheduled([]);
    const engine = new ToldEngine();
    engine.working_bytes = working_bytes;
    device.engines.set(name, engine);
    device.comes(name, bytes);
    return device;
  }

  it('is not promised: its own KV, and that of a model that comes, is of what is left', () => {
    const bytes = 2_300_000 + kv_bytes + least_bytes;
    const device = withWorking('one', 300_000, bytes);
    expect(promised_bytes(device)).toBe(1_300_000 + kv_bytes);
    device.comes('two', bytes);
    expect([budgetOf(device, 'one'), budgetOf(device, 'two')]).toEqual([kv_bytes, least_bytes]);
    expect(promised_bytes(device)).toBe(bytes);
  });

  it('is of what a model needs to be there at all, as it is of its neighbours', () => {
    const bytes = 2_300_000 + least_bytes;
    const model = { name: 'two', max_sequences: 4, prefill_chunk_tokens: 64, tokens_max: 512 };
    const two = new ToldEngine();
    expect(withWorking('one', 300_000, bytes).schedule.couldAdd(model, two.stats(), bytes)).toBe(true);
    expect(withWorking('one', 300_001, bytes).schedule.couldAdd(model, two.stats(), bytes)).toBe(false);
    two.working_bytes = 1;
    expect(withWorking('one', 300_000, bytes).schedule.couldAdd(model, two.stats(), bytes)).toBe(false);
  });

  it('takes as much of KV as it grows, first what nobody needs, and gives it back', () => {
    const bytes = 2_000_000 + 2 * kv_bytes;
    const device = new Scheduled(['one', 'two'], { bytes });
    computes(device, 'two', 1000);
    expect([budgetOf(device, 'one'), budgetOf(device, 'two')]).toEqual([kv_bytes - 1000, kv_bytes]);
    expect(promised_bytes(device)).toBe(bytes);
    const [note] = device.schedule.decisions.last.filter(({ kind }) => kind === 'budget');
    expect(note).toMatchObject({
      model: 'one',
      because: 'its KV budget fell to 1014 tokens, for results of graphs',
    });
    computes(device, 'two', 400);
    expect(promised_bytes(device)).toBe(bytes - 600);
    device.schedule.remove('two', 0);
    expect(promised_bytes(device)).toBe(1_000_000 + budgetOf(device, 'one'));
    expect(device.schedule.view(0, () => 0).resting).toMatchObject([{ model: 'two', working_bytes: 400 }]);
  });

  it('is set aside for a model that comes back', () => {
    const slo = { ttft_ms: 20_000, tpot_ms: 5000 };
    const device = new Scheduled(['one', 'two'], { slo });
    computes(device, 'two', 70_000);
    device.schedule.remove('two', 0);
    const before_bytes = promised_bytes(device);
    const asked = device.submission('two', 1, { certain: false });
    expect(device.schedule.admitAway(asked, 10, 0, () => undefined)).toBe(true);
    const { instances, budget_bytes } = device.schedule.view(0, () => 0);
    const coming = instances.find(({ model }) => model === 'two')!;
    expect(budget_bytes).toBe(before_bytes + 1_070_000 + coming.kv_bytes);
  });
});

describe('KV that a pipeline has taken as a whole', () => {
  const kv_bytes = 1024 * kv_bytes_per_token;
  const bytes = 2_000_000 + 1.5 * kv_bytes;

  function withPipeline(): Scheduled {
    const device = new Scheduled([]);
    const cut = new ToldEngine();
    cut.stages = [{ begin: 0, end: 2, computed_us: 0 }];
    device.engines.set('cut', cut);
    device.comes('cut', bytes);
    device.comes('m', bytes);
    return device;
  }
  const budgets = ({ engines }: Scheduled): number[] =>
    ['cut', 'm'].map((name) => engines.get(name)!.budget_bytes);

  it('is promised to nobody else, whoever comes, grows or is in need', () => {
    const device = withPipeline();
    const cut = device.engines.get('cut')!;
    expect(budgets(device)).toEqual([kv_bytes, kv_bytes / 2]);
    device.schedule.memory.lower('cut', 0);
    device.ask('m', 1, waits(1));
    device.ask('m', 2, waits(2));
    device.schedule.memory.hold('stage', kv_bytes, bytes);
    device.choose();
    // Its requests end, and others could have what they do not need.
    device.ask('cut', 3, decodes(3, 1));
    const chosen = { model: 'cut', plan: { decode: true, prefill_tokens: 0 } };
    cut.sequences = [];
    device.ended(chosen, { outputs: [{ id: 3, finish: 'stop' }], decode_tokens: 1 });
    expect(budgets(device)[0]).toBe(kv_bytes);
    expect(device.schedule.view(0, () => 0).instances).toMatchObject([
      { model: 'cut', kv_bytes, kv_whole: true },
      { model: 'm', kv_whole: false },
    ]);
  });

  it('has room made for it as it comes, of all that others do not need', () => {
    const device = new Scheduled(['m'], { bytes });
    const cut = new ToldEngine();
    cut.stages = [];
    device.engines.set('cut', cut);
    device.comes('cut', bytes);
    expect(budgets(device)[0]).toBe(kv_bytes);
    expect(budgets(device)[1]).toBeLessThanOrEqual(kv_bytes / 2);
  });

  it.each([
    ['m', 'cut', 7],
    ['cut', 'm', 7],
  ] as const)('%s, which is short of KV, has none of %s', (short, other, id) => {
    const device = withPipeline();
    device.ask(other, id, decodes(id, 2));
    device.engines.get(other)!.holds.add(id);
    device.ask(short, 1, decodes(1, 2));
    device.engines.get(short)!.holds.add(1);
    const before = budgets(device);
    const exhausted = { id: 1, bytes: 1600, youngest: 1 };
    // As far as what is free is enough, m has it first.
    for (let tries = 0; device.engines.get(short)!.recomputed.length === 0 && tries < 5; tries++)
      device.schedule.handleKvExhausted(short, exhausted, device.now_ms);
    expect([...device.engines.get(other)!.holds]).toEqual([id]);
    expect(device.engines.get(short)!.recomputed).toEqual([1]);
    expect(budgets(device)).toEqual(before);
  });
});

describe('a pipeline whose first stage becomes another one', () => {
  const kv_bytes = 1024 * kv_bytes_per_token;
  const instance_bytes = 1_000_000 + kv_bytes;

  /** As large as it was, times `factor`. */
  function becomes({ schedule, engines, now_ms }: Scheduled, factor: number): void {
    const stats = engines.get('m')!.stats();
    const { weight_bytes } = stats;
    schedule.resized(
      'm',
      { ...stats, weight_bytes: factor * weight_bytes, kv_bytes: factor * kv_bytes },
      now_ms,
    );
  }
  const promised_bytes = ({ schedule }: Scheduled): number => schedule.view(0, () => 0).budget_bytes;

  it('is promised what that takes, for as many tokens, and no more where it is smaller', () => {
    const scheduled = new Scheduled(['m', 'other']);
    for (const factor of [1, 3, 0.5]) {
      becomes(scheduled, factor);
      expect(promised_bytes(scheduled)).toBe(factor * instance_bytes + instance_bytes);
      expect(scheduled.engines.get('m')!.budget_bytes).toBe(factor * kv_bytes);
    }
  });

  it('has what others give up, and else what they leave', () => {
    const bytes = 3 * instance_bytes;
    const scheduled = new Scheduled(['m', 'other'], { bytes });
    becomes(scheduled, 2);
    expect(promised_bytes(scheduled)).toBe(bytes);
    becomes(scheduled, 2.01);
    expect(promised_bytes(scheduled)).toBeLessThanOrEqual(bytes);
    expect(scheduled.engines.get('other')!.budget_bytes).toBeLessThan(kv_bytes);
    becomes(scheduled, 4);
    expect(promised_bytes(scheduled)).toBe(bytes);
  });

  it('is expected back as what it is by then', () => {
    const scheduled = new Scheduled(['m', 'other']);
    becomes(scheduled, 3);
    scheduled.schedule.remove('m', 0);
    const { resting } = scheduled.schedule.view(0, () => 0);
    expect(resting).toMatchObject([{ weight_bytes: 3_000_000, kv_bytes_per_token: 3 * kv_bytes_per_token }]);
  });
});

describe('a prompt beside a sequence whose token is soon due', () => {
  const chosenAfter = (streamed: EngineStats['streamed'], waited_ms = 3) => {
    const device = new Scheduled(['m'], { slo: { ttft_ms: 2000, tpot_ms: 60 } });
    const engine = device.engines.get('m')!;
    engine.streamed = streamed;
    device.ask('m', 1, decodes(1, 2));
    const first = device.choose()!;
    // Of the 5 ms that an iteration takes here.
    if (engine.streamed) engine.streamed.waited_ms += waited_ms;
    device.ended(first, { outputs: [{ id: 1 }], decode_tokens: 1 });
    device.ask('m', 2, { ...waits(2), waiting: false });
    return { device, plan: device.choose()!.plan };
  };

  it('waits for its turn where weights lie on the device', () => {
    expect(chosenAfter(undefined).plan).toEqual({ decode: true, prefill_tokens: 0 });
  });

  it('goes with it where weights are streamed: they cross the link once for both', () => {
    const streamed = { arena_bytes: 1e6, resident_bytes: 0, step_bytes: 40e6, link_bytes_per_s: 1e9 };
    const { device, plan } = chosenAfter({ ...streamed, waited_ms: 0 });
    expect(plan).toEqual({ decode: true, prefill_tokens: 20 });
    expect(device.schedule.instances(0)[0]!.streamed).toEqual(streamed);
  });

  it('is no part of what a step takes to compute, nor is the wait for weights', () => {
    const streamed = { arena_bytes: 1e6, resident_bytes: 0, step_bytes: 40e6, link_bytes_per_s: 1e9 };
    const lies = chosenAfter(undefined).device;
    const stats = (device: Scheduled): EngineStats => device.engines.get('m')!.stats();
    // By its profile, which has the whole iteration.
    const lying_ms = lies.schedule.stepTime_ms('m', stats(lies))!;
    expect(lying_ms).toBeGreaterThan(4);
    const { device } = chosenAfter({ ...streamed, waited_ms: 0 }, 3);
    expect(device.schedule.stepTime_ms('m', stats(device))).toBeCloseTo(2, 6);
    expect(device.schedule.stepTime_ms('unknown', stats(device))).toBeUndefined();
    const fresh = new Scheduled(['m']);
    expect(fresh.schedule.stepTime_ms('m', stats(device))).toBeUndefined();
  });

  it('does not where arithmetic takes longer than the token may wait', () => {
    const streamed = { arena_bytes: 1e6, resident_bytes: 0, step_bytes: 1e6, link_bytes_per_s: 1e9 };
    // A row takes all of an iteration's 5 ms, and twenty more a hundred.
    expect(chosenAfter({ ...streamed, waited_ms: 0 }, 0).plan).toEqual({ decode: true, prefill_tokens: 0 });
  });
});
