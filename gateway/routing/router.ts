import { type AliasMember, expectedWait, orderMembers } from '../../solver/routing/alias.ts';
import {
  type PromptKeys,
  type RoutedRequest,
  type RoutingPolicy,
  requestsAt,
} from '../../solver/routing/candidate.ts';
import { filtered, type RouteFilter } from '../../solver/routing/filter.ts';
import { leastLoad } from '../../solver/routing/least-load.ts';
import type { PromptBlocks } from '../../solver/routing/model-prefixes.ts';
import { byPool } from '../../solver/routing/pools.ts';
import { retryAfter_s } from '../../solver/routing/retry-after.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { PoolName } from '../../spec/model-pools.ts';
import type { SessionLink } from '../session-link.ts';
import type { PromptKnowledge } from './prompt-knowledge.ts';
import type { Replica } from './replica.ts';
import type { ServiceTimes } from './service-times.ts';
import type { Route, RoutingTable } from './table.ts';

/** What the router is told of a request. */
export interface RouteRequest {
  model: string;
  /** Absent: everybody may answer. Compared by identity: requests that ask for the same share one object. */
  filter?: RouteFilter | undefined;
  prompt?: PromptKeys | undefined;
  blocks?: PromptBlocks | undefined;
  /** Tokens that its prompt has at most; what counts where nothing better is known of it. */
  prompt_tokens_max?: number | undefined;
  /** Models that its key may ask for; absent: all of them. No other is named to it. */
  names?: readonly string[] | undefined;
}

export interface RouterParts {
  table: RoutingTable<SessionLink>;
  policy: RoutingPolicy;
  serviceTimes: Pick<ServiceTimes, 'of' | 'measured'>;
  prompts: PromptKnowledge;
  /** Longest time that a request may be expected to wait for its turn, where that is longer than one answer takes. */
  wait_max_s: number;
  /** Mean length of prompt and answer together. */
  expectedLength_tokens(model: string): number;
  /** Why nobody can answer for a model, and when to try again. */
  explainAbsence(model: string, names?: readonly string[]): Promise<Refusal>;
  /** In how many seconds a job may bring a replica of a model that has had none for so long; undefined: none will. */
  jobComesIn_s(model: string, lost_for_s: number): Promise<number | undefined>;
}

export interface Refusal {
  error: HpcserveError;
  retry_after_s?: number;
  /** The model sleeps and is being started for this request: expected to answer after so long. */
  wakes_in_s?: number;
  /** A job of it runs that has told nobody of a replica yet: it may be there at any moment. */
  comes_soon?: boolean;
}

type Link = Replica<SessionLink>;

interface Allowed {
  kept: Link[];
  /** Then one of them may be out; Unix ms. */
  until_ms?: number;
}

/** Brings table, filters and policy together: who is to answer a request. */
export class Router {
  readonly #parts: RouterParts;
  /** Prompts are spread over a prefill pool: computed beside one another, each would only be later. */
  readonly #prefillPolicy: RoutingPolicy;
  /** Who may answer, by route and filter: a table that changes has new routes. */
  readonly #allowed = new WeakMap<Route<SessionLink>, WeakMap<RouteFilter, Allowed>>();

  constructor(parts: RouterParts) {
    this.#parts = parts;
    this.#prefillPolicy = leastLoad(parts.policy.queue_length);
  }

  /** The replica to send a new request to; undefined where there is none, or the wait would be too long. */
  choose(request: RouteRequest, tried: readonly string[]): Link | undefined {
    const route = this.#parts.table.find(request.model);
    if (!route) return undefined;
    const candidates = this.#of(route, request.filter);
    if (route.models.length === 1) return this.#ask(candidates, route.models[0]!, request, tried);
    for (const { model, candidates: own } of this.#members(candidates)) {
      const chosen = this.#ask(own, model, request, tried);
      if (chosen) return chosen;
    }
    return undefined;
  }

  /** Replicas that would answer now. */
  candidates({ model, filter }: RouteRequest): readonly Link[] {
    const route = this.#parts.table.find(model);
    return route ? this.#of(route, filter) : [];
  }

  /** Replicas that load and that the request may go to once they answer. */
  coming({ model, filter }: RouteRequest): readonly Link[] {
    const coming = this.#parts.table.find(model)?.coming ?? [];
    return filter ? filtered(coming, ({ facts }) => facts, filter).kept : coming;
  }

  /** See `RouterParts`. */
  jobComesIn_s(model: string, lost_for_s: number): Promise<number | undefined> {
    return this.#parts.jobComesIn_s(model, lost_for_s);
  }

  /** See `RoutingTable`. */
  lostAt_ms(name: string): number | undefined {
    return this.#parts.table.lostAt_ms(name);
  }

  /** Engines of the replicas behind a name; of one that is not ours to start, nothing is known. */
  enginesOf(name: string): readonly (string | undefined)[] {
    return (this.#parts.table.find(name)?.candidates ?? []).map(({ session }) => session.facts.engine);
  }

  /** Longest context of the replicas behind a name, tokens; without limit where there is none. */
  contextOf(name: string): number {
    const route = this.#parts.table.find(name);
    let longest = 0;
    for (const { served } of route?.candidates ?? []) longest = Math.max(longest, served.context_tokens);
    return longest > 0 ? longest : Number.POSITIVE_INFINITY;
  }

  /** Of the models that share a name, the one that a refused request is counted for; the name where it has none. */
  modelOf(name: string): string {
    return this.#parts.table.find(name)?.models[0] ?? name;
  }

  /**
   * The replica that goes on with an answer of `model`; waiting counts less than what the client already has. Without
   * keys and values its prompt is computed again, where prompts are.
   * @param expected_at session that has keys and values of it
   */
  chooseToContinue(
    request: RouteRequest,
    model: string,
    accepts: (replica: Link) => boolean,
    tried: readonly string[],
    expected_at?: string,
  ): Link | undefined {
    const route = this.#parts.table.find(request.model);
    if (!route) return undefined;
    const candidates = this.#of(route, request.filter).filter(
      (replica) => replica.served.name === model && accepts(replica),
    );
    const expected = candidates.find(({ session_id }) => session_id === expected_at);
    if (expected && !tried.includes(expected.session_id)) return expected;
    const routed = this.#routed(model, request);
    for (const { pool, members } of byPool(candidates, undefined)) {
      const chosen = this.#policyOf(pool).choose(members, routed, tried, seed());
      if (chosen) return chosen;
    }
    return undefined;
  }

  /** Why nobody takes a request. */
  async refusal({ model, filter, names }: RouteRequest): Promise<Refusal> {
    const { table, explainAbsence } = this.#parts;
    const route = table.find(model);
    if (!route) return explainAbsence(model, names);
    const candidates = this.#of(route, filter);
    if (candidates.length > 0) return this.#busy(model, candidates);
    const excluded = filter ? excludedBy([...route.candidates, ...route.others], filter) : undefined;
    if (excluded && excluded.kept === 0 && filter?.can_wait)
      return waitsForIdleNodes(model, excluded.reasons);
    if (excluded && excluded.kept === 0)
      return {
        error: new HpcserveError('E_MODEL_EXCLUDED', {
          what: `none of the ${excluded.all} replicas of ${model} is one that this request may go to`,
          because: excluded.reasons,
        }),
      };
    const absence = await explainAbsence(model, names);
    if (!excluded || excluded.reasons.length === 0) return absence;
    const { error } = absence;
    return {
      ...absence,
      error: new HpcserveError(error.code, {
        what: error.message,
        because: [...error.because, ...excluded.reasons],
        details: error.details,
      }),
    };
  }

  #of(route: Route<SessionLink>, filter: RouteFilter | undefined): readonly Link[] {
    if (!filter) return route.candidates;
    let byFilter = this.#allowed.get(route);
    if (!byFilter) {
      byFilter = new WeakMap();
      this.#allowed.set(route, byFilter);
    }
    let allowed = byFilter.get(filter);
    if (!allowed || (allowed.until_ms !== undefined && Date.now() >= allowed.until_ms)) {
      const { kept } = filtered(route.candidates, ({ facts }) => facts, filter);
      const ends_ms = kept.flatMap(({ proven_until_ms }) => proven_until_ms ?? []);
      // Only where providers are asked for it matters that what proves them ends.
      const ends = filter.providers.length > 0 && ends_ms.length > 0;
      allowed = { kept };
      if (ends) allowed.until_ms = Math.min(...ends_ms);
      byFilter.set(filter, allowed);
    }
    return allowed.kept;
  }

  #ask(
    candidates: readonly Link[],
    model: string,
    request: RouteRequest,
    tried: readonly string[],
  ): Link | undefined {
    const routed = this.#routed(model, request);
    for (const { pool, members } of byPool(candidates, routed.view?.tokens ?? request.prompt_tokens_max)) {
      const chosen = this.#policyOf(pool).choose(members, routed, tried, seed());
      if (!chosen) continue;
      const ahead = requestsAt(chosen) - chosen.max_sequences;
      if (ahead < 0 || ahead < this.#queue(chosen)) return chosen;
    }
    return undefined;
  }

  #policyOf(pool: PoolName | undefined): RoutingPolicy {
    return pool === 'prefill' ? this.#prefillPolicy : this.#parts.policy;
  }

  #routed(model: string, { prompt, blocks }: RouteRequest): RoutedRequest {
    return {
      now_ms: Date.now(),
      expected_ms: this.#parts.serviceTimes.of(model) * 1000,
      expected_tokens: this.#parts.expectedLength_tokens(model),
      prompt,
      view: blocks && this.#parts.prompts.view(model, blocks),
    };
  }

  /** Requests that may wait at a replica: as many as it begins with within the longest wait, at least one batch. */
  #queue({ served, max_sequences }: Link): number {
    const { policy, serviceTimes, wait_max_s } = this.#parts;
    const measured = serviceTimes.measured(served.name);
    if (!measured) return policy.queue_length;
    const batches = Math.max(1, wait_max_s / measured.duration_s);
    return Math.min(policy.queue_length, Math.floor(batches * max_sequences));
  }

  #members(candidates: readonly Link[]): AliasMember<Link>[] {
    const byModel = new Map<string, Link[]>();
    for (const candidate of candidates) {
      const own = byModel.get(candidate.served.name);
      if (own) own.push(candidate);
      else byModel.set(candidate.served.name, [candidate]);
    }
    return orderMembers(
      [...byModel].map(([model, own]) => {
        const means = this.#parts.serviceTimes.measured(model);
        return {
          model,
          candidates: own,
          slo: own[0]!.served.slo,
          ttft_ms: in_ms(means?.ttft_s),
          tpot_ms: in_ms(means?.tpot_s),
          duration_ms: in_ms(means?.duration_s),
        };
      }),
    );
  }

  #busy(model: string, candidates: readonly Link[]): Refusal {
    const { serviceTimes } = this.#parts;
    const wait_s = expectedWait(candidates, serviceTimes.of(candidates[0]!.served.name));
    return {
      error: new HpcserveError('E_REPLICA_BUSY', {
        what: `all ${candidates.length} replicas of ${model} are full`,
        because: `a request would wait for about ${Math.ceil(wait_s)} s`,
      }),
      retry_after_s: retryAfter_s(
        candidates,
        (replica) => this.#queue(replica),
        ({ served }) => serviceTimes.of(served.name),
      ),
    };
  }
}

/** What can wait is told to come again, not that there is no such model. */
function waitsForIdleNodes(model: string, reasons: readonly string[]): Refusal {
  return {
    error: new HpcserveError('E_MODEL_NO_REPLICA', {
      what: `no replica of ${model} is on idle nodes now`,
      because: ['the key is for batch work, which goes to replicas on preemptible nodes', ...reasons],
      try: 'ask again later; a request that cannot wait says `x-hpcserve-qos: tier=stable`',
    }),
    retry_after_s: retryIdleNodes_s,
  };
}

/** Idle nodes are looked for every minute, and a replica has to load. */
const retryIdleNodes_s = 120;

function excludedBy(
  replicas: readonly Link[],
  filter: RouteFilter,
): { all: number; kept: number; reasons: string[] } {
  const { kept, excluded } = filtered(replicas, ({ facts }) => facts, filter);
  const reasons = [...excluded].map(([words, count]) => `${words} (${count} of ${replicas.length})`);
  return { all: replicas.length, kept: kept.length, reasons };
}

function in_ms(value_s: number | undefined): number | undefined {
  return value_s === undefined ? undefined : value_s * 1000;
}

/** Any 32-bit integer, for policies. */
function seed(): number {
  return (Math.random() * 0x1_0000_0000) >>> 0;
}
