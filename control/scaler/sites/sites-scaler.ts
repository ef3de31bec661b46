import { alwaysOnReplicas } from '../../../solver/locality/always-on-floor.ts';
import { divideSites, type SiteStanding } from '../../../solver/scaling/divide-sites.ts';
import { hearSite, type LastHeard, sitePresence, stepClaim } from '../../../solver/scaling/site-claims.ts';
import type { ModelSpec } from '../../../spec/model-yaml.ts';
import {
  type ScalingPeer,
  type ScalingStatement,
  type StatedModel,
  stated_models_max,
  stated_peers_max,
} from '../../../spec/scaling-statement.ts';
import type { ModelShare } from '../../../spec/site-share.ts';
import type { Operations } from '../../runner/operations.ts';
import type { DeploymentState } from '../../state/deployment-state.ts';
import { type Heard, readHeard, writeStatement } from './exchange-files.ts';
import { readSitesFile, type SitesModel, writeSitesFile } from './sites-file.ts';

/**
 * Between two statements that say the same, ms: a sign of life. Lower: a silent site is known sooner; higher: fewer
 * records on their way.
 */
const heartbeat_ms = 4_000;
/** Between two statements at least, ms. */
const statement_ms_min = 1_000;

/** What this site measured and has of a model, without what it means to do. */
export type SiteFacts = Omit<StatedModel, 'deployment' | 'of' | 'model' | 'claim'>;

export interface OverAllSites {
  have: number;
  claim: number;
  serving: number;
  wake_s: number;
}

export interface SitesDecision {
  /** Replicas there are to be here now; absent: as there are. */
  act?: number;
  because: string;
  /** Over all sites that count; absent: nothing is decided now. */
  all?: OverAllSites;
}

/**
 * This site's part in dividing replicas over several: listens to the others, asks the same pure division that they ask,
 * says what this site is about to have, and lets it be done once nobody objects. What it knows is written down each
 * round, for `status` and for the keeper that comes after.
 */
export class SitesScaler {
  readonly #operations: Operations;
  readonly #models: Map<string, SitesModel>;
  #heard: Heard = { sites: new Map() };
  #wanted: readonly DeploymentState[] = [];
  /** What was said last; absent: nothing is. */
  #said: { at_ms: number; models: string } | undefined;

  constructor(operations: Operations) {
    this.#operations = operations;
    this.#models = new Map(readSitesFile(operations.store.layout).map((each) => [keyOf(each), each]));
    // A keeper before this one may have left its statement behind.
    if (this.#models.size > 0) this.#said = { at_ms: Number.NEGATIVE_INFINITY, models: '' };
  }

  /** Hears what the others say now; once before the deployments of a round. */
  read(states: readonly DeploymentState[]): void {
    this.#wanted = states;
    const keys = new Set(
      states.flatMap((state) =>
        state.spec.models.flatMap((model) => (shareHere(state, model) ? [keyOf(namesOf(state, model))] : [])),
      ),
    );
    for (const key of this.#models.keys()) if (!keys.has(key)) this.#models.delete(key);
    if (keys.size > 0) this.#heard = readHeard(this.#operations.store.layout);
  }

  /** @param no_room why there is no place here for a further replica; undefined: there is one */
  decide(state: DeploymentState, model: ModelSpec, facts: SiteFacts, no_room?: string): SitesDecision {
    const now_ms = this.#operations.now_ms();
    const names = namesOf(state, model);
    const known = this.#models.get(keyOf(names));
    const claim = known?.claim ?? { replicas: facts.have };
    const own: StatedModel = { ...names, ...facts, claim: claim.replicas };
    const published = hearSite(known?.published, entryIn(this.#heard.own, names), now_ms);
    const heard = this.#listen(state, model, known, now_ms);
    const silent_ms = 1000 * this.#operations.loaded.site.keeper.sites_silent_s;
    const presence = (each: LastHeard<unknown>) => sitePresence(each, now_ms, silent_ms);
    const next: SitesModel = {
      ...names,
      claim,
      own,
      heard,
      published,
      looked_ms: now_ms,
      because: known?.because ?? 'as it was deployed',
      since_ms: known?.since_ms ?? now_ms,
      divided: known?.divided,
      no_room,
      silent: heard.filter((each) => presence(each) === 'silent').map(({ site }) => site),
    };
    this.#models.set(keyOf(names), next);
    const counted = this.#inOrder(
      state,
      model,
      own,
      heard.filter((each) => presence(each) === 'there'),
    );
    const awaited = heard.filter((each) => presence(each) === 'waited_for').map(({ site }) => site);
    if (presence(published) !== 'there') next.held = 'no gateway of this site publishes what it says';
    else if (awaited.length > 0) next.held = `nothing was heard of ${awaited.join(' and ')} yet`;
    if (next.held !== undefined) return { because: next.held };

    const { min, max, target } = { ...model.scaling!, min: alwaysOnReplicas(model.scaling!) };
    const divided = divideSites(counted, { replicas_min: min, replicas_max: max, target });
    const at = counted.findIndex(({ site }) => site === state.site);
    const step = stepClaim({ claim, target: divided.claims[at]!, published: published.said?.claim, now_ms });
    next.claim = step.claim;
    next.own = { ...own, claim: step.claim.replicas };
    const before = known?.divided ?? counted.map(({ have }) => have);
    if (divided.claims.join() !== before.join()) {
      next.because = divided.because;
      next.since_ms = now_ms;
    }
    next.divided = divided.claims;
    const all = { ...totalOf(counted), claim: sum(divided.claims) };
    const decision: SitesDecision = { because: next.because, all };
    if (step.act !== undefined && step.act !== facts.have) decision.act = step.act;
    return decision;
  }

  /** Says it, and writes down what is known, where it is time to; once after the deployments of a round. */
  publish(): void {
    const { layout } = this.#operations.store;
    const known = [...this.#models.values()];
    const models = known.map(({ own }) => own).slice(0, stated_models_max);
    const at_ms = this.#operations.now_ms();
    if (models.length === 0) {
      if (this.#said) writeStatement(layout, undefined);
      if (this.#said) writeSitesFile(layout, []);
      this.#said = undefined;
      return;
    }
    const text = JSON.stringify(models);
    const since_ms = at_ms - (this.#said?.at_ms ?? Number.NEGATIVE_INFINITY);
    if (since_ms < (text === this.#said?.models ? heartbeat_ms : statement_ms_min)) return;
    const statement: ScalingStatement = { format: 1, at: Math.floor(at_ms), models };
    writeStatement(layout, { statement, peers: this.#peers() });
    writeSitesFile(layout, known);
    this.#said = { at_ms, models: text };
  }

  #listen(
    state: DeploymentState,
    model: ModelSpec,
    known: SitesModel | undefined,
    now_ms: number,
  ): SitesModel['heard'] {
    const names = namesOf(state, model);
    return membersOf(state, model)
      .filter((site) => site !== state.site)
      .map((site) => {
        const before = known?.heard.find((each) => each.site === site);
        return { site, ...hearSite(before, entryIn(this.#heard.sites.get(site), names), now_ms) };
      });
  }

  /** As the share names them: all keepers count in the same order. */
  #inOrder(
    state: DeploymentState,
    model: ModelSpec,
    own: StatedModel,
    there: SitesModel['heard'],
  ): (SiteStanding & { wake_s: number })[] {
    return membersOf(state, model).flatMap((site) => {
      const said = site === state.site ? own : there.find((each) => each.site === site)?.said;
      return said ? [{ ...said, site }] : [];
    });
  }

  /** Whose word gateways bring back here. */
  #peers(): ScalingPeer[] {
    const peers = new Map<string, ScalingPeer>();
    for (const state of this.#wanted) {
      const models = state.spec.models.filter((model) => shareHere(state, model));
      if (models.length === 0) continue;
      for (const { site, provider_id } of state.spec.share!.sites)
        if (site !== state.site && provider_id !== undefined)
          peers.set(`${site} ${provider_id}`, { site, provider_id });
    }
    return [...peers.values()].slice(0, stated_peers_max);
  }
}

/** This site's share of a model whose replicas follow demand over several sites; undefined for any other model. */
export function shareHere({ spec, site }: DeploymentState, model: ModelSpec): ModelShare | undefined {
  if (!model.scaling || !spec.share) return undefined;
  const having = spec.share.sites.filter(({ models }) => models.some(({ name }) => name === model.name));
  if (having.length < 2) return undefined;
  return having.find((each) => each.site === site)?.models.find(({ name }) => name === model.name);
}

function membersOf({ spec }: DeploymentState, model: ModelSpec): string[] {
  return spec.share!.sites.flatMap(({ site, models }) =>
    models.some(({ name }) => name === model.name) ? [site] : [],
  );
}

type Names = Pick<StatedModel, 'deployment' | 'of' | 'model'>;

function namesOf({ name, spec }: DeploymentState, model: ModelSpec): Names {
  return { deployment: name, of: spec.share!.of, model: model.name };
}

function keyOf({ deployment, of, model }: Names): string {
  return JSON.stringify([deployment, of, model]);
}

function entryIn(
  statement: ScalingStatement | undefined,
  names: Names,
): { at: number; said: StatedModel } | undefined {
  const said = statement?.models.find((each) => keyOf(each) === keyOf(names));
  return said && { at: statement!.at, said };
}

function totalOf(sites: readonly (SiteStanding & { wake_s: number })[]): OverAllSites {
  return {
    have: sum(sites.map(({ have }) => have)),
    claim: sum(sites.map(({ claim }) => claim)),
    serving: sum(sites.map(({ serving }) => serving)),
    // Which of them wakes is not known before one does.
    wake_s: Math.max(...sites.map(({ wake_s }) => wake_s)),
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
