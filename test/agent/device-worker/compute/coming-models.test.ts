/** Requests for models without an instance: who is let in, and what is set aside for them until the model is there. */
import { describe, expect, it } from 'vitest';
import { HpcserveError } from '../../../../spec/errors/error.ts';
import { decodes, kv_bytes_per_token, Scheduled, ToldEngine } from './support.ts';

const none = (model: string): void => expect.unreachable(`${model} was to leave`);

/** Weights of a told engine, and the KV that it has to have for one request. */
const weight_bytes = 1_000_000;
const required_bytes = 512 * kv_bytes_per_token;

function ask(
  device: Scheduled,
  model: string,
  id: number,
  recycle: (model: string) => void = none,
): string | boolean {
  const submission = device.submission(model, id, { certain: false });
  try {
    return device.schedule.admitAway(submission, 2000, device.now_ms, recycle);
  } catch (error) {
    expect(error).toBeInstanceOf(HpcserveError);
    expect((error as HpcserveError).code).toBe('E_SLO_REFUSED');
    return (error as HpcserveError).because.join();
  }
}

const budget = ({ schedule }: Scheduled): number => schedule.view(0, () => 0).budget_bytes;

it('a model is brought back where the device has the time for it, and its memory is set aside from then on', () => {
  const device = new Scheduled(['busy', 'away'], { slo: {} });
  device.schedule.remove('away', device.now_ms);
  const before_bytes = budget(device);
  expect(ask(device, 'away', 1)).toBe(true);
  expect(budget(device)).toBe(before_bytes + weight_bytes + 1.25 * required_bytes);
  // A second request shares the load; more than its batch has places for are refused.
  for (const id of [2, 3, 4]) expect(ask(device, 'away', id)).toBe(true);
  expect(ask(device, 'away', 5)).toBe('all places of its batch are taken');
  device.schedule.withdraw('away', 2);
  expect(ask(device, 'away', 5)).toBe(true);
  device.comes('away');
  // What was set aside is what it has now, and nothing is set aside twice.
  const { instances, resting, budget_bytes } = device.schedule.view(0, () => 0);
  expect(resting).toEqual([]);
  expect(instances.map(({ model }) => model).sort()).toEqual(['away', 'busy']);
  expect(budget_bytes).toBe(instances.reduce((sum, one) => sum + one.weight_bytes + one.kv_bytes, 0));
});

it('is refused where a round of decode steps would be longer than a token may take, counting those on their way', () => {
  // 5 ms a step, and a tenth more in the estimate: of 8 ms two take too much.
  const slo = { ttft_ms: 60_000, tpot_ms: 8 };
  const device = new Scheduled(['busy', 'away', 'other'], { slo });
  for (const name of ['away', 'other']) device.schedule.remove(name, device.now_ms);
  device.ask('busy', 1, decodes(1, 1));
  expect(ask(device, 'away', 2)).toMatch(
    /^a round of decode steps would take 1\d ms where a token is due every 8 ms$/,
  );
  const idle = new Scheduled(['busy', 'away', 'other'], { slo });
  for (const name of ['away', 'other']) idle.schedule.remove(name, idle.now_ms);
  expect(ask(idle, 'away', 2)).toBe(true);
  expect(ask(idle, 'other', 3)).toMatch(/^a round of decode steps/);
  // So is a request for a model that is there: what waits for another will be computed beside it.
  expect(() => idle.schedule.admit(idle.submission('busy', 4, { certain: false }), idle.now_ms)).toThrow(
    /busy cannot take this request/,
  );
  // Where it does not come after all, its time is free.
  idle.schedule.keepAway('away', idle.now_ms);
  expect(ask(idle, 'other', 3)).toBe(true);
});

it('has neighbours without requests leave where memory is short, the longest idle first, and nobody who computes', () => {
  const bytes = 2 * weight_bytes + 4 * required_bytes;
  // Two of three have room at once.
  const tight = new Scheduled(['away'], { slo: {}, bytes });
  tight.schedule.remove('away', 0);
  for (const [at, name] of ['old', 'young'].entries()) {
    tight.now_ms = 1000 * at;
    tight.comes(name, bytes);
  }
  const left: string[] = [];
  const recycle = (model: string): void => {
    left.push(model);
    tight.schedule.remove(model, tight.now_ms);
  };
  expect(ask(tight, 'away', 7, recycle)).toBe(true);
  expect(left).toEqual(['old']);
  tight.ask('young', 8, decodes(8, 1));
  expect(ask(tight, 'old', 9, recycle)).toMatch(/MiB more than this device can give$/);
  expect(left).toEqual(['old']);
});

it('is let in as it is where nothing is promised', () => {
  const device = new Scheduled(['away']);
  device.schedule.remove('away', device.now_ms);
  expect(ask(device, 'away', 1)).toBe(false);
  expect(budget(device)).toBe(0);
});

it('what a model holds beyond comfort falls lazily as its requests end, only where memory is short', () => {
  const kvOf = (device: Scheduled): number => device.schedule.view(0, () => 0).instances[0]!.kv_bytes;
  const serveOne = (device: Scheduled): void => {
    device.ask('one', 1, decodes(1, 1));
    const chosen = device.choose()!;
    device.engines.get('one')!.sequences = [];
    device.ended(chosen, { outputs: [{ id: 1, finish: 'stop' }], decode_tokens: 1 });
  };
  const roomy = new Scheduled(['one']);
  const all_bytes = kvOf(roomy);
  serveOne(roomy);
  expect(kvOf(roomy)).toBe(all_bytes);
  // Another that is away would not fit beside it.
  const bytes = 2 * weight_bytes + 2 * required_bytes;
  const short = new Scheduled(['away'], { bytes });
  short.schedule.remove('away', 0);
  short.comes('one', bytes);
  expect(kvOf(short)).toBe(all_bytes);
  serveOne(short);
  expect(kvOf(short)).toBe(1.25 * required_bytes);
});

it('has nobody leave whose stages change, though nobody asks it anything', () => {
  const bytes = 2 * weight_bytes + 4 * required_bytes;
  const device = new Scheduled(['away'], { slo: {}, bytes });
  device.schedule.remove('away', 0);
  for (const name of ['old', 'young']) {
    device.comes(name, bytes);
    device.now_ms += 1000;
  }
  const left: string[] = [];
  const recycle = (model: string): void => {
    left.push(model);
    device.schedule.remove(model, device.now_ms);
  };
  const { schedule } = device;
  for (const name of ['old', 'young']) schedule.changesStages(name, true);
  expect([schedule.longestIdle(), schedule.nextToRecycle(), schedule.mayRest('old')]).toEqual([
    undefined,
    undefined,
    false,
  ]);
  expect(ask(device, 'away', 1, recycle)).toMatch(/MiB more than this device can give$/);
  schedule.changesStages('young', false);
  expect(schedule.longestIdle()).toBe('young');
  expect(ask(device, 'away', 1, recycle)).toBe(true);
  expect(left).toEqual(['young']);
});

describe('a pipeline, which takes all of its KV as it comes', () => {
  /** Of a told engine. */
  const whole_bytes = 1024 * kv_bytes_per_token;

  /** It is away, and another model computes for a request that needs so many bytes at least. */
  function beside(bytes: number): Scheduled {
    const device = new Scheduled([], { bytes });
    const cut = new ToldEngine();
    cut.stages = [];
    device.engines.set('cut', cut);
    device.comes('cut', bytes);
    device.schedule.remove('cut', 0);
    device.comes('busy', bytes);
    device.ask('busy', 1, decodes(1, 1));
    return device;
  }

  const kvOf = ({ schedule }: Scheduled, name: string): number =>
    schedule.view(0, () => 0).instances.find(({ model }) => model === name)!.kv_bytes;

  it('does not set out where requests of others need a part of it', () => {
    const device = beside(2 * weight_bytes + whole_bytes + required_bytes - 1);
    const before_bytes = kvOf(device, 'busy');
    expect(device.schedule.setsOut('cut', none)).toBe(false);
    expect(kvOf(device, 'busy')).toBe(before_bytes);
    device.schedule.keepAway('cut', device.now_ms);
    expect(budget(device)).toBe(weight_bytes + before_bytes);
  });

  it('has all of it set aside where these keep what they need, and no more, until it is there', () => {
    const device = beside(2 * weight_bytes + whole_bytes + required_bytes);
    expect(device.schedule.setsOut('cut', none)).toBe(true);
    expect(kvOf(device, 'busy')).toBe(required_bytes);
    expect(budget(device)).toBe(2 * weight_bytes + whole_bytes + required_bytes);
    device.comes('cut');
    expect([kvOf(device, 'cut'), kvOf(device, 'busy')]).toEqual([whole_bytes, required_bytes]);
    expect(budget(device)).toBe(2 * weight_bytes + whole_bytes + required_bytes);
  });

  it('what was set aside is free again where it does not come', () => {
    const device = beside(2 * weight_bytes + whole_bytes + required_bytes);
    expect(device.schedule.setsOut('cut', none)).toBe(true);
    device.schedule.keepAway('cut', device.now_ms);
    expect(budget(device)).toBe(weight_bytes + required_bytes);
  });

  it('has idle neighbours leave for it', () => {
    const device = beside(2 * weight_bytes + whole_bytes + required_bytes + 1000);
    device.now_ms = 1000;
    device.comes('idle', 0);
    const left: string[] = [];
    const recycle = (model: string): void => {
      left.push(model);
      device.schedule.remove(model, device.now_ms);
    };
    expect(device.schedule.setsOut('cut', recycle)).toBe(true);
    expect(left).toEqual(['idle']);
  });
});
