import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { measuredWorkloads } from '../../../control/plan/measured-workload.ts';

const entry = (model: string, more: object = {}): object => ({
  model,
  reasoning: false,
  rate_per_s: 3,
  refused_per_s: 0,
  input_tokens: 700,
  output_tokens: 90,
  input_cv: 1,
  output_cv: 0.5,
  requests: 200,
  window_s: 600,
  measured_at_ms: 1,
  ...more,
});

it('plans with what gateways measured, where that is enough to go by', () => {
  const root = mkdtempSync(join(tmpdir(), 'hpcserve-measured-'));
  try {
    expect(measuredWorkloads(root).size).toBe(0);
    mkdirSync(join(root, 'gateway'), { recursive: true });
    writeFileSync(
      join(root, 'gateway', 'workload.json'),
      JSON.stringify({
        format: 1,
        measured_at_ms: 1,
        classes: [entry('busy'), entry('idle', { rate_per_s: 0 }), entry('new', { requests: 3 })],
      }),
    );
    expect(Object.fromEntries(measuredWorkloads(root))).toEqual({
      busy: { rate_per_s: 3, input_tokens: 700, output_tokens: 90, source: 'measured' },
      idle: { rate_per_s: 0.01, input_tokens: 700, output_tokens: 90, source: 'measured' },
    });
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
});
