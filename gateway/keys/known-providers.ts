import type { Registry } from '../../mesh/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { provenProviderOf, providerIdPattern } from '../../spec/session-record.ts';

type Sessions = Pick<Registry, 'snapshot' | 'onChange'>;

/** Names of providers and the keys that bear them, as sessions of the mesh prove them now. */
export class KnownProviders {
  readonly #registry: Sessions;
  readonly #unsubscribe: () => void;
  #names: Map<string, string[]> | undefined;

  constructor(registry: Sessions) {
    this.#registry = registry;
    this.#unsubscribe = registry.onChange(() => {
      this.#names = undefined;
    });
  }

  close(): void {
    this.#unsubscribe();
  }

  /** Fingerprints of all that bear a name. */
  named(name: string): readonly string[] {
    this.#names ??= this.#look();
    return this.#names.get(name) ?? [];
  }

  /** Of everybody at a site, as `alice@site 3f2a…`, in the order of their names. */
  atSite(site: string): string[] {
    this.#names ??= this.#look();
    return [...this.#names]
      .filter(([name]) => name.endsWith(`@${site}`))
      .flatMap(([name, ids]) => ids.map((id) => `${name} ${id}`))
      .sort();
  }

  /**
   * The fingerprint that a trusted provider is written as, or the one key that bears a name.
   *
   * @returns undefined where nobody bears the name now
   * @throws HpcserveError E_REQUEST_PROVIDERS where several do, or where a whole site is meant
   */
  find(trusted: string): string | undefined {
    if (providerIdPattern.test(trusted)) return trusted;
    const refuse = (what: string, because: string | string[]): HpcserveError =>
      new HpcserveError('E_REQUEST_PROVIDERS', {
        what,
        because,
        details: { param: 'x-hpcserve-providers' },
      });
    if (trusted.startsWith('*@')) {
      const there = this.atSite(trusted.slice(2));
      throw refuse(`${trusted} cannot be trusted: any member of the mesh may call itself of that site`, [
        there.length === 0
          ? 'no provider known here calls itself so'
          : `those known here: ${there.slice(0, 16).join(', ')}`,
      ]);
    }
    const ids = this.named(trusted);
    if (ids.length > 1)
      throw refuse(`${ids.length} providers call themselves ${trusted}`, `their keys: ${ids.join(', ')}`);
    return ids[0];
  }

  /**
   * What an API key is to trust: fingerprints in the place of names.
   *
   * @throws HpcserveError E_REQUEST_PROVIDERS also where nobody bears a name now
   */
  resolve(trusted: readonly string[]): string[] {
    const ids = trusted.map((one) => {
      const id = this.find(one);
      if (id !== undefined) return id;
      throw new HpcserveError('E_REQUEST_PROVIDERS', {
        what: `no provider of the mesh calls itself ${one} now`,
        because:
          'what a key trusts is the provider’s key, and a name leads there only while its sessions are known',
        try: 'give the fingerprint, which the provider sees with `hpcserve provider`',
        details: { param: 'x-hpcserve-providers' },
      });
    });
    return [...new Set(ids)];
  }

  #look(): Map<string, string[]> {
    const names = new Map<string, string[]>();
    const now_ms = Date.now();
    for (const record of this.#registry.snapshot()) {
      const id = provenProviderOf(record, now_ms);
      if (id === undefined) continue;
      const ids = names.get(record.metadata.provider) ?? [];
      if (!ids.includes(id)) names.set(record.metadata.provider, [...ids, id].sort());
    }
    return names;
  }
}
