/** Keepers of several sites whose statements take their time: the judge of the division and of its delays. */
import { divideSites, type SiteStanding, type SitesSettings } from '../../../solver/scaling/divide-sites.ts';
import {
  hearSite,
  type LastHeard,
  type SiteClaim,
  sitePresence,
  stepClaim,
} from '../../../solver/scaling/site-claims.ts';
import { seededRandom } from '../../../solver/simulator/random.ts';

export interface WorldSite {
  slots: number;
  cost: number;
  limit: number;
  /** What a replica costs as a share of `cost`, as it changes. */
  factor?: (at_s: number) => number;
  /** Replicas it begins with. */
  replicas?: number;
}

export interface SitesWorld {
  seed: number;
  sites: readonly WorldSite[];
  settings: SitesSettings;
  seconds: number;
  /** Requests at once, all at the gateway of the first site that is up. */
  load: (at_s: number) => number;
  /** A statement takes so long at most. */
  delay_s: number;
  /** From the decision until a replica serves. */
  lead_s: number;
  window_s: number;
  silent_s: number;
  /** Whether the keeper of a site lives and is heard; what runs there goes on. */
  isUp?: (site: number, at_s: number) => boolean;
}

interface Keeper {
  claim: SiteClaim;
  have: number;
  /** When each replica serves, s. */
  serves_s: number[];
  changed_s: number;
  heard: (LastHeard<SiteStanding> | undefined)[];
  next_round_s: number;
}

export interface Instant {
  at_s: number;
  have: number[];
  serving: number[];
  load: number;
}

/** Keepers come round at intervals of their own, up to this one. */
const round_s = 5;

export function simulateSites(world: SitesWorld): Instant[] {
  return new Simulation(world).run();
}

/** A statement on its way: the other site knows of it from `at_s` on. */
interface Letter {
  from: number;
  to: number;
  at_s: number;
  sent: number;
  said: SiteStanding;
}

class Simulation {
  readonly #world: SitesWorld;
  readonly #random: () => number;
  readonly #keepers: Keeper[];
  /** What each site's own gateway publishes. */
  readonly #published: (SiteStanding | undefined)[];
  #mail: Letter[] = [];
  #sent = 0;

  constructor(world: SitesWorld) {
    this.#world = world;
    this.#random = seededRandom(world.seed);
    this.#published = world.sites.map(() => undefined);
    this.#keepers = world.sites.map(
      ({ replicas = 0 }): Keeper => ({
        claim: { replicas },
        have: replicas,
        serves_s: Array.from({ length: replicas }, () => 0),
        changed_s: -world.window_s,
        heard: world.sites.map(() => undefined),
        next_round_s: this.#random() * round_s,
      }),
    );
  }

  run(): Instant[] {
    return Array.from({ length: this.#world.seconds }, (_, at_s) => this.#second(at_s));
  }

  #second(at_s: number): Instant {
    for (const [at, keeper] of this.#keepers.entries()) {
      if (at_s < keeper.next_round_s) continue;
      keeper.next_round_s = at_s + 1 + Math.floor(this.#random() * round_s);
      if (this.#isUp(at, at_s)) this.#round(at, at_s);
    }
    this.#mail = this.#mail.filter((letter) => letter.at_s >= at_s - 4 * round_s);
    return {
      at_s,
      have: this.#keepers.map(({ have }) => have),
      serving: this.#keepers.map((keeper) => servingAt(keeper, at_s)),
      load: this.#world.load(at_s),
    };
  }

  #isUp(site: number, at_s: number): boolean {
    return this.#world.isUp?.(site, at_s) ?? true;
  }

  #round(at: number, at_s: number): void {
    const keeper = this.#keepers[at]!;
    this.#hear(at, at_s);
    const target = this.#target(at, at_s);
    if (target !== undefined) {
      const published = this.#published[at]?.claim;
      const step = stepClaim({ claim: keeper.claim, target, published, now_ms: 1000 * at_s });
      keeper.claim = step.claim;
      if (step.act !== undefined && step.act !== keeper.have) this.#act(keeper, step.act, at_s);
    }
    // What is said after the decision is on its way at once.
    const said = this.#standing(at, at_s);
    this.#published[at] = said;
    const sent = ++this.#sent;
    for (const [to] of this.#keepers.entries()) {
      const arrives_s = at_s + this.#random() * this.#world.delay_s;
      if (to !== at && this.#isUp(to, at_s)) this.#mail.push({ from: at, to, at_s: arrives_s, sent, said });
    }
  }

  #hear(at: number, at_s: number): void {
    const { heard } = this.#keepers[at]!;
    for (const [other] of this.#keepers.entries()) {
      if (other === at) continue;
      const arrived = this.#mail.filter(({ from, to, at_s: arrives_s }) => {
        return from === other && to === at && arrives_s <= at_s;
      });
      const newest = arrived.sort((a, b) => b.sent - a.sent)[0];
      heard[other] = hearSite(heard[other], newest && { at: newest.sent, said: newest.said }, 1000 * at_s);
    }
  }

  /** Undefined while it waits for one that it has not heard yet. */
  #target(at: number, at_s: number): number | undefined {
    const { heard } = this.#keepers[at]!;
    const own = this.#standing(at, at_s);
    const counted: SiteStanding[] = [];
    for (const [other] of this.#keepers.entries()) {
      const last = heard[other];
      if (last === undefined) {
        counted.push(own);
        continue;
      }
      const presence = sitePresence(last, 1000 * at_s, 1000 * this.#world.silent_s);
      if (presence === 'waited_for') return undefined;
      if (presence === 'there') counted.push(last.said!);
    }
    return divideSites(counted, this.#world.settings).claims[counted.indexOf(own)]!;
  }

  #standing(at: number, at_s: number): SiteStanding {
    const { load, window_s, sites } = this.#world;
    const keeper = this.#keepers[at]!;
    const { slots, cost, limit, factor } = sites[at]!;
    const isEntry = sites.findIndex((_, each) => this.#isUp(each, at_s)) === at;
    const loads = Array.from({ length: isEntry ? window_s : 0 }, (_, back) =>
      at_s < back ? 0 : load(at_s - back),
    );
    return {
      site: `s${at}`,
      mean: isEntry ? load(at_s) : 0,
      peak: Math.max(0, ...loads),
      asked: loads.some((each) => each > 0),
      late: false,
      seen: at_s >= window_s,
      settled: at_s - keeper.changed_s >= window_s,
      have: keeper.have,
      serving: servingAt(keeper, at_s),
      stuck: 0,
      claim: keeper.claim.replicas,
      limit,
      ready: limit,
      slots,
      cost: cost * (factor?.(at_s) ?? 1),
    };
  }

  #act(keeper: Keeper, replicas: number, at_s: number): void {
    while (keeper.serves_s.length < replicas) keeper.serves_s.push(at_s + this.#world.lead_s);
    keeper.serves_s.sort((a, b) => a - b);
    keeper.serves_s.length = replicas;
    keeper.have = replicas;
    keeper.changed_s = at_s;
  }
}

function servingAt({ serves_s }: Keeper, at_s: number): number {
  return serves_s.filter((each) => each <= at_s).length;
}
