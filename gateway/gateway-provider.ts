import { type Delegation, gateway_scope, ProviderKey } from '../mesh/index.ts';
import type { GatewayConfig } from '../spec/state-layout.ts';
import type { GatewayLog } from './log.ts';

/** How long what it proves itself with is valid, s. Higher: the key file may be away for longer. */
const life_s = 30 * 86_400;
/** How often it is made anew. */
const renew_ms = 86_400_000;

/**
 * What a gateway proves its provider with: a key of its own, which the provider's key vouches for, made anew each day.
 */
export class GatewayProvider {
  readonly #config: GatewayConfig;
  readonly #log: GatewayLog;
  readonly #timer: NodeJS.Timeout | undefined;
  #delegation: Delegation | undefined;

  /** @throws HpcserveError E_PROVIDER_KEY */
  constructor(config: GatewayConfig, log: GatewayLog, onRenewed: () => void) {
    this.#config = config;
    this.#log = log;
    if (config.provider_key_file === undefined) return;
    this.#delegate(config.provider_key_file);
    log.info({ provider: config.provider, fingerprint: this.#delegation?.provider_id }, 'provider');
    this.#timer = setInterval(() => this.#renew(onRenewed), renew_ms);
    this.#timer.unref();
  }

  get delegation(): Delegation | undefined {
    return this.#delegation;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  #renew(onRenewed: () => void): void {
    try {
      this.#delegate(this.#config.provider_key_file!);
      onRenewed();
    } catch (error) {
      this.#log.warn({ reason: (error as Error).message }, 'what proves its provider was not made anew');
    }
  }

  #delegate(file: string): void {
    this.#delegation = ProviderKey.loadOrCreate(file).delegate({
      name: this.#config.provider,
      scope: gateway_scope,
      not_after_s: Math.floor(Date.now() / 1000) + life_s,
    });
  }
}
