/** What is promised of replicas on idle nodes, by what became of them. */
import { afterEach, beforeEach, expect, it } from 'vitest';
import { describeGuarantee } from '../../../cli/format/guarantee.ts';
import { guaranteesOf, presenceOf } from '../../../control/scavenger/guarantees.ts';
import { readHistory, type ScavengerRun, writeHistory } from '../../../control/scavenger/history.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { plannedLaunch, temporaryStore } from '../support.ts';

const hour_ms = 3_600_000;
const now_ms = 1000 * hour_ms;
let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

const site = siteSchema.parse({
  name: 'here',
  kind: 'slurm',
  node_kinds: [{ name: 'cpu' }, { name: 'idle', tier: 'scavenger' }, { name: 'idle-too', tier: 'scavenger' }],
});
const run = (
  launch_id: string,
  from_h: number,
  to_h: number | undefined,
  facts: Partial<ScavengerRun> = {},
): ScavengerRun => ({
  launch_id,
  restart: 0,
  deployment: 'demo',
  model: 'm',
  node_kind: 'idle',
  job_id: launch_id,
  devices: 1,
  started_ms: now_ms - from_h * hour_ms,
  served_ms: now_ms - from_h * hour_ms,
  ended_ms: to_h === undefined ? undefined : now_ms - to_h * hour_ms,
  end: to_h === undefined ? undefined : 'PREEMPTED',
  ...facts,
});
const save = (...runs: ScavengerRun[]): void =>
  writeHistory(place.store.layout, { format: 1, runs, idle: [] }, now_ms);
const asked = (scavenger: number, facts: object = {}) => ({
  deployment: 'demo',
  models: [modelSchema.parse({ name: 'm', source: '/m.gguf', scavenger: { replicas: scavenger }, ...facts })],
  launches: [plannedLaunch('m-0')],
});
const guarantees = (...question: Parameters<typeof asked>) =>
  guaranteesOf(asked(...question), site, place.store.layout, now_ms);

it('says nothing of models without replicas there', () => {
  save(run('1', 2, undefined));
  expect(guarantees(0)).toEqual([]);
  expect(guarantees(2, { devices: { node_kinds: ['cpu'] } })).toEqual([]);
});

it('counts what served, who left, and how long it took until another served', () => {
  save(
    // Served for two hours, was preempted; the next one came half an hour later, and serves.
    run('1', 5, 3),
    run('2', 2.5, undefined),
    // Withdrawn: nobody is missed.
    run('3', 4, 3.5, { end: 'CANCELLED by 1000' }),
    // Preempted, and nobody came since.
    run('4', 2, 1, { model: 'n' }),
    // Never served, and long ago.
    run('5', 2, 1, { served_ms: undefined }),
    run('6', 400, 300),
  );
  const seen = presenceOf(readHistory(place.store.layout), ({ model }) => model === 'm', now_ms);
  expect(seen).toMatchObject({ departures: 1, preemptions: 2, absences: 1, absent_s: 1800 });
  expect(seen.serving_hours).toBeCloseTo(2 + 2.5 + 0.5, 9);
  const other = presenceOf(readHistory(place.store.layout), ({ model }) => model === 'n', now_ms);
  expect(other).toMatchObject({ departures: 1, absent_s: 3600 });
});

it('goes by the model, else by others on these nodes, else by nothing that was seen', () => {
  expect(guarantees(4)).toMatchObject([{ source: 'assumed', stable: 1, replicas: 4 }]);
  save(run('1', 5, 3, { deployment: 'other' }), run('2', 5, 3, { deployment: 'other', node_kind: 'gone' }));
  expect(guarantees(4)).toMatchObject([
    { source: 'node_kinds', node_kinds: ['idle', 'idle-too'], seen: { departures: 1 } },
  ]);
  save(run('1', 5, 3), run('2', 2.5, undefined), run('3', 5, 3, { deployment: 'other' }));
  const [own] = guarantees(4);
  expect(own).toMatchObject({ source: 'model', seen: { departures: 1, absent_s: 1800 } });
  expect(describeGuarantee(own!)).toMatch(
    /^m: at least 3 of 4 replica\(s\) on preemptible nodes 0\.9\d of the time, beside 1 on stable nodes \(by the last 7 days of its replicas on idle, idle-too: 1 left in 4\.5 h of serving, 1 preempted, back after 30 min on average\)$/,
  );
});

it('counts replicas that the plan itself put there', () => {
  const onIdle = { ...plannedLaunch('m-1'), node_kind: 'idle', tier: 'scavenger' as const };
  const question = { ...asked(0), launches: [plannedLaunch('m-0'), onIdle] };
  expect(guaranteesOf(question, site, place.store.layout, now_ms)).toMatchObject([
    { stable: 1, replicas: 1, at_least: 1 },
  ]);
});
