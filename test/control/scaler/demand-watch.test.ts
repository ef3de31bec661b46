import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { DemandWatch } from '../../../control/scaler/demand-watch.ts';
import { DemandMeter } from '../../../gateway/workload/demand-meter.ts';
import type { DemandFile } from '../../../spec/demand.ts';
import { type StateLayout, stateLayout } from '../../../spec/state-layout.ts';

let root: string;
let layout: StateLayout;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'hpcserve-demand-'));
  layout = { ...stateLayout(root, 'local'), root, keeper_folder: join(root, 'keeper') };
  for (const name of ['gateway', 'gateway-2', 'keeper']) mkdirSync(join(root, name));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function write(gateway: string, measured_ms: number, models: DemandFile['models'], started_ms = 0): void {
  writeFileSync(
    join(root, gateway, 'demand.json'),
    JSON.stringify({ format: 1, started_ms, measured_ms, models }),
  );
}
const tiny = (request_s: number, in_flight: number, asked_ms: number) => ({
  model: 'tiny',
  request_s,
  in_flight,
  asked_ms,
});

it('a gateway sums up what is in it, also short requests between two looks', async () => {
  let now_ms = 0;
  const meter = new DemandMeter(
    join(root, 'gateway'),
    pino({ level: 'silent' }),
    () => 0.25,
    () => now_ms,
  );
  meter.began('tiny');
  now_ms = 2000;
  meter.began('tiny');
  now_ms = 3000;
  meter.ended('tiny');
  now_ms = 3500;
  expect(meter.file().models).toEqual([
    {
      ...{ model: 'tiny', request_s: 2 + 2 + 0.5, in_flight: 1, asked_ms: 2000, ttft_ms: 250 },
      arrivals: expect.objectContaining({ rate_per_s: 2 / 3.5 }),
    },
  ]);
  await meter.close();
});

it('a gateway tells how long a pass of its last answers took, whatever their lengths', async () => {
  let now_ms = 0;
  const log = pino({ level: 'silent' });
  const meter = new DemandMeter(
    join(root, 'gateway'),
    log,
    () => undefined,
    () => now_ms,
  );
  const answersOf = () => meter.file().models[0]?.answers;
  meter.answered('tiny', { duration_ms: 100, completion_tokens: 10 });
  expect(answersOf()).toBeUndefined();
  meter.began('tiny');
  now_ms = 2000;
  // Of which no devices computed tokens.
  meter.answered('tiny', { duration_ms: 100 });
  expect(answersOf()).toBeUndefined();
  meter.answered('tiny', { duration_ms: 2000, prompt_tokens: 30, completion_tokens: 99 });
  now_ms = 3000;
  meter.answered('tiny', { duration_ms: 1000, prompt_tokens: 1024, completion_tokens: 8 });
  expect(answersOf()).toEqual({
    total: 2,
    last: [
      [2000, 20],
      [3000, 100],
    ],
  });
  for (let answer = 0; answer < 100; answer++)
    meter.answered('tiny', { duration_ms: answer, completion_tokens: 1 });
  expect(answersOf()!.total).toBe(102);
  expect(answersOf()!.last).toHaveLength(64);
  expect(answersOf()!.last.at(-1)![1]).toBeCloseTo(99 / 1, 5);
  await meter.close();
});

it('the mean of all gateways is taken since the look before, and nothing where nobody asks', () => {
  const watch = new DemandWatch(layout);
  write('gateway', 10_000, [tiny(5, 1, 9000)]);
  write('gateway-2', 10_000, [tiny(0, 2, 9500)]);
  watch.read(10_000, 60_000);
  write('gateway', 14_000, [tiny(13, 0, 12_000)]);
  write('gateway-2', 12_000, [tiny(4, 2, 9500)]);
  watch.read(15_000, 60_000);
  watch.read(16_000, 60_000);
  // The first has ended, and another began in its place.
  write('gateway', 20_000, [tiny(0.5, 3, 20_000)], 19_000);
  watch.read(20_000, 60_000);
  watch.read(90_000, 60_000);
  const { samples, asked_ms } = watch.demandOf(['tiny']);
  expect(asked_ms).toBe(20_000);
  expect(samples).toEqual([
    { at_ms: 20_000, concurrency: 3 + 2 },
    { at_ms: 90_000, concurrency: 0 },
  ]);
  expect(watch.demandOf(['other']).samples).toEqual([]);
});

it('a model has the demand of all its names', () => {
  const watch = new DemandWatch(layout);
  write('gateway', 1000, [tiny(0, 1, 500), { ...tiny(0, 2, 700), model: 'small' }]);
  watch.read(1000, 60_000);
  expect(watch.demandOf(['tiny', 'small'])).toEqual({
    samples: [{ at_ms: 1000, concurrency: 3 }],
    asked_ms: 700,
  });
});

it('is known to a keeper that is started again, and to one that looks from cron', () => {
  write('gateway', 10_000, [tiny(5, 1, 9000)]);
  new DemandWatch(layout).read(10_000, 60_000);
  write('gateway', 30_000, [tiny(45, 0, 28_000)]);
  const next = new DemandWatch(layout);
  next.read(30_000, 60_000);
  // 40 seconds of requests in 20.
  expect(next.demandOf(['tiny']).samples).toEqual([
    { at_ms: 10_000, concurrency: 1 },
    { at_ms: 30_000, concurrency: 2 },
  ]);
  writeFileSync(join(root, 'keeper', 'demand.json'), '{');
  expect(new DemandWatch(layout).demandOf(['tiny']).samples).toEqual([]);
});
