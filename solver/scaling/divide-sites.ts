/**
 * How many replicas each site is to have of a model that follows demand over several of them. Every keeper asks this of
 * the same statements and carries out its own number alone, so it is pure, and says the same to all:
 *
 *   more are needed     ─► where a place for a request at once costs least, on nodes that are free if there are any
 *   fewer are needed    ─► what does not serve first, then the dearest; never below demand
 *   neither             ─► a replica may move to a site that is much cheaper: there it starts, then here one leaves
 *
 * Sites say what they are about to have (`claim`) before they do it. It begins with what they have, and where something
 * is to be added or taken away those come first that said they would, in the order of the sites: of two that mean to
 * add the same replica, both see who is to before either begins, also where prices and demand look a little different
 * to each.
 */
import { busy_share, down_share, figure } from './scale.ts';

/** A site as it stands by its own word. */
export interface SiteStanding {
  site: string;
  /** Requests at once at its gateways: of late, and at most of a window. */
  mean: number;
  peak: number;
  /** Somebody asked there within the window; first tokens come too late there. */
  asked: boolean;
  late: boolean;
  /** Demand was looked at for a whole window, and nothing was changed in it. */
  seen: boolean;
  settled: boolean;
  /** Replicas wanted there; of them, those that serve, and those that wait for longer than a start takes. */
  have: number;
  serving: number;
  stuck: number;
  /** Replicas it is about to have. */
  claim: number;
  /** Most it could run, and most without waiting for others' jobs. */
  limit: number;
  ready: number;
  /** Requests at once that a replica takes there. */
  slots: number;
  /** Of the next replica, in the same unit at all sites. */
  cost: number;
}

export interface SitesSettings {
  /** Over all sites. */
  replicas_min: number;
  replicas_max: number;
  /** See `ScalingSettings`. */
  target: number;
}

export interface SitesDivision {
  /** Replicas that each site is to have, in the order of the question. */
  claims: number[];
  because: string;
}

/**
 * A replica moves to another site only if one costs less than this share of it there. Lower: fewer moves; higher:
 * cheaper sooner.
 */
const cheaper_share = 0.75;

/** @param sites those whose word counts, in the same order at all of them */
export function divideSites(sites: readonly SiteStanding[], settings: SitesSettings): SitesDivision {
  const division = new Division(sites, settings);
  return (
    division.grown() ??
    division.cut() ??
    division.shrunk() ??
    division.moved() ?? { claims: division.claims, because: 'as many as are needed' }
  );
}

class Division {
  readonly #sites: readonly SiteStanding[];
  readonly #settings: SitesSettings;
  readonly #load: number;
  readonly #peak: number;
  readonly #floor: number;
  readonly claims: number[];

  constructor(sites: readonly SiteStanding[], settings: SitesSettings) {
    this.#sites = sites;
    this.#settings = settings;
    this.#load = sum(sites.map(({ mean }) => mean));
    // Peaks of two sites need not be at the same time: their sum is the most that there can have been.
    this.#peak = Math.max(this.#load, sum(sites.map(({ peak }) => peak)));
    const asked = sites.some((site) => site.asked);
    this.#floor = Math.min(settings.replicas_max, Math.max(settings.replicas_min, Number(asked)));
    this.claims = sites.map(({ have }) => have);
  }

  /** More where demand, the minimum or a missed objective asks for it. */
  grown(): SitesDivision | undefined {
    const { replicas_max, target } = this.#settings;
    const before = sum(this.claims);
    const late = this.#missesObjective();
    const needed = this.#load / target;
    const lacks = (): boolean =>
      sum(this.claims) < this.#floor ||
      this.#working() < needed - rounding ||
      (late && sum(this.claims) === before);
    while (lacks() && sum(this.claims) < replicas_max) {
      const at = this.#cheapestWithRoom();
      if (at === undefined) break;
      this.claims[at]!++;
    }
    if (sum(this.claims) === before) return undefined;
    return { claims: this.claims, because: this.#growthReason(before, late) };
  }

  /** Back to the maximum, where a site that was given up came back with its replicas. */
  cut(): SitesDivision | undefined {
    const { replicas_max } = this.#settings;
    if (sum(this.claims) <= replicas_max) return undefined;
    while (sum(this.claims) > replicas_max) this.claims[this.#firstToLeave(() => true)!]!--;
    return { claims: this.claims, because: `there may be ${replicas_max} at most` };
  }

  /**
   * Fewer where demand of a whole window leaves that much room. First those that are much dearer than elsewhere, also
   * where the others then just suffice: the end of a move, of which the cheap one may not go instead.
   */
  shrunk(): SitesDivision | undefined {
    const before = sum(this.claims);
    if (!this.#isQuiet()) return undefined;
    const moved = this.#isAtRest() ? this.#takeDearSpares() : undefined;
    const needed = this.#peak / (down_share * this.#settings.target);
    while (sum(this.claims) > this.#floor) {
      const at = this.#firstToLeave((site) => this.#capacity() - site.slots >= needed - rounding);
      if (at === undefined) break;
      this.claims[at]!--;
    }
    if (sum(this.claims) === before) return undefined;
    const because =
      this.#peak === 0
        ? 'nobody has asked for a whole window'
        : (moved ?? `at most ${figure(this.#peak)} requests at once in a whole window`);
    return { claims: this.claims, because };
  }

  /** @returns why, where it took any */
  #takeDearSpares(): string | undefined {
    for (let because: string | undefined; ; ) {
      const from = this.#leaves((site, at) => this.claims[at]! > 0 && this.#isSpare(site));
      const to = this.#cheapest((site, at) => this.claims[at]! > 0 || this.claims[at]! < site.ready);
      if (to === undefined || from === undefined || !this.#isMuchCheaper(to, from)) return because;
      this.claims[from]!--;
      because = this.#moveReason(to, from);
    }
  }

  /** The beginning of a move: what takes the place of a replica starts at a site that is much cheaper. */
  moved(): SitesDivision | undefined {
    if (!this.#isAtRest()) return undefined;
    const to = this.#comes((site, at) => this.claims[at]! < site.ready);
    const from = this.#leaves((_, at) => this.claims[at]! > 0);
    if (to === undefined || from === undefined || !this.#isMuchCheaper(to, from)) return undefined;
    const added = this.#insteadOf(to, from);
    if (added === undefined) return undefined;
    this.claims[to]! += added;
    return { claims: this.claims, because: this.#moveReason(to, from) };
  }

  /** Requests at once that all take. */
  #capacity(): number {
    return sum(this.#sites.map(({ slots }, at) => slots * this.claims[at]!));
  }

  /** The same without what waits for longer than a start takes: nobody knows when that comes. */
  #working(): number {
    const waiting = this.#sites.map(({ slots, stuck }, at) => slots * Math.min(stuck, this.claims[at]!));
    return this.#capacity() - sum(waiting);
  }

  /** Nothing was changed for a window, and what was started serves, or cannot be counted on. */
  #isQuiet(): boolean {
    return this.#sites.every(
      ({ seen, settled, have, serving, stuck }) => seen && settled && serving + stuck >= have,
    );
  }

  /** All there are serve; and nothing is there to make first tokens come sooner. */
  #isAtRest(): boolean {
    const serves = this.#sites.every(({ have, serving }) => serving === have);
    return serves && this.#isQuiet() && !this.#sites.some(({ late }) => late);
  }

  #missesObjective(): boolean {
    const serving = sum(this.#sites.map((site) => site.serving));
    const busy = this.#load >= busy_share * this.#settings.target * this.#capacity();
    return busy && serving >= sum(this.claims) && this.#sites.some(({ late }) => late);
  }

  /** What is left without one replica of a site takes all demand, with no room beyond the target. */
  #isSpare({ slots }: SiteStanding): boolean {
    const needed = this.#peak / this.#settings.target;
    return sum(this.claims) > this.#floor && this.#capacity() - slots >= needed - rounding;
  }

  /** Replicas of one site that take the place of one of another; undefined where they do not fit in or do not pay. */
  #insteadOf(to: number, from: number): number | undefined {
    const { replicas_max, target } = this.#settings;
    const [cheap, dear] = [this.#sites[to]!, this.#sites[from]!];
    const lacks = this.#peak / target - (this.#capacity() - dear.slots);
    const added = Math.max(1, Math.ceil(lacks / cheap.slots - rounding));
    const room = Math.min(cheap.ready - this.claims[to]!, replicas_max - sum(this.claims));
    return added <= room && added * cheap.cost < cheaper_share * dear.cost ? added : undefined;
  }

  #isMuchCheaper(to: number, from: number): boolean {
    return to !== from && priceOf(this.#sites[to]!) < cheaper_share * priceOf(this.#sites[from]!);
  }

  #cheapestWithRoom(): number | undefined {
    return (
      this.#comes(({ ready, stuck }, at) => this.claims[at]! < ready && stuck === 0) ??
      this.#cheapest(({ limit, stuck }, at) => this.claims[at]! < limit && stuck === 0)
    );
  }

  /** One that said that it would have more, as far as it can; else the cheapest. */
  #comes(accepts: (site: SiteStanding, at: number) => boolean): number | undefined {
    const said = this.#sites.findIndex(
      ({ claim, limit, stuck }, at) => this.claims[at]! < Math.min(claim, limit) && stuck === 0,
    );
    return said >= 0 ? said : this.#cheapest(accepts);
  }

  /** One that said that it would have fewer; else the dearest. */
  #leaves(accepts: (site: SiteStanding, at: number) => boolean): number | undefined {
    const said = this.#sites.findIndex((site, at) => this.claims[at]! > site.claim && accepts(site, at));
    return said >= 0 ? said : this.#dearest(accepts);
  }

  #firstToLeave(mayLeave: (site: SiteStanding) => boolean): number | undefined {
    const has = (site: SiteStanding, at: number): boolean => this.claims[at]! > 0 && mayLeave(site);
    return this.#leaves((site, at) => has(site, at) && this.claims[at]! > site.serving) ?? this.#leaves(has);
  }

  /** The first one of those that cost the same. */
  #cheapest(accepts: (site: SiteStanding, at: number) => boolean): number | undefined {
    return this.#best(accepts, (a, b) => priceOf(a) < priceOf(b));
  }

  /** The last one of those that cost the same: what came first stays. */
  #dearest(accepts: (site: SiteStanding, at: number) => boolean): number | undefined {
    return this.#best(accepts, (a, b) => priceOf(a) >= priceOf(b));
  }

  #best(
    accepts: (site: SiteStanding, at: number) => boolean,
    isBetter: (a: SiteStanding, b: SiteStanding) => boolean,
  ): number | undefined {
    let best: number | undefined;
    for (const [at, site] of this.#sites.entries())
      if (accepts(site, at) && (best === undefined || isBetter(site, this.#sites[best]!))) best = at;
    return best;
  }

  #growthReason(before: number, late: boolean): string {
    const { target } = this.#settings;
    const had = sum(this.#sites.map(({ slots, have }) => slots * have));
    if (this.#load / target > had) {
      if (before === 0) return 'a request came';
      return `${figure(this.#load)} requests at once, and replicas that compute ${had}`;
    }
    if (before < this.#floor)
      return this.#settings.replicas_min > before ? 'so many are always on' : 'a request came';
    if (late) return `${figure(this.#load)} requests at once, and first tokens that come late`;
    return `${figure(this.#load)} requests at once, and replicas that wait for longer than a start takes`;
  }

  #moveReason(to: number, from: number): string {
    const [cheap, dear] = [this.#sites[to]!, this.#sites[from]!];
    return `a replica on ${dear.site} moves to ${cheap.site}: ${points(cheap)} against ${points(dear)} for each request at once`;
  }
}

/** A rounding error must not start a replica. */
const rounding = 1e-9;

/** Of a place for one request. */
function priceOf({ cost, slots }: SiteStanding): number {
  return cost / slots;
}

function points(site: SiteStanding): string {
  return Number(priceOf(site).toPrecision(2)).toString();
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
