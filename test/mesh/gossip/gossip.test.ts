import { describe, expect, it } from 'vitest';
import type { Entry } from '../../../mesh/entry.ts';
import { GossipMember } from '../../../mesh/gossip/member.ts';
import type { GossipMessage, Outgoing } from '../../../mesh/gossip/messages.ts';
import { PeerRing } from '../../../mesh/gossip/peer-ring.ts';
import { type GossipSettings, gossipPresets } from '../../../mesh/gossip/settings.ts';
import { GossipSimulation } from '../../../mesh/gossip/simulation.ts';
import type { RecordMark } from '../../../mesh/record-codec.ts';
import { SessionTable } from '../../../mesh/session-table.ts';
import { metadata } from '../support.ts';

let fingerprint = 1;

/** A session of a peer, without signatures: those are the codec's business. */
function entryOf(name: string, peer: string, role: 'engine' | 'gateway' = 'engine'): Entry {
  const session_id = Buffer.from(name.padEnd(16, '.')).toString('hex');
  const value = {
    session_id,
    public_key: '',
    lifecycle: 'SERVING' as const,
    version: 0,
    started_at_ms: 0,
    metadata: { ...metadata, role, peer: { id: peer, addresses: [] } },
  };
  return { session_id, record: { value, envelope: Uint8Array.of(1), fingerprint: fingerprint++ } };
}

function tombstoneOf(
  { session_id }: Pick<Entry, 'session_id'>,
  evidence = 'gone',
  seen: RecordMark | undefined = { lifecycle: 'SERVING', version: 0 },
): Entry {
  const value = { session_id, evidence, ...(seen ? { seen } : {}) };
  return { session_id, tombstone: { value, envelope: Uint8Array.of(2), fingerprint: fingerprint++ } };
}

describe('the ring of members', () => {
  const table = new SessionTable();
  for (const name of ['d', 'b', 'a', 'c']) table.merge(entryOf(name, name), 'gossip');
  const ring = new PeerRing(table);

  it('gives those after and before a member, around the end', () => {
    expect(ring.neighbours('d', 2)).toEqual(['a', 'b']);
    expect(ring.neighbours('a', -2)).toEqual(['d', 'c']);
    expect(ring.neighbours('b', 9)).toEqual(['c', 'd', 'a']);
    expect(ring.neighbours('bb', 1)).toEqual(['c']);
    expect(ring.neighbours('bb', -1)).toEqual(['b']);
  });

  it('keeps a member as long as one of its sessions has not left', () => {
    const second = entryOf('a2', 'a', 'gateway');
    table.merge(second, 'gossip');
    expect(ring.gateways).toEqual(['a']);
    table.merge(tombstoneOf(entryOf('a', 'a')), 'gossip');
    expect(ring.names).toEqual(['a', 'b', 'c', 'd']);
    table.merge(tombstoneOf(second), 'gossip');
    expect(ring.names).toEqual(['b', 'c', 'd']);
  });

  it('takes a member for a gateway as long as one of its gateways has not left', () => {
    const gateways = ['b2', 'b3'].map((name) => entryOf(name, 'b', 'gateway'));
    for (const gateway of gateways) {
      table.merge(gateway, 'gossip');
      expect(ring.gateways).toEqual(['b']);
    }
    table.merge(tombstoneOf(gateways[0]!), 'gossip');
    expect(ring.gateways).toEqual(['b']);
    table.merge(tombstoneOf(gateways[1]!), 'gossip');
    expect(ring.gateways).toEqual([]);
    expect(ring.has('b')).toBe(true);
  });

  it('links all members by few steps', () => {
    const many = new SessionTable();
    for (let at = 0; at < 100; at++) many.merge(entryOf(`m${at}`, `m${at}`), 'gossip');
    const { names } = new PeerRing(many);
    const links = new PeerRing(many);
    let reached = new Set([names[0]!]);
    let steps = 0;
    for (; reached.size < 100; steps++)
      reached = new Set([...reached, ...[...reached].flatMap((name) => links.links(name, 3))]);
    expect(steps).toBeLessThanOrEqual(5);
    expect(links.links(names[0]!, 3).length).toBeLessThanOrEqual(12);
  });
});

describe('members that are simulated', () => {
  const small = { members: 60, delay_ms: [0.2, 3] as const };

  it('tell all of a new record within six rounds, at 10 % loss', () => {
    for (const seed of [1, 2, 3]) {
      const simulation = new GossipSimulation({ ...small, delay_ms: [3, 3], seed, loss: 0.1 });
      simulation.network.hops_max = 0;
      const [node] = simulation.nodes;
      node!.publish();
      const known = (): boolean => simulation.knowNewest(node!);
      expect(simulation.until(known, { step_ms: 1, most_ms: 5_000 })).toBeLessThan(5_000);
      expect(simulation.network.hops_max).toBeLessThanOrEqual(6);
    }
  });

  it('take in who knows one of them, though messages are lost', () => {
    for (const seed of [1, 2, 3]) {
      const simulation = new GossipSimulation({ ...small, seed, loss: 0.3 });
      simulation.join();
      expect(simulation.until(() => simulation.agrees, { step_ms: 50, most_ms: 20_000 })).toBeLessThan(
        20_000,
      );
    }
  });

  it('know within three seconds that one fell silent, and evict nobody else', () => {
    for (const seed of [4, 5, 6]) {
      const simulation = new GossipSimulation({ ...small, seed, loss: 0.01 });
      const before = simulation.nodes.map(({ session_id }) => session_id);
      simulation.nodes[7]!.host.silent = true;
      expect(simulation.until(() => simulation.agrees, { step_ms: 50, most_ms: 20_000 })).toBeLessThanOrEqual(
        3_000,
      );
      simulation.run(10_000);
      expect(simulation.speaking.map(({ session_id }) => session_id)).toEqual(
        before.filter((_, at) => at !== 7),
      );
    }
  });

  it.each([
    ['local', [0.05, 0.3], 0],
    ['lan', [0.2, 3], 0.01],
    ['wan', [20, 150], 0.02],
  ] as const)(
    'know of a death within what the settings promise, as presets have them: %s',
    (name, delay_ms, loss) => {
      const settings = gossipPresets[name];
      const { suspicion_timeout_ms, probe_timeout_ms, stagger_ms, watchers } = settings;
      const { broadcast_batch_ms, claim_probe_timeout_ms } = settings;
      // The news takes a few steps; what it misses is found by a push-pull.
      const ways_ms = 6 * delay_ms[1] + (loss > 0 ? settings.push_pull_interval_ms : 0);
      const promised_ms =
        suspicion_timeout_ms +
        probe_timeout_ms +
        (watchers - 1) * stagger_ms +
        broadcast_batch_ms +
        claim_probe_timeout_ms +
        ways_ms;
      for (const seed of [1, 2]) {
        const simulation = new GossipSimulation({ members: 40, delay_ms, seed, loss, settings });
        const before = simulation.nodes.map(({ session_id }) => session_id);
        simulation.nodes[7]!.host.silent = true;
        const took_ms = simulation.until(() => simulation.agrees, { step_ms: 10, most_ms: 60_000 });
        expect(took_ms).toBeLessThanOrEqual(promised_ms);
        simulation.run(20_000);
        expect(simulation.speaking.map(({ session_id }) => session_id)).toEqual(
          before.filter((_, at) => at !== 7),
        );
      }
    },
  );

  it('evict nobody who lives, at 1 % loss and with clocks an hour wrong', () => {
    const simulation = new GossipSimulation({ ...small, seed: 7, loss: 0.01, clock_error_ms: 3_600_000 });
    const before = simulation.nodes.map(({ session_id }) => session_id);
    simulation.run(120_000);
    expect(simulation.nodes.map(({ session_id }) => session_id)).toEqual(before);
    expect(simulation.agrees).toBe(true);
  });

  it('heal within five seconds after a partition, and nobody needs a new session for it', () => {
    const simulation = new GossipSimulation({ ...small, seed: 8, loss: 0.01 });
    const before = simulation.nodes.map(({ session_id }) => session_id);
    for (const [at, { host }] of simulation.nodes.entries()) host.part = at % 2;
    simulation.run(60_000);
    // Each half took the other for gone.
    for (const { driver } of simulation.nodes)
      expect(driver.member.ring.names).toHaveLength(small.members / 2);
    for (const { host } of simulation.nodes) host.part = 0;
    expect(simulation.until(() => simulation.agrees, { step_ms: 100, most_ms: 30_000 })).toBeLessThanOrEqual(
      5_000,
    );
    expect(simulation.nodes.map(({ session_id }) => session_id)).toEqual(before);
  });

  it('keep all sessions where one member says of all that they left, and still see a true loss in time', () => {
    const simulation = new GossipSimulation({ ...small, seed: 11, loss: 0.01 });
    const { nodes, network } = simulation;
    const before = nodes.map(({ session_id }) => session_id);
    const [rogue] = nodes;
    const everybodyLives = (): boolean =>
      simulation.speaking.every(({ table }) =>
        simulation.speaking.every(({ session_id }) => table.get(session_id)?.lifecycle === 'SERVING'),
      );
    for (let round = 0; round < 8; round++) {
      const entries = nodes.slice(1).flatMap(({ session_id, table }) => {
        const { version } = table.get(session_id)!;
        return tombstoneOf({ session_id }, `round ${round}`, { lifecycle: 'SERVING', version });
      });
      network.announce(rogue!.host, { kind: 'news', entries });
      for (const { host } of nodes.slice(1)) rogue!.host.send(host.self, { kind: 'news', entries });
      for (let step = 0; step < 20; step++) {
        simulation.run(50);
        expect(everybodyLives()).toBe(true);
      }
    }
    nodes[7]!.host.silent = true;
    expect(simulation.until(() => simulation.agrees, { step_ms: 50, most_ms: 20_000 })).toBeLessThanOrEqual(
      3_000,
    );
    expect(nodes.map(({ session_id }) => session_id)).toEqual(before);
  });

  it('outlive that members come and go all the time', () => {
    const simulation = new GossipSimulation({ ...small, members: 20, seed: 10, loss: 0.02 });
    for (let turn = 0; turn < 20; turn++) {
      simulation.nodes[turn]!.host.silent = true;
      simulation.join(turn + 1);
      simulation.run(700);
    }
    expect(simulation.until(() => simulation.agrees, { step_ms: 100, most_ms: 60_000 })).toBeLessThan(60_000);
  });

  it('come out the same by seed', () => {
    const run = (): unknown => {
      const simulation = new GossipSimulation({ ...small, seed: 9, loss: 0.05 });
      simulation.nodes[3]!.host.silent = true;
      simulation.run(5_000);
      return [simulation.network.messages, simulation.nodes[0]!.table.sums];
    };
    expect(run()).toEqual(run());
  });
});

describe('a member', () => {
  let now_ms = 0;
  let refuted: [string, RecordMark][] = [];
  function memberOf(table: SessionTable, settings: Partial<GossipSettings> = {}): GossipMember {
    now_ms = 0;
    refuted = [];
    let draw = 0;
    return new GossipMember({
      self: 'me',
      table,
      sealTombstone: (session_id, evidence, seen) => tombstoneOf({ session_id }, evidence, seen),
      refute: (session_id, seen) => refuted.push([session_id, seen]),
      settings: { ...gossipPresets.lan, ...settings },
      now_ms: () => now_ms,
      random: () => {
        draw += 0.37;
        return draw % 1;
      },
    });
  }
  function tableOf(...entries: Entry[]): SessionTable {
    const table = new SessionTable();
    for (const entry of entries) table.merge(entry, 'own');
    return table;
  }

  it('does not listen to who floods it, and counts it; others are heard', () => {
    const self = memberOf(tableOf(entryOf('own', 'me')), { messages_per_s: 10 });
    const sums = { kind: 'sums' as const, sums: [] };
    for (let count = 0; count < 25; count++) self.receive('loud', sums);
    expect(self.rejected.flood).toBe(15);
    expect(self.receive('quiet', sums)).toHaveLength(1);
    now_ms = 1005;
    expect(self.receive('loud', sums)).toHaveLength(1);
  });

  it('takes more of what is passed on to all, as where a partition heals, but not without end', () => {
    const self = memberOf(tableOf(entryOf('own', 'me')), { messages_per_s: 2, announcements_per_s: 5 });
    const heard = Array.from({ length: 8 }, (_, at) =>
      self.hear('loud', { kind: 'news', entries: [entryOf(`new${at}`, `x${at}`)] }),
    );
    expect(heard).toEqual([true, true, true, true, true, false, false, false]);
    expect(self.rejected.flood).toBe(3);
  });

  it('does a push-pull again soon after one that found a difference', () => {
    const self = memberOf(tableOf(entryOf('own', 'me'), entryOf('a', 'a')), { push_pull_soon_ms: 100 });
    const pushPullWithin = (ms: number): boolean => {
      const end_ms = now_ms + ms;
      let found = false;
      for (; now_ms < end_ms; now_ms += 10)
        found ||= self.tick().some(({ message }) => message.kind === 'sums');
      return found;
    };
    while (!pushPullWithin(10));
    self.receive('a', { kind: 'marks', buckets: [0], marks: [] });
    expect(pushPullWithin(200)).toBe(true);
    expect(pushPullWithin(200)).toBe(false);
  });

  describe('that is told that another left', () => {
    const theirs = entryOf('theirs', 'them');
    const seen = { lifecycle: 'SERVING' as const, version: 0 };
    const told = (evidence = 'gone', mark: RecordMark | undefined = seen): GossipMessage => ({
      kind: 'news',
      entries: [tombstoneOf(theirs, evidence, mark)],
    });
    const lifecycleIn = (table: SessionTable): string | undefined => table.get(theirs.session_id)?.lifecycle;
    const asked = (out: readonly Outgoing[]): number[] =>
      out.flatMap(({ to, message }) => (to === 'them' && message.kind === 'probe' ? [message.nonce] : []));

    it('looks for itself: one that answers has not left, and hears what is said of it', () => {
      const table = tableOf(entryOf('own', 'me'), theirs);
      const self = memberOf(table);
      expect(self.receive('rogue', told())).toEqual([]);
      const [nonce] = asked(self.tick());
      expect(lifecycleIn(table)).toBe('SERVING');
      expect(self.receive('them', { kind: 'alive', nonce: nonce! })).toMatchObject([
        { to: 'them', message: { kind: 'news', entries: [{ tombstone: { value: { evidence: 'gone' } } }] } },
      ]);
      for (; now_ms < 900; now_ms += 100) self.tick();
      expect([lifecycleIn(table), self.rejected.unproven]).toEqual(['SERVING', 1]);
      // Said again at once, it is looked into no sooner than after a while.
      self.receive('rogue', told('gone again'));
      expect(asked(self.tick())).toEqual([]);
      now_ms = 1100;
      expect(asked(self.tick())).toHaveLength(1);
    });

    it('believes it of one that does not answer, neither to itself nor to others', () => {
      const table = tableOf(entryOf('own', 'me'), theirs, entryOf('third', 'z'));
      const self = memberOf(table);
      expect(self.hear('watcher', told('silent for 2 s'))).toBe(true);
      expect(self.hear('another', told('silent for 2 s'))).toBe(true); // other bytes: another watcher's word
      const out = self.tick();
      expect(out.map(({ to, message }) => [to, message.kind])).toEqual([
        ['them', 'probe'],
        ['z', 'probe_for'],
      ]);
      now_ms = 300;
      self.tick();
      expect(lifecycleIn(table)).toBe('SERVING');
      now_ms = 400;
      self.tick();
      expect(lifecycleIn(table)).toBe('LEFT');
      expect(self.flush()).toEqual([]); // the announcement went on without it
    });

    it('does not believe it where somebody else reaches that one', () => {
      const table = tableOf(entryOf('own', 'me'), theirs, entryOf('third', 'z'));
      const self = memberOf(table);
      self.receive('rogue', told());
      const [, question] = self.tick();
      if (question?.message.kind !== 'probe_for') throw new Error('not asked for');
      self.receive('z', { kind: 'alive_for', nonce: question.message.nonce, peer: 'them' });
      for (; now_ms < 900; now_ms += 100) self.tick();
      expect(lifecycleIn(table)).toBe('SERVING');
    });

    it('takes no word about records that nobody has shown', () => {
      const table = tableOf(entryOf('own', 'me'), theirs);
      const self = memberOf(table);
      self.receive('rogue', told('gone', { lifecycle: 'DOWN', version: 0 }));
      self.receive('rogue', told('gone', { lifecycle: 'SERVING', version: 1 }));
      expect([asked(self.tick()), self.rejected.unproven]).toEqual([[], 2]);
    });

    it('takes a word about all records there will ever be for one about those that are', () => {
      const table = tableOf(entryOf('own', 'me'), theirs);
      const self = memberOf(table);
      const { session_id } = theirs;
      const value = { session_id, evidence: 'Slurm job 42 ended' };
      const tombstone = { value, envelope: Uint8Array.of(3), fingerprint: fingerprint++ };
      self.receive('reader', { kind: 'news', entries: [{ session_id, tombstone }] });
      self.tick();
      now_ms = 600;
      self.tick();
      expect(lifecycleIn(table)).toBe('LEFT');
      expect(table.entry(session_id)?.tombstone?.value).toEqual({ ...value, seen });
    });

    it('sees by a later record that it lives, though it was found silent', () => {
      const table = tableOf(entryOf('own', 'me'), theirs);
      const self = memberOf(table);
      self.receive('watcher', told());
      self.tick();
      now_ms = 600;
      self.tick();
      expect(lifecycleIn(table)).toBe('LEFT');
      const { record } = theirs;
      const later = { ...record!, value: { ...record!.value, version: 1 }, fingerprint: fingerprint++ };
      self.receive('x', { kind: 'news', entries: [{ session_id: theirs.session_id, record: later }] });
      expect(lifecycleIn(table)).toBe('SERVING');
    });

    it('looks at so many at a time, whoever says how much', () => {
      const all = Array.from({ length: 20 }, (_, at) => entryOf(`s${at}`, `p${at}`));
      const self = memberOf(tableOf(entryOf('own', 'me'), ...all), { claim_burst: 5, claims_per_s: 10 });
      self.receive('rogue', { kind: 'news', entries: all.map((entry) => tombstoneOf(entry)) });
      const probes = (): number => self.tick().filter(({ message }) => message.kind === 'probe').length;
      expect(probes()).toBe(5);
      now_ms = 1000;
      expect(probes()).toBe(5);
    });
  });

  it('shows that it lives when others say that it left, and does so again only after a while', () => {
    const own = entryOf('own', 'me');
    const table = tableOf(own);
    const self = memberOf(table, { refute_ms: 500 });
    for (let turn = 0; turn < 10; turn++, now_ms += 100) {
      self.receive('rogue', { kind: 'news', entries: [tombstoneOf(own, `gone ${turn}`)] });
      self.tick();
    }
    expect(table.get(own.session_id)?.lifecycle).toBe('SERVING');
    expect(refuted).toEqual(Array(2).fill([own.session_id, { lifecycle: 'SERVING', version: 0 }]));
  });

  it('believes that it was taken for gone after it stood still for so long', () => {
    const own = entryOf('own', 'me');
    const table = tableOf(own);
    const self = memberOf(table);
    self.tick();
    now_ms = 5_000;
    self.tick(); // timers come before what was sent meanwhile
    self.receive('watcher', { kind: 'news', entries: [tombstoneOf(own)] });
    expect([table.get(own.session_id)?.lifecycle, refuted]).toEqual(['LEFT', []]);
  });

  it('does not take messages that are too large', () => {
    const table = tableOf(entryOf('own', 'me'));
    const self = memberOf(table, { entries_max: 2 });
    self.receive('x', { kind: 'news', entries: ['a', 'b', 'c'].map((name) => entryOf(name, name)) });
    expect([self.rejected.oversized, table.size]).toEqual([1, 1]);
  });

  it('does not take back a session that is over, and tells who still believes in it', () => {
    const table = tableOf(entryOf('own', 'me'), entryOf('old', 'x'));
    const self = memberOf(table);
    const old = entryOf('old', 'x');
    table.forget(old.session_id, true);
    self.receive('y', { kind: 'news', entries: [old] });
    expect([self.rejected.replayed, table.size]).toEqual([1, 1]);
    const answer = self.receive('x', { kind: 'beat', sessions: [{ session_id: old.session_id }] });
    expect(answer).toMatchObject([{ to: 'x', message: { kind: 'news', entries: [{ tombstone: {} }] } }]);
  });

  it('does not take a sign of life for the session of another', () => {
    const theirs = entryOf('theirs', 'them');
    const self = memberOf(tableOf(entryOf('own', 'me'), theirs));
    const load = { running: 9, waiting: 9, max_sequences: 9 };
    self.receive('x', { kind: 'beat', sessions: [{ session_id: theirs.session_id, load }] });
    expect([self.rejected.not_its_own, self.lastHeartbeat(theirs.session_id)]).toEqual([1, undefined]);
    self.receive('them', { kind: 'beat', sessions: [{ session_id: theirs.session_id, load }] });
    expect(self.lastHeartbeat(theirs.session_id)).toEqual({ at_ms: 0, load });
  });

  it('says with evidence that a member left which it heard and hears no more', () => {
    const theirs = entryOf('theirs', 'them');
    const table = tableOf(entryOf('own', 'me'), theirs);
    const self = memberOf(table);
    for (; now_ms < 1000; now_ms += 100) {
      self.tick();
      self.receive('them', { kind: 'beat', sessions: [{ session_id: theirs.session_id }] });
    }
    for (; now_ms < 3400; now_ms += 100) self.tick();
    expect(table.get(theirs.session_id)?.lifecycle).toBe('LEFT');
    expect(table.entry(theirs.session_id)?.tombstone?.value.evidence).toMatch(/^silent for 2\.[0-9] s/);
  });

  it('gives those more time that it never heard: they may be just beginning', () => {
    const theirs = entryOf('theirs', 'them');
    const table = tableOf(entryOf('own', 'me'), theirs);
    const self = memberOf(table);
    for (; now_ms < 3000; now_ms += 100) self.tick();
    expect(table.get(theirs.session_id)?.lifecycle).toBe('SERVING');
    for (; now_ms < 5000; now_ms += 100) self.tick();
    expect(table.get(theirs.session_id)?.lifecycle).toBe('LEFT');
  });

  it('takes nobody for silent while it stood still itself', () => {
    const theirs = entryOf('theirs', 'them');
    const table = tableOf(entryOf('own', 'me'), theirs);
    const self = memberOf(table);
    const beat = { kind: 'beat' as const, sessions: [{ session_id: theirs.session_id }] };
    for (; now_ms < 1000; now_ms += 100) {
      self.tick();
      self.receive('them', beat);
    }
    now_ms = 60_000; // stopped, and continued
    for (const end_ms = now_ms + 1000; now_ms < end_ms; now_ms += 100) self.tick();
    expect(table.get(theirs.session_id)?.lifecycle).toBe('SERVING');
  });

  it('asks at once when a connection broke, and believes who answers for others', () => {
    const theirs = entryOf('theirs', 'them');
    const table = tableOf(entryOf('own', 'me'), theirs, entryOf('third', 'z'));
    const self = memberOf(table);
    self.tick();
    now_ms = 500;
    self.tick();
    self.receive('them', { kind: 'beat', sessions: [{ session_id: theirs.session_id }] });
    const asked = self.lost('them');
    expect(asked.map(({ to, message }) => [to, message.kind])).toEqual([
      ['them', 'probe'],
      ['z', 'probe_for'],
    ]);
    const { message } = asked[1]!;
    if (message.kind !== 'probe_for') throw new Error('not asked for');
    self.receive('z', { kind: 'alive_for', nonce: message.nonce, peer: 'them' });
    now_ms = 1600;
    self.tick();
    expect(table.get(theirs.session_id)?.lifecycle).toBe('SERVING');
    self.lost('them');
    for (; now_ms < 2500; now_ms += 100) self.tick();
    expect(table.get(theirs.session_id)?.lifecycle).toBe('LEFT');
  });

  it('leaves sessions to their folder that no peer speaks for', () => {
    const table = tableOf(entryOf('own', 'me'));
    const self = memberOf(table);
    const { record, session_id } = entryOf('quiet', 'x');
    const { peer: _, ...alone } = record!.value.metadata;
    table.merge(
      { session_id, record: { ...record!, value: { ...record!.value, metadata: alone } } },
      'folder',
    );
    expect(self.flush()).toEqual([]);
    table.merge(entryOf('heard', 'y'), 'folder');
    expect(self.flush()).toHaveLength(1);
  });
});
