import type { AgentLog } from './log.ts';
import { pausesBesideOthers, RestartPolicy } from './restart-policy.ts';

export interface ModelRestartsOptions {
  log: AgentLog;
  environment: NodeJS.ProcessEnv;
  load(name: string): void;
}

/**
 * Models, and later stages of them, that failed in a device worker which lives with others: they are loaded anew. One
 * that served and broke in an iteration soon; one that could not be loaded later, and then ever more seldom.
 */
export class ModelRestarts {
  readonly #options: ModelRestartsOptions;
  readonly #served = new Set<string>();
  readonly #soon = new Map<string, RestartPolicy>();
  readonly #later = new Map<string, RestartPolicy>();
  readonly #waiting = new Map<string, { timer: NodeJS.Timeout; at_ms: number }>();
  #closed = false;

  constructor(options: ModelRestartsOptions) {
    this.#options = options;
  }

  /** When the next try of a model begins, Unix ms; undefined where none is to come. */
  nextTry_ms(name: string): number | undefined {
    return this.#waiting.get(name)?.at_ms;
  }

  serves(name: string): void {
    this.#served.add(name);
  }

  failed(name: string): void {
    if (this.#closed || this.#waiting.has(name)) return;
    const pause_ms = this.#pause_ms(name);
    this.#options.log.warn({ model: name, pause_ms }, 'it is loaded again after a pause');
    const timer = setTimeout(() => {
      this.#waiting.delete(name);
      this.#options.load(name);
    }, pause_ms);
    timer.unref();
    this.#waiting.set(name, { timer, at_ms: Date.now() + pause_ms });
  }

  /** It is loaded or unloaded for another reason. */
  forget(name: string): void {
    clearTimeout(this.#waiting.get(name)?.timer);
    this.#waiting.delete(name);
  }

  /** The worker drains, stops or has ended. */
  close(): void {
    this.#closed = true;
    for (const name of [...this.#waiting.keys()]) this.forget(name);
  }

  #pause_ms(name: string): number {
    const now_ms = performance.now();
    // Once: what serves for a moment and breaks each time is no better than what cannot be loaded.
    const soon = this.#served.delete(name)
      ? policyOf(this.#soon, name, () => new RestartPolicy())
      : undefined;
    const seldom = (): RestartPolicy => pausesBesideOthers(this.#options.environment);
    return soon?.next(now_ms) ?? policyOf(this.#later, name, seldom).next(now_ms)!;
  }
}

function policyOf(
  policies: Map<string, RestartPolicy>,
  name: string,
  make: () => RestartPolicy,
): RestartPolicy {
  const policy = policies.get(name) ?? make();
  policies.set(name, policy);
  return policy;
}
