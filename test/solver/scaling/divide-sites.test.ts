import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { divideSites, type SiteStanding, type SitesSettings } from '../../../solver/scaling/divide-sites.ts';
import { settle_ms, stepClaim } from '../../../solver/scaling/site-claims.ts';
import { type Instant, type SitesWorld, simulateSites } from './sites-world.ts';

const settings: SitesSettings = { replicas_min: 1, replicas_max: 6, target: 0.5 };
const total = (counts: readonly number[]): number => counts.reduce((sum, count) => sum + count, 0);

/** A site at which nothing happens; `have` replicas serve. */
function site(name: string, have: number, facts: Partial<SiteStanding> = {}): SiteStanding {
  return {
    site: name,
    mean: 0,
    peak: facts.mean ?? 0,
    asked: (facts.mean ?? 0) > 0,
    late: false,
    seen: true,
    settled: true,
    have,
    serving: have,
    stuck: 0,
    claim: have,
    limit: 4,
    ready: 4,
    slots: 4,
    cost: 1,
    ...facts,
  };
}

describe('a division over sites', () => {
  it('adds where a place for a request costs least, and elsewhere once that is full', () => {
    const busy = site('dear', 1, { mean: 7, cost: 3 });
    expect(divideSites([busy, site('cheap', 0)], settings)).toEqual({
      claims: [1, 3],
      because: '7.0 requests at once, and replicas that compute 4',
    });
    // Twice the price for four times the requests at once.
    const large = site('large', 0, { slots: 16, cost: 2 });
    expect(divideSites([busy, site('cheap', 0), large], settings).claims).toEqual([1, 0, 1]);
    expect(divideSites([busy, site('cheap', 0, { limit: 1, ready: 1 })], settings).claims).toEqual([3, 1]);
  });

  it('prefers nodes that are free to those that are waited for', () => {
    const sites = [site('free', 1, { mean: 3, cost: 5 }), site('taken', 0, { ready: 0 })];
    expect(divideSites(sites, settings).claims).toEqual([2, 0]);
    expect(
      divideSites([site('free', 1, { mean: 3, cost: 5, ready: 1 }), sites[1]!], settings).claims,
    ).toEqual([1, 1]);
  });

  it('keeps what is about to leave before it adds, and counts what was said and not done yet', () => {
    const leaving = site('dear', 2, { claim: 1, cost: 9, mean: 3, settled: false });
    expect(divideSites([leaving, site('cheap', 0)], settings).claims).toEqual([2, 0]);
    // Two that both said they would add the one that is needed: the first of them does.
    const both = [
      site('busy', 1, { mean: 3 }),
      site('a', 0, { claim: 1, cost: 2 }),
      site('b', 0, { claim: 1 }),
    ];
    expect(divideSites(both, settings).claims).toEqual([1, 1, 0]);
    const coming = site('cheap', 0, { claim: 1 });
    expect(divideSites([site('dear', 1, { mean: 3, cost: 9 }), coming], settings).claims).toEqual([1, 1]);
  });

  it('takes the dearest away, and before it what does not serve, though that is cheap', () => {
    expect(divideSites([site('cheap', 2), site('dear', 2, { cost: 2 })], settings).claims).toEqual([1, 0]);
    const waiting = site('cheap', 2, { serving: 0, stuck: 2, mean: 1 });
    expect(divideSites([waiting, site('dear', 1, { cost: 2 })], settings).claims).toEqual([0, 1]);
  });

  it('takes nothing away before every site has looked for a window and changed nothing in it', () => {
    for (const facts of [{ seen: false }, { settled: false }, { serving: 1 }])
      expect(divideSites([site('a', 2), site('b', 2, facts)], settings).claims).toEqual([2, 2]);
  });

  it('is back at the maximum at once where a lost site comes back', () => {
    const back = site('back', 4, { settled: false });
    const { claims, because } = divideSites([site('took', 6, { mean: 11, cost: 2 }), back], settings);
    expect(claims).toEqual([2, 4]);
    expect(because).toBe('there may be 6 at most');
  });

  it('counts no replica that waits for longer than a start takes, and adds none beside it', () => {
    const stuck = site('cheap', 1, { serving: 0, stuck: 1, mean: 1, ready: 1 });
    expect(divideSites([stuck, site('other', 0, { cost: 3 })], settings)).toEqual({
      claims: [1, 1],
      because: '1.0 requests at once, and replicas that wait for longer than a start takes',
    });
  });

  it('moves one replica to a much cheaper site: there it starts before here one leaves', () => {
    const dear = site('dear', 2, { cost: 2, mean: 3 });
    const [cheap, started] = [site('cheap', 0), site('cheap', 1)];
    expect(divideSites([dear, cheap], settings)).toEqual({
      claims: [2, 1],
      because: 'a replica on dear moves to cheap: 0.25 against 0.5 for each request at once',
    });
    expect(divideSites([dear, { ...started, serving: 0 }], settings).claims).toEqual([2, 1]);
    expect(divideSites([dear, started], settings).claims).toEqual([1, 1]);
    // Not for a little, not where the maximum is reached, and not at once.
    expect(divideSites([dear, { ...cheap, cost: 1.6 }], settings).claims).toEqual([2, 0]);
    expect(divideSites([dear, cheap], { ...settings, replicas_max: 2 }).claims).toEqual([2, 0]);
    expect(divideSites([{ ...dear, settled: false }, cheap], settings).claims).toEqual([2, 0]);
  });

  it('sleeps when nobody asks anywhere, and one site wakes for a request at another', () => {
    const may_sleep = { ...settings, replicas_min: 0 };
    const asleep = [site('first', 0, { cost: 2 }), site('cheap', 0)];
    expect(divideSites([site('first', 1), site('cheap', 1)], may_sleep).claims).toEqual([0, 0]);
    expect(divideSites(asleep, may_sleep).claims).toEqual([0, 0]);
    const asked = { ...asleep[0]!, asked: true };
    expect(divideSites([asked, asleep[1]!], may_sleep)).toEqual({
      claims: [0, 1],
      because: 'a request came',
    });
  });

  it('adds one where first tokens are late and all replicas are busy', () => {
    const late = site('a', 2, { mean: 3, late: true });
    expect(total(divideSites([late, site('b', 0)], settings).claims)).toBe(3);
    expect(total(divideSites([{ ...late, mean: 1, peak: 3 }, site('b', 0)], settings).claims)).toBe(2);
  });
});

const standing = fc.record({
  mean: fc.double({ min: 0, max: 40, noNaN: true }),
  extra: fc.double({ min: 0, max: 10, noNaN: true }),
  asked: fc.boolean(),
  late: fc.boolean(),
  seen: fc.boolean(),
  settled: fc.boolean(),
  have: fc.nat(6),
  serving: fc.nat(6),
  stuck: fc.nat(2),
  claim: fc.nat(8),
  limit: fc.nat(8),
  ready: fc.nat(8),
  slots: fc.integer({ min: 1, max: 16 }),
  cost: fc.double({ min: 0.01, max: 100, noNaN: true }),
});
const anySites = fc.array(standing, { minLength: 1, maxLength: 5 }).map((sites) =>
  sites.map(
    ({ extra, ...facts }, at): SiteStanding => ({
      site: `s${at}`,
      ...facts,
      peak: facts.mean + extra,
      serving: Math.min(facts.serving, facts.have),
      stuck: Math.min(facts.stuck, Math.max(0, facts.have - facts.serving)),
      ready: Math.min(facts.ready, facts.limit),
    }),
  ),
);

describe('any division over sites', () => {
  it('keeps to the bounds, adds only where there is room, and takes away only what is there', () => {
    fc.assert(
      fc.property(
        anySites,
        fc.nat(3),
        fc.integer({ min: 3, max: 9 }),
        (sites, replicas_min, replicas_max) => {
          const { claims } = divideSites(sites, { replicas_min, replicas_max, target: 0.5 });
          expect(total(claims)).toBeLessThanOrEqual(replicas_max);
          for (const [at, { have, limit }] of sites.entries()) {
            expect(claims[at]).toBeGreaterThanOrEqual(0);
            expect(claims[at]).toBeLessThanOrEqual(Math.max(have, limit));
          }
          const room = total(
            sites.map(
              ({ have, limit, stuck }, at) => (stuck > 0 ? have : Math.max(have, limit)) - claims[at]!,
            ),
          );
          // Short of the minimum only where no site has room.
          if (total(claims) < replicas_min) expect(room).toBeLessThanOrEqual(0);
        },
      ),
    );
  });

  it('leaves enough for the demand of the whole window when it takes something away', () => {
    fc.assert(
      fc.property(anySites, (sites) => {
        const { claims } = divideSites(sites, { replicas_min: 0, replicas_max: 100, target: 0.5 });
        if (total(claims) >= total(sites.map(({ have }) => have))) return;
        const takes = total(sites.map(({ slots }, at) => slots * claims[at]!));
        expect(0.5 * takes).toBeGreaterThanOrEqual(total(sites.map(({ peak }) => peak)) - 1e-6);
      }),
    );
  });

  it('does not depend on how often it is asked: carried out, it comes to rest, and stays there', () => {
    fc.assert(
      fc.property(
        anySites,
        fc.nat(3),
        fc.integer({ min: 3, max: 9 }),
        (sites, replicas_min, replicas_max) => {
          const bounds = { replicas_min, replicas_max, target: 0.5 };
          let now = sites.map((each): SiteStanding => ({ ...each, late: false, seen: true, settled: true }));
          const steps: number[][] = [];
          for (let round = 0; round < 60; round++) {
            const { claims } = divideSites(now, bounds);
            // Each step is carried out, and serves before the next one.
            now = now.map((each, at) => ({
              ...each,
              claim: claims[at]!,
              have: claims[at]!,
              serving: claims[at]!,
              stuck: 0,
            }));
            steps.push(claims);
          }
          expect(steps.at(-1)).toEqual(steps.at(-2));
        },
      ),
    );
  });
});

describe('a claim', () => {
  it('is carried out once its gateway has published it for long enough, and not before', () => {
    let claim = stepClaim({ claim: { replicas: 1 }, target: 2, published: 1, now_ms: 0 }).claim;
    expect(claim).toEqual({ replicas: 2 });
    const later = (published: number, now_ms: number): number | undefined => {
      const step = stepClaim({ claim, target: 2, published, now_ms });
      claim = step.claim;
      return step.act;
    };
    expect(later(1, 60_000)).toBeUndefined();
    expect(later(2, 61_000)).toBeUndefined();
    expect(later(2, 61_000 + settle_ms - 1)).toBeUndefined();
    expect(later(2, 61_000 + settle_ms)).toBe(2);
    expect(stepClaim({ claim, target: 1, published: 2, now_ms: 90_000 })).toEqual({ claim: { replicas: 1 } });
  });
});

describe('keepers of several sites', () => {
  const world: SitesWorld = {
    seed: 1,
    sites: [
      { slots: 4, cost: 2, limit: 4, replicas: 1 },
      { slots: 4, cost: 1, limit: 4 },
      { slots: 4, cost: 1, limit: 4 },
    ],
    settings,
    seconds: 900,
    load: () => 7,
    delay_s: 3,
    lead_s: 30,
    window_s: 120,
    silent_s: 60,
  };
  const changes = (instants: readonly Instant[]): number =>
    instants.filter(({ have }, at) => at > 0 && have.join() !== instants[at - 1]!.have.join()).length;
  const worlds = fc.record({
    seed: fc.nat(1e6),
    load: fc.double({ min: 0, max: 12, noNaN: true }),
    sites: fc.array(
      fc.record({
        slots: fc.integer({ min: 2, max: 8 }),
        cost: fc.double({ min: 0.5, max: 4, noNaN: true }),
        limit: fc.integer({ min: 1, max: 6 }),
        replicas: fc.nat(2),
      }),
      { minLength: 2, maxLength: 4 },
    ),
  });

  it('never have more than the maximum together, and rest under steady load, whatever each hears first', () => {
    fc.assert(
      fc.property(worlds, ({ seed, load, sites }) => {
        const replicas_max = 8;
        const instants = simulateSites({
          ...world,
          seed,
          sites,
          settings: { ...settings, replicas_max },
          load: () => load,
          seconds: 2400,
        });
        for (const { have } of instants) expect(total(have)).toBeLessThanOrEqual(replicas_max);
        expect(changes(instants.slice(-600))).toBe(0);
        const takes = total(instants.at(-1)!.have.map((count, at) => count * sites[at]!.slots));
        const full = instants.at(-1)!.have.every((count, at) => count >= sites[at]!.limit);
        if (!full && total(instants.at(-1)!.have) < replicas_max)
          expect(0.5 * takes).toBeGreaterThanOrEqual(load - 1e-6);
      }),
      { numRuns: 40 },
    );
  });

  it('do not start the same replica twice: from one to what is needed, and no more', () => {
    fc.assert(
      fc.property(fc.nat(1e6), (seed) => {
        // Where it is cheapest changes while they decide.
        const turn = (nth: number) => (at_s: number) => (Math.floor((at_s + seed) / 4) % 3 === nth ? 1 : 5);
        const sites = world.sites.map((site, nth) => ({ ...site, cost: 1, factor: turn(nth) }));
        const instants = simulateSites({ ...world, sites, seed, seconds: 110 });
        expect(Math.max(...instants.map(({ have }) => total(have)))).toBe(4);
        expect(total(instants.at(-1)!.have)).toBe(4);
      }),
      { numRuns: 30 },
    );
  });

  it('take over what a silent site had, and give it back without a dip below demand', () => {
    const away = (at_s: number): boolean => at_s >= 300 && at_s < 700;
    const instants = simulateSites({
      ...world,
      sites: [
        { ...world.sites[0]!, replicas: 2 },
        { ...world.sites[1]!, replicas: 2 },
      ],
      seconds: 2400,
      isUp: (site, at_s) => site === 0 || !away(at_s),
    });
    const [one, two] = world.sites;
    const at = (at_s: number): Instant => instants[at_s]!;
    expect(total(at(299).have)).toBe(4);
    // Nothing is done before the stated time is over; then the first site has all of it.
    expect(at(300 + 55).have[0]).toBe(at(299).have[0]);
    expect(at(300 + world.silent_s + 20).have[0]).toBe(4);
    for (const { at_s, serving } of instants.slice(500)) {
      const counted = away(at_s)
        ? serving[0]! * one!.slots
        : serving[0]! * one!.slots + serving[1]! * two!.slots;
      expect(0.5 * counted).toBeGreaterThanOrEqual(7);
    }
    for (const { have } of instants.slice(720)) expect(total(have)).toBeLessThanOrEqual(6);
    expect(total(instants.at(-1)!.have)).toBe(4);
    expect(instants.at(-1)!.have[1]).toBeGreaterThanOrEqual(2);
  });

  it('sleep together, and one of them wakes', () => {
    const instants = simulateSites({
      ...world,
      settings: { ...settings, replicas_min: 0 },
      load: (at_s) => (at_s < 60 || at_s > 600 ? 1 : 0),
      seconds: 700,
    });
    expect(total(instants[500]!.have)).toBe(0);
    expect(total(instants.at(-1)!.have)).toBe(1);
    expect(instants.at(-1)!.have[1]).toBe(1);
  });
});
