import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GossipMember } from '../../mesh/gossip/member.ts';
import { type GossipRecord, left } from '../../mesh/gossip/messages.ts';
import { RecordMap } from '../../mesh/gossip/record-map.ts';
import { defaultGossipSettings } from '../../mesh/gossip/settings.ts';
import { GossipSimulation } from '../../mesh/gossip/simulation.ts';

const arbitraryRecord: fc.Arbitrary<GossipRecord> = fc.record({
  session_id: fc.constantFrom('a', 'b', 'c', 'd'),
  address: fc.constant('n0'),
  lifecycle: fc.constantFrom(0 as const, 1 as const, 2 as const, 3 as const),
  version: fc.integer({ min: 0, max: 3 }),
  envelope: fc.uint8Array({ minLength: 1, maxLength: 2 }),
});
const merged = (records: readonly GossipRecord[]): RecordMap => {
  const map = new RecordMap();
  for (const record of records) map.merge(record);
  return map;
};
const content = (map: RecordMap): unknown =>
  [...map.values()].sort((a, b) => (a.session_id < b.session_id ? -1 : 1));

describe('the map of sessions', () => {
  it('is the same whatever the order, the grouping and the repetitions of merging', () => {
    fc.assert(
      fc.property(
        fc.array(arbitraryRecord, { maxLength: 12 }),
        fc.infiniteStream(fc.nat()),
        (records, numbers) => {
          const once = merged(records);
          const shuffled = [...records, ...records]
            .map((record) => ({ record, at: numbers.next().value as number }))
            .sort((a, b) => a.at - b.at)
            .map(({ record }) => record);
          const again = merged(shuffled);
          expect(content(again)).toEqual(content(once));
          expect(again.digest).toBe(once.digest);
          expect(again.ring).toEqual(once.ring);
          // Half by half, then together.
          const half = records.length >> 1;
          const parts = merged([
            ...merged(records.slice(half)).values(),
            ...merged(records.slice(0, half)).values(),
          ]);
          expect(content(parts)).toEqual(content(once));
        },
      ),
    );
  });

  it('never goes back in life, and does not bring back what was forgotten', () => {
    const record: GossipRecord = {
      session_id: 'a',
      address: 'n0',
      lifecycle: 1,
      version: 7,
      envelope: new Uint8Array(1),
    };
    const map = merged([record]);
    expect(map.merge({ ...record, lifecycle: left, version: 0 })).toBe(true);
    expect(map.merge({ ...record, version: 99 })).toBe(false);
    expect(map.ring).toEqual([]);
    const empty = new RecordMap().digest;
    map.forget('a');
    expect(map.digest).toBe(empty);
    expect(map.merge({ ...record, version: 99 })).toBe(false);
    expect(map.lacks(['a', 3, 100])).toBe(false);
  });
});

/** Small enough for every run; `npm run bench -- mesh` has a thousand. */
const small = { members: 60, delay_ms: [0.2, 3] as const };

describe('a simulated mesh', () => {
  it('tells everybody of a new member within six rounds, at 10 % loss', () => {
    for (const seed of [1, 2, 3]) {
      const simulation = new GossipSimulation({ ...small, seed, loss: 0.1 });
      simulation.join();
      const took_ms = simulation.until(() => simulation.agrees, { step_ms: 10, most_ms: 10_000 });
      expect(took_ms).toBeLessThanOrEqual(6 * defaultGossipSettings.round_ms);
    }
  });

  it('knows within three seconds that a member is silent, and that of nobody else', () => {
    for (const seed of [4, 5, 6]) {
      const simulation = new GossipSimulation({ ...small, seed, loss: 0.01 });
      const before = simulation.nodes.map(({ member }) => member.own.session_id);
      simulation.nodes[7]!.silent = true;
      expect(simulation.until(() => simulation.agrees, { step_ms: 50, most_ms: 20_000 })).toBeLessThanOrEqual(
        3_000,
      );
      simulation.run(10_000);
      expect(simulation.speaking.map(({ member }) => member.own.session_id)).toEqual(
        before.filter((_, at) => at !== 7),
      );
    }
  });

  it('evicts nobody who lives, at 1 % loss and with clocks an hour wrong', () => {
    const simulation = new GossipSimulation({ ...small, seed: 7, loss: 0.01, clock_error_ms: 3_600_000 });
    const before = simulation.nodes.map(({ member }) => member.own.session_id);
    simulation.run(120_000);
    expect(simulation.nodes.map(({ member }) => member.own.session_id)).toEqual(before);
    expect(simulation.agrees).toBe(true);
  });

  it('heals within five seconds after a partition, everybody under a new session', () => {
    const simulation = new GossipSimulation({ ...small, seed: 8, loss: 0.01 });
    const before = new Set(simulation.nodes.map(({ member }) => member.own.session_id));
    for (const [at, node] of simulation.nodes.entries()) node.part = at % 2;
    simulation.run(60_000);
    // Each half took the other for gone.
    expect(simulation.nodes.every(({ member }) => member.records.ring.length === small.members / 2)).toBe(
      true,
    );
    for (const node of simulation.nodes) node.part = 0;
    expect(simulation.until(() => simulation.agrees, { step_ms: 100, most_ms: 30_000 })).toBeLessThanOrEqual(
      5_000,
    );
    expect(simulation.nodes.every(({ member }) => !before.has(member.own.session_id))).toBe(true);
  });

  it('comes out the same by seed', () => {
    const run = (): unknown => {
      const simulation = new GossipSimulation({ ...small, seed: 9, loss: 0.05 });
      simulation.nodes[3]!.silent = true;
      simulation.run(5_000);
      return [simulation.messages, simulation.nodes[0]!.member.records.digest];
    };
    expect(run()).toEqual(run());
  });
});

describe('a member', () => {
  const record = (session_id: string): GossipRecord => ({
    session_id,
    address: `at-${session_id}`,
    lifecycle: 1,
    version: 0,
    envelope: new Uint8Array(1),
  });
  const member = (settings = {}): GossipMember =>
    new GossipMember(
      {
        own: record('own'),
        assertLeft: (known) => ({ ...known, lifecycle: left }),
        comeBack: () => record('own-again'),
        settings: { ...defaultGossipSettings, ...settings },
        random: () => 0.5,
      },
      0,
    );

  it('does not listen to who floods it, and counts it; others are heard', () => {
    const self = member({ messages_per_s: 10 });
    for (let count = 0; count < 25; count++) self.receive('loud', { kind: 'digest', digest: 1, count: 0 }, 5);
    expect(self.rejected.flood).toBe(15);
    self.receive('quiet', { kind: 'news', records: [record('new')] }, 6);
    expect(self.records.get('new')).toBeDefined();
    expect(self.receive('loud', { kind: 'digest', digest: 1, count: 0 }, 1_005)).toHaveLength(1);
  });

  it('does not take messages that are too large', () => {
    const self = member({ records_max: 2 });
    self.receive('x', { kind: 'news', records: ['a', 'b', 'c'].map(record) }, 1);
    expect([self.rejected.oversized, self.records.size]).toEqual([1, 1]);
  });

  it('comes back under a new session when it hears that it left', () => {
    const self = member();
    self.receive('x', { kind: 'news', records: [{ ...record('own'), lifecycle: left }] }, 1);
    expect(self.own.session_id).toBe('own-again');
    expect(self.records.ring).toEqual(['own-again']);
  });
});
