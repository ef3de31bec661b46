/** Keepers of several sites whose statements take their time: the judge of the division and of its delays. */
import { divideSites, type SiteStanding, type SitesSettings } from '../../../solver/scaling/divide-sites.ts';
import {
  type LastHeard,
  listen,
  presenceOf,
  type SiteClaim,
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
  const random = seededRandom(world.seed);
  const { sites, settings } = world;
  const isUp = world.isUp ?? (() => true);
  const keepers = sites.map(
    ({ replicas = 0 }): Keeper => ({
      claim: { replicas },
      have: replicas,
      serves_s: Array.from({ length: replicas }, () => 0),
      changed_s: -world.window_s,
      heard: sites.map(() => undefined),
      next_round_s: random() * round_s,
    }),
  );
  /** Statements on their way: `to` knows of it from `at_s` on. */
  const mail: { from: number; to: number; at_s: number; sent: number; said: SiteStanding }[] = [];
  /** What each site's own gateway publishes. */
  const published: (SiteStanding | undefined)[] = sites.map(() => undefined);
  const instants: Instant[] = [];
  let sent = 0;

  const standing = (at: number, at_s: number): SiteStanding => {
    const keeper = keepers[at]!;
    const entry = sites.findIndex((_, each) => isUp(each, at_s));
    const loads = Array.from({ length: world.window_s }, (_, back) =>
      at_s < back ? 0 : world.load(at_s - back),
    );
    const isEntry = entry === at;
    const serving = keeper.serves_s.filter((serves_s) => serves_s <= at_s).length;
    const quiet = at_s - keeper.changed_s >= world.window_s;
    return {
      site: `s${at}`,
      mean: isEntry ? world.load(at_s) : 0,
      peak: isEntry ? Math.max(...loads) : 0,
      asked: isEntry && loads.some((load) => load > 0),
      late: false,
      seen: at_s >= world.window_s,
      settled: quiet,
      have: keeper.have,
      serving,
      stuck: 0,
      claim: keeper.claim.replicas,
      limit: sites[at]!.limit,
      ready: sites[at]!.limit,
      slots: sites[at]!.slots,
      cost: sites[at]!.cost * (sites[at]!.factor?.(at_s) ?? 1),
    };
  };

  const round = (at: number, at_s: number): void => {
    const keeper = keepers[at]!;
    const now_ms = 1000 * at_s;
    const silent_ms = 1000 * world.silent_s;
    for (const [other] of sites.entries()) {
      if (other === at) continue;
      const arrived = mail.filter((each) => each.from === other && each.to === at && each.at_s <= at_s);
      const newest = arrived.reduce(
        (a, b) => (a === undefined || b.sent > a.sent ? b : a),
        undefined as (typeof mail)[number] | undefined,
      );
      keeper.heard[other] = listen(
        keeper.heard[other],
        newest && { at: newest.sent, said: newest.said },
        now_ms,
      );
    }
    const own = standing(at, at_s);
    const presences = sites.map((_, other) =>
      other === at ? ('there' as const) : presenceOf(keeper.heard[other]!, now_ms, silent_ms),
    );
    if (!presences.includes('waited_for')) {
      const counted = sites.flatMap((_, other) =>
        other === at ? [own] : presences[other] === 'there' ? [keeper.heard[other]!.said!] : [],
      );
      const { claims } = divideSites(counted, settings);
      const target = claims[counted.indexOf(own)]!;
      const step = stepClaim({ claim: keeper.claim, target, published: published[at]?.claim, now_ms });
      keeper.claim = step.claim;
      if (step.act !== undefined && step.act !== keeper.have) act(keeper, step.act, at_s);
    }
    // What is said after the decision, and on its way at once.
    const said = standing(at, at_s);
    published[at] = said;
    sent++;
    for (const [to] of sites.entries())
      if (to !== at && isUp(to, at_s))
        mail.push({ from: at, to, at_s: at_s + random() * world.delay_s, sent, said });
  };

  const act = (keeper: Keeper, replicas: number, at_s: number): void => {
    while (keeper.serves_s.length < replicas) keeper.serves_s.push(at_s + world.lead_s);
    keeper.serves_s.sort((a, b) => a - b);
    keeper.serves_s.length = replicas;
    keeper.have = replicas;
    keeper.changed_s = at_s;
  };

  for (let at_s = 0; at_s < world.seconds; at_s++) {
    for (const [at, keeper] of keepers.entries()) {
      if (at_s < keeper.next_round_s) continue;
      keeper.next_round_s = at_s + 1 + Math.floor(random() * round_s);
      if (isUp(at, at_s)) round(at, at_s);
    }
    for (let index = mail.length - 1; index >= 0; index--)
      if (mail[index]!.at_s < at_s - 4 * round_s) mail.splice(index, 1);
    instants.push({
      at_s,
      have: keepers.map(({ have }) => have),
      serving: keepers.map(({ serves_s }) => serves_s.filter((each) => each <= at_s).length),
      load: world.load(at_s),
    });
  }
  return instants;
}
