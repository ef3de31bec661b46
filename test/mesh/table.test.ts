import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import { type Entry, hasLeft, isGossiped, mergeRecords, openEntry, sealedEntry } from '../../mesh/entry.ts';
import { SessionIdentity } from '../../mesh/index.ts';
import { sealRecord, sealTombstone } from '../../mesh/record-codec.ts';
import type { RegistryChange } from '../../mesh/registry.ts';
import { SessionTable } from '../../mesh/session-table.ts';
import { lifecycles, type SessionRecord } from '../../spec/session-record.ts';
import { metadata, recordOf } from './support.ts';

const networkKey = new Uint8Array(32).fill(7);
const peer = { id: '12D3KooWpeer', addresses: ['/ip4/10.0.0.1/tcp/4001'] };
/** Everything that can be said of three sessions, a few ways each: records alone, tombstones alone, both. */
let sayings: Entry[][];
let reporter: SessionIdentity;

beforeAll(async () => {
  reporter = await SessionIdentity.create();
  const other = await SessionIdentity.create();
  sayings = [];
  for (let session = 0; session < 3; session++) {
    const identity = await SessionIdentity.create();
    const tombstones = [reporter, other].map((by) =>
      sealTombstone({ session_id: identity.session_id, evidence: 'gone' }, by, networkKey),
    );
    const records = lifecycles.flatMap((lifecycle) =>
      [0, 1].flatMap((version) =>
        // Two contents of one version: what a defective writer would say.
        ['n1', 'n2'].map((node) =>
          sealRecord(
            recordOf(identity, { lifecycle, version, metadata: { ...metadata, node, peer } }),
            identity,
            networkKey,
          ),
        ),
      ),
    );
    sayings.push([
      ...records.map((record) => openEntry({ record }, networkKey)),
      ...tombstones.map((tombstone) => openEntry({ tombstone }, networkKey)),
      openEntry({ record: records[3]!, tombstone: tombstones[0]! }, networkKey),
      ...lifecycles.slice(0, 3).flatMap((lifecycle) =>
        [0, 1].map((version) => {
          const tombstone = {
            session_id: identity.session_id,
            evidence: 'silent',
            seen: { lifecycle, version },
          };
          return openEntry({ tombstone: sealTombstone(tombstone, reporter, networkKey) }, networkKey);
        }),
      ),
    ]);
  }
});

const saying = (session: number): fc.Arbitrary<Entry> => fc.nat(24).map((index) => sayings[session]![index]!);
const ofOneSession = fc.array(saying(0), { minLength: 3, maxLength: 3 });
const ofAnySession = fc.array(
  fc.nat(2).chain((session) => saying(session)),
  { maxLength: 40 },
);

function content(table: SessionTable): unknown {
  return new Map(
    [...table.entries()]
      .map((entry) => [entry.session_id, sealedEntry(entry)] as const)
      .sort(([a], [b]) => (a < b ? -1 : 1)),
  );
}

function tableOf(entries: Iterable<Entry>): SessionTable {
  const table = new SessionTable();
  for (const entry of entries) table.merge(entry, 'gossip');
  return table;
}

describe('joining what is known of a session', () => {
  test('is commutative, associative and idempotent, for equal versions of different content too', () => {
    fc.assert(
      fc.property(ofOneSession, ([a, b, c]) => {
        const sealed = (entry: Entry): unknown => sealedEntry(entry);
        const join = (one: Entry, other: Entry): Entry => mergeRecords(one, other);
        expect(sealed(join(a!, b!))).toEqual(sealed(join(b!, a!)));
        expect(sealed(join(a!, join(b!, c!)))).toEqual(sealed(join(join(a!, b!), c!)));
        expect(join(a!, a!)).toBe(a);
        const both = join(a!, b!);
        expect(join(both, b!)).toBe(both);
      }),
    );
  });

  test('never goes back: a lifecycle only grows, and from a tombstone leads a later record alone', () => {
    fc.assert(
      fc.property(ofAnySession, (entries) => {
        const table = new SessionTable();
        const seen = new Map<string, SessionRecord>();
        for (const entry of entries) {
          table.merge(entry, 'gossip');
          const now = table.get(entry.session_id);
          if (!now) continue;
          const before = seen.get(entry.session_id);
          const rank = lifecycles.indexOf(now.lifecycle);
          if (before && rank < lifecycles.indexOf(before.lifecycle)) {
            expect(table.entry(entry.session_id)?.record).toBe(entry.record);
            expect(entry.record).toBeDefined();
          }
          seen.set(entry.session_id, now);
        }
      }),
    );
  });

  test('drops a tombstone that a later record refutes, in whatever order they come', () => {
    const [, , , , serving0, , serving1] = sayings[0]!;
    const silentAt = sayings[0]!.find(({ tombstone }) => {
      const seen = tombstone?.value.seen;
      return seen?.lifecycle === 'SERVING' && seen.version === 0;
    })!;
    expect(hasLeft(mergeRecords(serving0!, silentAt))).toBe(true);
    for (const order of [
      [serving0!, silentAt, serving1!],
      [serving1!, silentAt],
      [silentAt, serving1!, silentAt],
    ]) {
      expect(order.reduce(mergeRecords)).toEqual(serving1);
    }
  });

  test('refuses two sessions', () => {
    expect(() => mergeRecords(sayings[0]![0]!, sayings[1]![0]!)).toThrow(TypeError);
  });
});

describe('replicas of the table', () => {
  test('are the same whatever the order, the grouping and the repetitions of merging', () => {
    fc.assert(
      fc.property(
        ofAnySession.chain((entries) =>
          fc.tuple(
            fc.constant(entries),
            fc.shuffledSubarray([...entries, ...entries], { minLength: 2 * entries.length }),
            fc.nat(entries.length),
          ),
        ),
        ([entries, shuffled, cut]) => {
          const once = tableOf(entries);
          const again = tableOf(shuffled);
          expect(content(again)).toEqual(content(once));
          expect(again.sums).toEqual(once.sums);
          const parts = tableOf([
            ...tableOf(entries.slice(cut)).entries(),
            ...tableOf(entries.slice(0, cut)).entries(),
          ]);
          expect(content(parts)).toEqual(content(once));
          expect(parts.sums).toEqual(once.sums);
        },
      ),
    );
  });

  test('have equal sums only where what travels is equal', () => {
    fc.assert(
      fc.property(ofAnySession, ofAnySession, (a, b) => {
        const [one, other] = [tableOf(a), tableOf(b)];
        // Who says that a session left, and how, is nothing to agree on.
        const travelling = (table: SessionTable): string =>
          JSON.stringify(
            [...table.entries()]
              .filter(isGossiped)
              .map((entry) => [sealedEntry(entry).record, entry.tombstone !== undefined])
              .sort(),
          );
        const equal = travelling(one) === travelling(other);
        expect(one.sums.every((sum, bucket) => sum === other.sums[bucket])).toBe(equal);
      }),
    );
  });

  test('say of each entry whether it was news', () => {
    const [join0, , , , serving0, , serving1] = sayings[0]!;
    const table = new SessionTable();
    expect(table.merge(serving0!, 'gossip')).toBe('news');
    expect(table.merge(serving0!, 'gossip')).toBe('known');
    expect(table.merge(join0!, 'gossip')).toBe('stale');
    expect(table.merge(serving1!, 'gossip')).toBe('news');
  });

  test('do not bring back a session that is over and was compacted', () => {
    const [serving] = sayings[0]!;
    const tombstone = sayings[0]![16]!;
    const table = new SessionTable();
    const empty = [...table.sums];
    table.merge(serving!, 'gossip');
    table.merge(tombstone, 'gossip');
    table.forget(serving!.session_id, true);
    expect(table.sums).toEqual(empty);
    expect(table.merge(serving!, 'gossip')).toBe('forgotten');
    expect(table.merge(tombstone, 'gossip')).toBe('forgotten');
    expect(table.size).toBe(0);
  });

  test('tell readers of a tombstone with its evidence, once, also where it came before the record', async () => {
    for (const order of [
      [4, 16, 17],
      [16, 17, 4],
    ]) {
      const table = new SessionTable();
      const told: RegistryChange[] = [];
      table.onChange((changes) => told.push(...changes));
      for (const index of order) {
        table.merge(sayings[0]![index]!, 'gossip');
        await Promise.resolve();
      }
      expect(told.at(-1)).toMatchObject({ after: { lifecycle: 'LEFT' }, tombstone_evidence: 'gone' });
      expect(told.filter(({ after }) => after?.lifecycle === 'LEFT')).toHaveLength(1);
    }
  });
});
