import type { IncomingHttpHeaders } from 'node:http';
import { parseProviders, type RouteFilter } from '../../solver/routing/filter.ts';
import { parseQos, type Qos } from '../../solver/routing/qos.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import { providerIdPattern } from '../../spec/session-record.ts';
import { headers } from '../../spec/wire.ts';
import type { KnownProviders } from './known-providers.ts';

/** Filters kept; clients choose them. Lower: less memory; higher: fewer are made anew. */
const filters_max = 1000;

/** What can wait leaves stable replicas to what cannot. */
const batchQos: Qos = { tier: 'scavenger' };

/** Makes one filter of what a key and a request ask for, and the same one for the same words. */
export class RouteFilters {
  readonly #known: KnownProviders;
  readonly #filters = new Map<string, RouteFilter>();
  /** Of requests that ask for nothing themselves. */
  readonly #ofKeys = new WeakMap<KeySettings, RouteFilter>();

  constructor(known: KnownProviders) {
    this.#known = known;
  }

  /**
   * Undefined where nobody asks for anything. A request narrows the providers that its key trusts, and replaces
   * terms of its key's quality of service.
   *
   * @throws E_REQUEST_QOS, E_REQUEST_PROVIDERS, E_KEY_PROVIDERS
   */
  of(settings: KeySettings, sent: IncomingHttpHeaders): RouteFilter | undefined {
    const qos = sent[headers.qos];
    const providers = sent[headers.providers];
    if (qos !== undefined || providers !== undefined) {
      const asked = providers === undefined ? [] : this.#asked(String(providers));
      return this.#find(settings, qos, asked);
    }
    if (!settings.providers && settings.qos === undefined && !settings.batch && !settings.tiers)
      return undefined;
    let filter = this.#ofKeys.get(settings);
    if (!filter) {
      filter = this.#find(settings, undefined, []);
      this.#ofKeys.set(settings, filter);
    }
    return filter;
  }

  /** Fingerprints; a name that nobody bears now stays as it is, and leaves nobody to answer. */
  #asked(providers: string): string[] {
    return parseProviders(providers).map((one) => this.#known.find(one) ?? one);
  }

  #find(
    { providers, qos: usual, batch, tiers }: KeySettings,
    qos: IncomingHttpHeaders[string],
    asked: readonly string[],
  ): RouteFilter {
    const trusted = providers && trustedKeys(providers);
    const words = JSON.stringify([trusted, usual, batch, asked, qos, tiers]);
    let filter = this.#filters.get(words);
    if (!filter) {
      const said = { ...parseQos(usual ?? ''), ...parseQos(String(qos ?? '')) };
      filter = {
        providers: [trusted ?? [], asked].filter((list) => list.length > 0),
        qos: batch ? { ...batchQos, ...said } : said,
        tiers,
        can_wait: batch === true && said.tier === undefined,
      };
      if (this.#filters.size >= filters_max) this.#filters.clear();
      this.#filters.set(words, filter);
    }
    return filter;
  }
}

/**
 * What a key trusts without its names, which prove nothing; see `adoptProviders`.
 *
 * @throws E_KEY_PROVIDERS where nothing is left
 */
function trustedKeys(providers: readonly string[]): string[] {
  const ids = providers.filter((one) => providerIdPattern.test(one));
  if (ids.length > 0) return ids;
  throw new HpcserveError('E_KEY_PROVIDERS', {
    what: `this key trusts ${providers.slice(0, 8).join(', ')}, and that is no provider’s key`,
    because: 'any member of the mesh may bear a name; the key is from before providers had keys',
  });
}
