import { describe, expect, it } from 'vitest';
import type { Entry } from '../../mesh/entry.ts';
import { SessionTable } from '../../mesh/session-table.ts';
import { defaultTableBounds, excessOf, TableAccounts } from '../../mesh/table-bounds.ts';
import { metadata } from './support.ts';

let count = 0;

function entryOf(peer: string, provider: string, bytes: number, session = ++count, version = 0): Entry {
  const session_id = session.toString(16).padStart(32, '0');
  const value = {
    ...{ session_id, public_key: '', lifecycle: 'SERVING' as const, version, started_at_ms: 0 },
    provider_id: provider,
    metadata: { ...metadata, peer: { id: peer, addresses: [] } },
  };
  return { session_id, record: { value, envelope: new Uint8Array(bytes), fingerprint: ++count } };
}

const bounds = {
  member: { rows: 2, bytes: 1000 },
  provider: { rows: 3, bytes: 2000 },
  all: { rows: 5, bytes: 5000 },
  relayed_burst_bytes: 1000,
  relayed_bytes_per_s: 100,
};

describe('what others may have in the table', () => {
  const none = { rows: 0, bytes: 0 };

  it('is bounded by rows and bytes, of a member, of a provider and of all', () => {
    const used = { member: none, provider: none, all: none };
    expect(excessOf(used, { rows: 1, bytes: 10 }, bounds)).toBeUndefined();
    expect(excessOf(used, { rows: 1, bytes: 1001 }, bounds)).toBe('member');
    expect(excessOf({ ...used, provider: { rows: 3, bytes: 0 } }, { rows: 1, bytes: 1 }, bounds)).toBe(
      'provider',
    );
    expect(excessOf({ ...used, all: { rows: 5, bytes: 0 } }, { rows: 1, bytes: 1 }, bounds)).toBe('all');
  });

  it('may always shrink, so that sessions can say that they leave', () => {
    const full = { rows: 9, bytes: 9999 };
    const used = { member: full, provider: full, all: full };
    expect(excessOf(used, { rows: 0, bytes: -5 }, bounds)).toBeUndefined();
    expect(excessOf(used, { rows: 0, bytes: 5 }, bounds)).toBe('member');
  });

  it('is counted as it comes, changes and goes', () => {
    const table = new SessionTable();
    const accounts = new TableAccounts(table, bounds);
    const add = (entry: Entry): string | undefined => {
      const excess = accounts.excess(entry);
      if (!excess) table.merge(entry, 'gossip');
      return excess;
    };
    const first = entryOf('a', 'u@s', 400);
    expect([add(first), add(entryOf('a', 'u@s', 400)), add(entryOf('a', 'u@s', 1))]).toEqual([
      undefined,
      undefined,
      'member',
    ]);
    const session = Number.parseInt(first.session_id, 16);
    expect(add(entryOf('a', 'u@s', 700, session, 1))).toBe('member');
    expect(add(entryOf('a', 'u@s', 600, session, 1))).toBeUndefined();
    expect([add(entryOf('b', 'u@s', 1)), add(entryOf('c', 'u@s', 1)), add(entryOf('c', 'v@s', 1))]).toEqual([
      undefined,
      'provider',
      undefined,
    ]);
    table.forget(first.session_id, true);
    expect(add(entryOf('c', 'u@s', 1))).toBeUndefined();
  });

  it('is brought by each member at its own rate', () => {
    const accounts = new TableAccounts(new SessionTable(), bounds);
    expect([accounts.takes('x', 800, 0), accounts.takes('x', 300, 0), accounts.takes('x', 200, 0)]).toEqual([
      true,
      false,
      true,
    ]);
    expect(accounts.takes('y', 1000, 0)).toBe(true);
    expect([accounts.takes('x', 300, 2000), accounts.takes('x', 300, 3000)]).toEqual([false, true]);
  });

  it('leaves room for a thousand nodes of one user, five sessions each, brought by one member', () => {
    const table = new SessionTable();
    const accounts = new TableAccounts(table);
    const { relayed_burst_bytes, relayed_bytes_per_s } = defaultTableBounds;
    let now_ms = 0;
    for (let at = 0; at < 5000; at++) {
      const entry = entryOf(`node${Math.floor(at / 5)}`, 'someone@site', 2000);
      while (!accounts.takes('neighbour', 2000, now_ms)) now_ms += 100;
      expect(accounts.excess(entry)).toBeUndefined();
      table.merge(entry, 'gossip');
    }
    // What one member brings beyond the burst takes its time; in a mesh of many, others bring the rest meanwhile.
    expect(now_ms).toBeLessThanOrEqual(
      ((5000 * 2000 - relayed_burst_bytes) / relayed_bytes_per_s) * 1000 + 100,
    );
  });
});
