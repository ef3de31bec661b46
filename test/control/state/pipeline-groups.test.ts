/** Which launches compute one pipeline together: after a deploy, a replacement, a renewal. */
import { describe, expect, it } from 'vitest';
import { mergePlan } from '../../../control/reconcile/decide.ts';
import type { LaunchRecord } from '../../../control/state/launch-record.ts';
import { successorOf, superseded } from '../../../control/state/launch-transitions.ts';
import { hasParts, isOfGroup, withRenewed } from '../../../control/state/pipeline-groups.ts';
import type { PlannedLaunch } from '../../../spec/plan.ts';
import { launchRecord, partsOf } from '../support.ts';

let next = 0;
const merged = (
  current: readonly LaunchRecord[],
  plan: readonly PlannedLaunch[],
  version = 1,
): LaunchRecord[] =>
  mergePlan(
    current,
    plan,
    ({ part }) => `${part?.group}-${part?.node_index}-v${version}`,
    () => (++next).toString(16).padStart(16, '0'),
  );
const submitted = (launches: readonly LaunchRecord[]): LaunchRecord[] =>
  launches.map(({ launch_id, planned, fingerprint }) => ({
    ...launchRecord(0, { phase: 'submitted', job_id: '7' }),
    launch_id,
    planned,
    fingerprint,
  }));
const groups = (launches: readonly LaunchRecord[]): (string | undefined)[] =>
  launches.map(({ planned }) => planned.part?.group);

describe('the jobs of a pipeline', () => {
  it('are a group that no other pipeline of that name has', () => {
    const first = submitted(merged([], partsOf('cut-0', 2)));
    expect(new Set(groups(first)).size).toBe(1);
    expect(hasParts(first)).toBe(true);
    const [changed, changed2, old, old2] = merged(first, partsOf('cut-0', 2), 2);
    expect([old!.superseded, old2!.superseded]).toEqual([true, true]);
    expect(groups([changed2!])).toEqual(groups([changed!]));
    expect(groups([changed!])).not.toEqual(groups([old!]));
    // Each replica by itself.
    const two = merged([], [...partsOf('cut-0', 2), ...partsOf('cut-1', 2)]);
    expect(new Set(groups(two)).size).toBe(2);
  });

  it('take a new part in where the others are kept', () => {
    const [first, second] = submitted(merged([], partsOf('cut-0', 2)));
    const over: LaunchRecord = {
      ...second!,
      phase: 'ended',
      last: { job_id: '7', phase: 'ended', state: 'FAILED' },
      ended_at_ms: 0,
    } as LaunchRecord;
    const again = merged([first!, over], partsOf('cut-0', 2));
    expect(again.slice(0, 2).map(({ launch_id }) => launch_id === first!.launch_id)).toEqual([true, false]);
    expect(groups(again)).toEqual([0, 1, 2].map(() => first!.planned.part!.group));
  });

  it('keep their group where one is replaced', () => {
    const [first, second] = submitted(merged([], partsOf('cut-0', 2)));
    expect(groups([successorOf(second!, 'ab')])).toEqual(groups([first!]));
  });

  it('are renewed together, in a group of their own', () => {
    const [first, second, other] = submitted([...merged([], partsOf('cut-0', 2)), launchRecord(99)]);
    const id = ({ launch_id }: LaunchRecord): string => launch_id.replace(/^0/, 'f');
    const renewed = withRenewed([first!, other!, second!], second!, id);
    expect(renewed.map(({ launch_id }) => launch_id)).toEqual([
      id(first!),
      first!.launch_id,
      other!.launch_id,
      id(second!),
      second!.launch_id,
    ]);
    expect(renewed.map((launch) => launch.superseded)).toEqual([false, true, false, false, true]);
    expect(groups([renewed[0]!])).toEqual(groups([renewed[3]!]));
    expect(isOfGroup(renewed[0]!, first!.planned.part!.group)).toBe(false);
    // What is on its way out has no further successor.
    const again = withRenewed([superseded(first!), second!], second!, id);
    expect(again).toHaveLength(3);
  });
});
