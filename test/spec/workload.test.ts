/** What the measurements of several gateways say together. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { gatewayFolderOf, listGatewayFolders } from '../../spec/gateway-folders.ts';
import { gatewayFiles } from '../../spec/state-layout.ts';
import {
  combineWorkloads,
  readMeasuredWorkload,
  type WorkloadClass,
  type WorkloadFile,
} from '../../spec/workload.ts';

const time_ms = 1_700_000_000_000;

function entry(change: Partial<WorkloadClass> = {}): WorkloadClass {
  return {
    model: 'tiny',
    reasoning: false,
    rate_per_s: 2,
    refused_per_s: 0,
    input_tokens: 100,
    output_tokens: 10,
    input_cv: 0,
    output_cv: 0,
    requests: 50,
    window_s: 900,
    measured_at_ms: time_ms,
    ...change,
  };
}

function file(classes: WorkloadClass[], measured_at_ms = time_ms): WorkloadFile {
  return { format: 1, measured_at_ms, classes };
}

describe('the load of a site', () => {
  it('adds rates and mixes lengths by them', () => {
    const { tiny } = Object.fromEntries(
      combineWorkloads([
        file([entry({ rate_per_s: 3, input_tokens: 100 })]),
        file([entry({ rate_per_s: 1, input_tokens: 500, requests: 1000 })]),
      ]),
    );
    expect(tiny).toMatchObject({ rate_per_s: 4, input_tokens: 200, output_tokens: 10, requests: 1050 });
    // E[X²] = 3/4·100² + 1/4·500² = 70000, so cv = √(70000/200² − 1).
    expect(tiny!.input_cv).toBeCloseTo(Math.sqrt(0.75), 12);
  });

  it('has the spread of all requests as one sample would', () => {
    const lengths = fc.array(fc.integer({ min: 1, max: 10_000 }), { minLength: 1, maxLength: 20 });
    fc.assert(
      fc.property(fc.array(lengths, { minLength: 1, maxLength: 4 }), (samples) => {
        const files = samples.map((sample, index) => {
          const { mean, cv } = statistics(sample);
          const part = entry({
            rate_per_s: sample.length,
            output_tokens: mean,
            output_cv: cv,
            reasoning: index % 2 === 1,
          });
          return file([part]);
        });
        const all = combineWorkloads(files).get('tiny')!;
        const expected = statistics(samples.flat());
        expect(all.output_tokens).toBeCloseTo(expected.mean, 6);
        expect(all.output_cv).toBeCloseTo(expected.cv, 6);
        expect(all.classes.map(({ reasoning }) => reasoning)).toEqual(
          samples.length > 1 ? [false, true] : [false],
        );
      }),
    );
  });

  it('leaves out gateways that ended while others went on, and models nobody got an answer from', () => {
    const ended = file([entry({ rate_per_s: 70 })], time_ms - 61_000);
    const live = file([entry(), entry({ model: 'never', requests: 0 })]);
    const all = combineWorkloads([ended, live]);
    expect([...all.keys()]).toEqual(['tiny']);
    expect(all.get('tiny')!.rate_per_s).toBe(2);
    expect(combineWorkloads([ended]).get('tiny')!.rate_per_s).toBe(70);
    expect(combineWorkloads([]).size).toBe(0);
  });

  it('keeps the lengths when nothing arrives any more', () => {
    const idle = entry({ rate_per_s: 0, requests: 30, output_tokens: 10 });
    const other = entry({ rate_per_s: 0, requests: 10, output_tokens: 50 });
    expect(combineWorkloads([file([idle]), file([other])]).get('tiny')!.output_tokens).toBe(20);
  });

  it('is read from the folders of all gateways, past files that cannot be read', () => {
    const root = mkdtempSync(join(tmpdir(), 'hpcserve-workload-'));
    try {
      expect(readMeasuredWorkload(join(root, 'absent')).size).toBe(0);
      for (const [number, text] of [
        [1, JSON.stringify(file([entry()]))],
        [2, JSON.stringify(file([entry({ rate_per_s: 5 })]))],
        [3, '{"format":1,'],
        [4, JSON.stringify({ format: 2 })],
        [10, undefined],
      ] as const) {
        mkdirSync(gatewayFolderOf(root, number));
        if (text !== undefined)
          writeFileSync(join(gatewayFolderOf(root, number), gatewayFiles.workload), text);
      }
      mkdirSync(join(root, 'gateway-x'));
      expect(listGatewayFolders(root).map(({ number }) => number)).toEqual([1, 2, 3, 4, 10]);
      expect(readMeasuredWorkload(root).get('tiny')!.rate_per_s).toBe(7);
    } finally {
      rmSync(root, { recursive: true });
    }
  });
});

function statistics(sample: readonly number[]): { mean: number; cv: number } {
  const mean = sample.reduce((sum, value) => sum + value, 0) / sample.length;
  const variance = sample.reduce((sum, value) => sum + (value - mean) ** 2, 0) / sample.length;
  return { mean, cv: Math.sqrt(variance) / mean };
}
