import type { IncomingHttpHeaders } from 'node:http';
import { parseProviders, type RouteFilter } from '../../solver/routing/filter.ts';
import { parseQos } from '../../solver/routing/qos.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import { headers } from '../../spec/wire.ts';

/** Filters kept; clients choose them. Lower: less memory; higher: fewer are made anew. */
const filtersMax = 1000;

/** Makes one filter of what a key and a request ask for, and the same one for the same words. */
export class RouteFilters {
  readonly #filters = new Map<string, RouteFilter>();
  /** Of requests that ask for nothing themselves. */
  readonly #ofKeys = new WeakMap<KeySettings, RouteFilter>();

  /**
   * Undefined where nobody asks for anything. A request narrows the providers that its key trusts, and replaces
   * terms of its key's quality of service.
   *
   * @throws E_REQUEST_QOS, E_REQUEST_PROVIDERS
   */
  of(settings: KeySettings, sent: IncomingHttpHeaders): RouteFilter | undefined {
    const qos = sent[headers.qos];
    const providers = sent[headers.providers];
    if (qos !== undefined || providers !== undefined) return this.#find(settings, qos, providers);
    if (!settings.providers && settings.qos === undefined) return undefined;
    let filter = this.#ofKeys.get(settings);
    if (!filter) {
      filter = this.#find(settings, undefined, undefined);
      this.#ofKeys.set(settings, filter);
    }
    return filter;
  }

  #find(
    { providers: trusted, qos: usual }: KeySettings,
    qos: IncomingHttpHeaders[string],
    providers: IncomingHttpHeaders[string],
  ): RouteFilter {
    const words = JSON.stringify([trusted, usual, providers, qos]);
    let filter = this.#filters.get(words);
    if (!filter) {
      filter = {
        providers: [trusted ?? [], providers === undefined ? [] : parseProviders(String(providers))].filter(
          (list) => list.length > 0,
        ),
        qos: { ...parseQos(usual ?? ''), ...parseQos(String(qos ?? '')) },
      };
      if (this.#filters.size >= filtersMax) this.#filters.clear();
      this.#filters.set(words, filter);
    }
    return filter;
  }
}
