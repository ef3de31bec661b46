import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { readPlanFile, sealPlan, writePlanFile } from '../../../control/plan/plan-file.ts';
import { searchDeadline } from '../../../control/plan/search-deadline.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { plannedLaunch } from '../support.ts';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-plan-'));
  path = join(folder, 'plan.json');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const plan = sealPlan({
  format: 1,
  deployment: 'demo',
  site: 'here',
  made_at_ms: 1,
  inputs_digest: 'd',
  launches: [plannedLaunch('m-0')],
  models: [],
  rejected: [],
  warnings: [],
  unplaced: [],
  too_large: [],
  objective: 'slo',
  // What JSON cannot hold must not make the file unreadable.
  search: { status: 'feasible', gap: Number.POSITIVE_INFINITY, nodes: 1 },
  gpu_count: 0,
});

function refusal(): HpcserveError {
  try {
    readPlanFile(path);
  } catch (error) {
    if (error instanceof HpcserveError) return error;
    throw error;
  }
  throw new Error('it was read');
}

it('is read as it was written, by its owner alone, also from the output of plan --json', () => {
  writePlanFile(path, plan);
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(readPlanFile(path)).toEqual(JSON.parse(JSON.stringify(plan)));
  writeFileSync(path, JSON.stringify({ ...plan, estimates: [{ launch: 0, start_time_ms: 5 }] }));
  expect(readPlanFile(path)).not.toHaveProperty('estimates');
});

it('is refused after any change of any value in it', () => {
  const leaves: (readonly (string | number)[])[] = [];
  const walk = (value: unknown, at: readonly (string | number)[]): void => {
    if (typeof value === 'object' && value !== null)
      for (const [key, each] of Object.entries(value)) walk(each, [...at, key]);
    else leaves.push(at);
  };
  walk(JSON.parse(JSON.stringify(plan)), []);
  fc.assert(
    fc.property(fc.constantFrom(...leaves), fc.jsonValue(), (leaf, value) => {
      const changed = JSON.parse(JSON.stringify(plan));
      let inner = changed;
      for (const key of leaf.slice(0, -1)) inner = inner[key];
      const key = leaf.at(-1)!;
      fc.pre(JSON.stringify(inner[key]) !== JSON.stringify(value));
      inner[key] = value;
      writeFileSync(path, JSON.stringify(changed));
      expect(refusal().code).toBe('E_PLAN_FILE');
    }),
    { numRuns: 200 },
  );
});

it('is refused when it is no plan at all, whatever it is', () => {
  fc.assert(
    fc.property(fc.oneof(fc.json(), fc.string()), (text) => {
      writeFileSync(path, text);
      expect(refusal().code).toBe('E_PLAN_FILE');
    }),
    { numRuns: 200 },
  );
});

it('says which version wrote it where it was another', () => {
  writeFileSync(path, JSON.stringify({ ...plan, made_by: '0.0.1' }));
  expect(refusal().toText()).toMatch(/written by hpcserve "0\.0\.1"; this is/);
});

it('says where it cannot be written', () => {
  expect(() => writePlanFile(join(folder, 'absent', 'plan.json'), plan)).toThrow(/cannot be written/);
});

it('a search ends at its deadline, and where nothing was found yet a second later', () => {
  let now = 100;
  const limits = searchDeadline(50, () => now);
  expect(limits.shouldStop()).toBe(false);
  now = 200;
  expect(limits.shouldStop()).toBe(false);
  limits.onProgress({ cost: undefined, bound: 1 });
  expect(limits.shouldStop()).toBe(false);
  limits.onProgress({ cost: 3, bound: 1 });
  expect(limits.shouldStop()).toBe(true);
  const without = searchDeadline(0, () => now);
  expect(without.shouldStop()).toBe(false);
  now += 1001;
  expect(without.shouldStop()).toBe(true);
});
