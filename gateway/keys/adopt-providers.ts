import type { KeyStore } from '../../ledger/index.ts';
import { providerIdPattern } from '../../spec/session-record.ts';
import type { GatewayLog } from '../log.ts';

/**
 * Keys from before providers had keys trust names. The own name is what its user meant: it becomes the own fingerprint.
 * Other names stay as they are, and requests of keys that trust nothing else are refused (E_KEY_PROVIDERS).
 *
 * @param own name and fingerprint of this gateway's provider
 * @throws HpcserveError E_KEY_FOLDER
 */
export function adoptProviders(
  keys: KeyStore,
  own: { name: string; provider_id: string | undefined },
  log: GatewayLog,
): void {
  for (const { id, name, settings, revoked_at_ms } of keys.list()) {
    const { providers } = settings;
    if (!providers || revoked_at_ms !== undefined) continue;
    if (own.provider_id !== undefined && providers.includes(own.name)) {
      const adopted = providers.map((one) => (one === own.name ? own.provider_id! : one));
      keys.change(id, { providers: [...new Set(adopted)] });
      log.info(
        { key: id, name, provider: own.provider_id },
        'an API key trusts this provider by its key now',
      );
    }
    const names = providers.filter((one) => one !== own.name && !providerIdPattern.test(one));
    if (names.length > 0)
      log.warn(
        { key: id, name, names },
        'an API key trusts providers by name, which anybody may bear: name them anew with hpcserve keys set',
      );
  }
}
