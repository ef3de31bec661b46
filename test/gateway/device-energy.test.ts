import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { DeviceEnergy } from '../../gateway/device-energy.ts';
import { DeviceTime } from '../../gateway/device-time.ts';
import { usageAnswerSchema } from '../../spec/usage.ts';
import { chatAnswer, json, shareStage, until } from './support.ts';

/** A device of 100 W that takes 500 W at work, and a clock for all. */
function device(rated_w?: number) {
  let now_ms = 0;
  let joules = 0;
  let requests = 0;
  const time = new DeviceTime(() => now_ms);
  const energy = new DeviceEnergy(time, rated_w);
  return {
    energy,
    pass: (seconds: number) => {
      now_ms += 1000 * seconds;
      joules += seconds * (requests > 0 ? 500 : 100);
    },
    read: () => energy.take({ joules, at_ms: now_ms }),
    begin: () => {
      requests++;
      const end = time.begin();
      return (): number => {
        requests--;
        return end() * (energy.power?.watts ?? 0);
      };
    },
  };
}

describe('the power of devices at work', () => {
  it('is the catalog’s until it was measured, and nothing where that does not know them', () => {
    expect(device(700).energy.power).toEqual({ watts: 700, measured: false });
    const unknown = device();
    expect(unknown.energy.power).toBeUndefined();
    unknown.read();
    const end = unknown.begin();
    unknown.pass(1);
    unknown.read();
    expect(unknown.energy.power).toEqual({ watts: 500, measured: true });
    end();
  });

  it('leaves out what they take when they idle', () => {
    const one = device(700);
    one.read();
    one.pass(1);
    one.read();
    // A tenth of the next second is work.
    const end = one.begin();
    one.pass(0.1);
    end();
    one.pass(0.9);
    one.read();
    expect(one.energy.power!.watts).toBeCloseTo(500, 6);
    // What is too short says nothing new.
    const short = one.begin();
    one.pass(0.01);
    short();
    one.pass(0.99);
    one.read();
    expect(one.energy.power!.watts).toBeCloseTo(500, 6);
  });

  it('is divided among requests as the devices’ time is', () => {
    const one = device();
    one.read();
    one.pass(1);
    one.read();
    const warm = one.begin();
    one.pass(1);
    one.read();
    warm();
    const [first, second] = [one.begin(), one.begin()];
    one.pass(1);
    const firstJoules = first();
    one.pass(1);
    // Half of a second together, and a second alone.
    expect([firstJoules, second()]).toEqual([250, 750]);
  });

  it('is not taken from an agent that began anew, nor from one that says the same again', () => {
    const one = device(700);
    one.energy.take({ joules: 1000, at_ms: 5000 });
    one.energy.take({ joules: 0, at_ms: 100 });
    one.energy.take({ joules: 0, at_ms: 100 });
    expect(one.energy.power).toEqual({ watts: 700, measured: false });
    const end = one.begin();
    one.pass(1);
    one.energy.take({ joules: 500, at_ms: 1100 });
    end();
    expect(one.energy.power).toEqual({ watts: 500, measured: true });
    // Its counter cannot be read any more.
    one.energy.take(undefined);
    expect(one.energy.power).toEqual({ watts: 700, measured: false });
  });
});

const shared = shareStage();

it('a request is charged what counters say, and marked where they say nothing yet', async () => {
  const { stage } = shared;
  const began_ms = performance.now();
  let busy_ms = 0;
  let from_ms: number | undefined;
  const session = await shared.session(
    async (request, response) => {
      from_ms = performance.now();
      await delay(700);
      busy_ms += performance.now() - from_ms;
      from_ms = undefined;
      await json(chatAnswer)(request, response);
    },
    { metadata: { devices: [{ kind: 'gpu', model: 'A100-40GB', memory_bytes: 40e9, isa: [] }] } },
  );
  const ask = async (): Promise<void> => {
    expect((await stage.post('/v1/chat/completions', { model: 'tiny', messages: [] })).status).toBe(200);
  };
  const used = async () => {
    const answer = await stage.admin('/hpcserve/v1/usage?group_by=model');
    return usageAnswerSchema.parse(await answer.json()).usage.find(({ group }) => group.model === 'tiny')!;
  };
  await ask();
  const estimated = await used();
  expect(estimated.energy_j).toBeGreaterThan(0);
  expect(estimated.energy_estimated_j).toBe(estimated.energy_j);
  // 20 W and 120 W: no device of the catalog.
  let readings = 0;
  session.energy = () => {
    readings++;
    const now_ms = performance.now();
    const work_ms = busy_ms + (now_ms - (from_ms ?? now_ms));
    return { joules: (20 * (now_ms - began_ms) + 100 * work_ms) / 1000, at_ms: now_ms };
  };
  await until(() => readings >= 3, 'some readings while it idles');
  await ask();
  const seen = readings;
  await until(() => readings >= seen + 3, 'readings of the work');
  const before = await used();
  await ask();
  const after = await used();
  expect(after.energy_estimated_j).toBe(before.energy_estimated_j);
  const watts = (after.energy_j - before.energy_j) / (after.device_s - before.device_s);
  expect(watts).toBeGreaterThan(60);
  expect(watts).toBeLessThan(180);
});
