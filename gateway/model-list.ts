import type { ApiKey } from '../ledger/index.ts';
import type { Availability } from './availability.ts';
import type { KnownProviders } from './keys/known-providers.ts';
import { RouteFilters } from './keys/route-filters.ts';
import { allowsModel, requireModel } from './openai-handler.ts';
import type { Replica } from './routing/replica.ts';
import type { Router } from './routing/router.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';

type SleepingModel = Awaited<ReturnType<Availability['sleeping']>>[number];

/** As OpenAI's clients list it, with what is ours under a name of our own. */
export interface ListedModel {
  id: string;
  object: 'model';
  created: number;
  owned_by: string;
  root: string;
  max_model_len?: number;
  hpcserve: { models: string[]; precisions: string[]; replicas: number };
}

interface ModelListServices {
  table: RoutingTable<SessionLink>;
  router: Router;
  availability: Availability;
  providers: KnownProviders;
}

/** The models that a key may ask for, under the names by which it asks. */
export class ModelList {
  readonly #services: ModelListServices;
  readonly #filters: RouteFilters;

  constructor(services: ModelListServices) {
    this.#services = services;
    this.#filters = new RouteFilters(services.providers);
  }

  async all(key: ApiKey): Promise<ListedModel[]> {
    const { table, availability } = this.#services;
    const data = [...table.routes()].flatMap(({ name }) => modelEntry(name, this.#candidates(key, name)));
    const listed = new Set(data.map(({ id }) => id));
    for (const asleep of await availability.sleeping())
      if (!listed.has(asleep.name) && allowsModel(key, asleep.name)) data.push(sleepingEntry(asleep));
    return data;
  }

  /** @throws E_KEY_MODEL, and why nobody serves it */
  async one(key: ApiKey, name: string): Promise<ListedModel> {
    const [entry] = modelEntry(name, this.#candidates(key, name));
    if (entry) return entry;
    requireModel(key, name);
    throw (await this.#services.availability.explain(name, key.settings.models)).error;
  }

  #candidates(key: ApiKey, name: string): readonly Replica<SessionLink>[] {
    if (!allowsModel(key, name)) return [];
    return this.#services.router.candidates({ model: name, filter: this.#filters.of(key.settings, {}) });
  }
}

/** A name as clients see it; none where nobody would answer. */
function modelEntry(name: string, candidates: readonly Replica<SessionLink>[]): ListedModel[] {
  const first = candidates[0];
  if (!first) return [];
  const records = candidates.map(({ session }) => session.record);
  return [
    {
      id: name,
      object: 'model',
      created: Math.floor(Math.min(...records.map(({ started_at_ms }) => started_at_ms)) / 1000),
      owned_by: first.facts.provider,
      root: first.served.name,
      max_model_len: Math.min(...candidates.map(({ served }) => served.context_tokens)),
      hpcserve: {
        models: [...new Set(candidates.map(({ served }) => served.name))].sort(),
        precisions: [...new Set(candidates.map(({ served }) => served.precision))].sort(),
        replicas: candidates.length,
      },
    },
  ];
}

/** A model that answers when it is asked, after a while. */
function sleepingEntry({ name, model, asleep_since_ms }: SleepingModel): ListedModel {
  return {
    id: name,
    object: 'model',
    created: Math.floor(asleep_since_ms / 1000),
    owned_by: 'hpcserve',
    root: model,
    hpcserve: { models: [model], precisions: [], replicas: 0 },
  };
}
