/** What the gateway expects of a replica, by what its session has published and what its heartbeats say. */
import { expect, test } from 'vitest';
import { RoutingTable } from '../../gateway/routing/table.ts';
import type { ModelState } from '../../spec/session-record.ts';
import { recordOf } from './session-records.ts';

const quiet = { name: 'm', running: 0, waiting: 0, max_sequences: 4, kv_tokens_total: 0, kv_tokens_used: 0 };

test('a replica comes until the mesh has heard that its session serves, whatever it says before', () => {
  const table = new RoutingTable<null>();
  const expected = (): string => {
    const { candidates, coming } = table.find('m')!;
    if (candidates.length > 0) return 'answers';
    return coming.length > 0 ? 'comes' : 'cannot';
  };
  const says = (state: ModelState): string => {
    table.report('s', [{ ...quiet, state }]);
    return expected();
  };
  const joining = recordOf('s', ['m']);
  table.set({ ...joining, lifecycle: 'JOIN' }, null);
  expect(expected()).toBe('cannot');
  table.setReachable('s', true);
  expect(says('pending')).toBe('comes');
  expect(says('loading')).toBe('comes');
  expect(says('serving')).toBe('comes');
  expect(says('failed')).toBe('cannot');
  expect(says('serving')).toBe('comes');
  table.set(joining, null);
  expect(expected()).toBe('answers');
  expect(says('stalled')).toBe('cannot');
  expect(says('loading')).toBe('comes');
  expect(says('serving')).toBe('answers');
  table.set({ ...joining, lifecycle: 'DOWN' }, null);
  expect(expected()).toBe('cannot');
});
