/** What a gateway measures of the load, by a clock that the test turns. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { WorkloadMeter } from '../../../gateway/workload/workload-meter.ts';
import { gatewayFiles } from '../../../spec/state-layout.ts';

let folder: string;
let now_ms: number;
const meters: WorkloadMeter[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-meter-'));
  now_ms = 1_700_000_000_000;
});
afterEach(async () => {
  for (const meter of meters.splice(0)) await meter.close();
  rmSync(folder, { recursive: true });
});

function opened(): WorkloadMeter {
  const meter = new WorkloadMeter(folder, pino({ enabled: false }), () => now_ms);
  meters.push(meter);
  return meter;
}

async function closed(meter: WorkloadMeter): Promise<void> {
  meters.splice(meters.indexOf(meter), 1);
  await meter.close();
}

/** So many requests a second for so long, evenly, with the lengths in turn. */
function load(
  meter: WorkloadMeter,
  rate: number,
  seconds: number,
  lengths: readonly [number, number][],
): void {
  for (let request = 0; request < rate * seconds; request++) {
    now_ms += 1000 / rate;
    const [prompt_tokens, completion_tokens] = lengths[request % lengths.length]!;
    meter.arrived('m');
    meter.answered('m', { prompt_tokens, completion_tokens });
  }
}

describe('the load', () => {
  it('is known soon after the first requests, and follows changes', () => {
    const meter = opened();
    load(meter, 2, 60, [[100, 10]]);
    expect(meter.workloads()[0]!.rate_per_s).toBeCloseTo(2, 1);
    load(meter, 2, 3600, [[100, 10]]);
    expect(meter.workloads()[0]!.rate_per_s).toBeCloseTo(2, 1);
    load(meter, 10, 3600, [[300, 40]]);
    const { rate_per_s, input_tokens, output_tokens, requests } = meter.workloads()[0]!;
    expect(rate_per_s).toBeGreaterThan(9.7);
    expect(rate_per_s).toBeLessThan(10.3);
    // Four time constants later e⁻⁴ of the old weight is left.
    expect(input_tokens).toBeGreaterThan(297);
    expect(output_tokens).toBeGreaterThan(39);
    expect(requests).toBe(120 + 7200 + 36_000);
    expect(meter.expectedLength_tokens('m')).toBeCloseTo(340, 6);
    expect(meter.expectedLength_tokens('none')).toBe(0);
  });

  it('has the spread of its lengths', () => {
    const meter = opened();
    load(meter, 5, 4 * 900, [
      [100, 10],
      [300, 30],
    ]);
    const { input_tokens, input_cv, output_cv } = meter.workloads()[0]!;
    // Two values, half each: mean 200, standard deviation 100.
    expect(input_tokens).toBeCloseTo(200, 0);
    expect(input_cv).toBeCloseTo(0.5, 2);
    expect(output_cv).toBeCloseTo(0.5, 2);
  });

  it('fades where nobody asks; the lengths stay', () => {
    const meter = opened();
    load(meter, 4, 900, [[100, 10]]);
    now_ms += 30 * 86_400_000;
    const { rate_per_s, input_tokens, output_tokens } = meter.workloads()[0]!;
    expect(rate_per_s).toBeLessThan(1e-6);
    expect(input_tokens).toBeCloseTo(100, 6);
    expect(output_tokens).toBeCloseTo(10, 6);
  });

  it('of requests that reason is kept apart', () => {
    const meter = opened();
    for (let request = 0; request < 100; request++) {
      now_ms += 1000;
      const reasoning_tokens = request % 4 === 0 ? 900 : 0;
      meter.arrived('m');
      meter.answered('m', { prompt_tokens: 50, completion_tokens: 100 + reasoning_tokens, reasoning_tokens });
    }
    const { classes, output_tokens, rate_per_s } = meter.workloads()[0]!;
    expect(classes.map(({ reasoning, requests }) => [reasoning, requests])).toEqual([
      [false, 75],
      [true, 25],
    ]);
    expect(classes.map((each) => Math.round(each.output_tokens))).toEqual([100, 1000]);
    expect(output_tokens).toBeGreaterThan(310);
    expect(output_tokens).toBeLessThan(340);
    expect(classes[0]!.rate_per_s + classes[1]!.rate_per_s).toBeCloseTo(rate_per_s, 9);
  });

  it('counts what was refused, also where nothing was ever answered', () => {
    const meter = opened();
    for (let request = 0; request < 600; request++) {
      now_ms += 100;
      meter.arrived('m');
      if (request % 2 === 0) meter.refused('m');
    }
    const [only] = meter.file().classes;
    expect(only).toMatchObject({ model: 'm', reasoning: false, requests: 0 });
    expect(only!.rate_per_s).toBeCloseTo(10, 0);
    expect(only!.refused_per_s).toBeCloseTo(5, 0);
    expect(meter.workloads()).toEqual([]);
  });

  it('goes on after a restart, and begins anew where its file is no good', async () => {
    const meter = opened();
    load(meter, 3, 900, [[100, 10]]);
    const before = meter.workloads();
    await closed(meter);
    const again = opened();
    expect(again.workloads()).toEqual(before);
    now_ms += 1000;
    load(again, 3, 900, [[100, 10]]);
    expect(again.workloads()[0]!.requests).toBe(5400);
    await closed(again);
    const path = join(folder, gatewayFiles.workload);
    for (const text of [
      '{"format":1',
      '{}',
      JSON.stringify({ ...JSON.parse(readFileSync(path, 'utf8')), state: 5 }),
    ]) {
      writeFileSync(path, text);
      expect(opened().workloads()).toEqual([]);
    }
  });
});
