import { HpcserveError } from '../../spec/errors/error.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';

/** How long one answer may take, ms; `timeouts` of model.yaml. */
export interface RequestDeadlines {
  first_token_ms: number;
  between_tokens_ms: number;
  total_ms: number;
}

/** Longest answers where model.yaml says nothing, s; a model that reasons writes several times as much. */
const total_s_default = { plain: 3600, reasoning: 14_400 };

/** @param reasons asked where it matters: whether the model does */
export function requestDeadlines(
  { first_token_s, between_tokens_s, total_s }: ModelSpec['timeouts'],
  reasons: () => boolean,
): RequestDeadlines {
  const whole_s = total_s ?? (reasons() ? total_s_default.reasoning : total_s_default.plain);
  return {
    first_token_ms: first_token_s * 1000,
    between_tokens_ms: between_tokens_s * 1000,
    total_ms: whole_s * 1000,
  };
}

/** `total`: the answer is too long, whoever computes it. `replica`: another one may be faster. */
export type DeadlineKind = 'total' | 'replica';

/**
 * Watches the time of one answer. Of an answer that is no stream only its end can be seen, so only the whole of it
 * is bounded.
 */
export class DeadlineWatch {
  readonly #limits: RequestDeadlines;
  readonly #total: NodeJS.Timeout;
  readonly #pause: NodeJS.Timeout | undefined;
  #between: NodeJS.Timeout | undefined;
  readonly #expired: (kind: DeadlineKind, error: HpcserveError) => void;
  readonly #clientHolds: () => boolean;

  /**
   * @param clientHolds whether what has come waits for the client, so that the engine cannot be blamed
   * @param expired called at most once for each kind
   */
  constructor(
    limits: RequestDeadlines,
    stream: boolean,
    clientHolds: () => boolean,
    expired: (kind: DeadlineKind, error: HpcserveError) => void,
  ) {
    this.#limits = limits;
    this.#expired = expired;
    this.#clientHolds = clientHolds;
    this.#total = setTimeout(
      () => this.#end('total', 'the answer is not complete', limits.total_ms),
      limits.total_ms,
    );
    if (stream)
      this.#pause = setTimeout(
        () => this.#end('replica', 'the answer has not begun', limits.first_token_ms),
        limits.first_token_ms,
      );
  }

  /** Something of a stream has come. */
  progressed(): void {
    if (this.#pause === undefined) return;
    if (this.#between) {
      this.#between.refresh();
      return;
    }
    clearTimeout(this.#pause);
    this.#watchPause();
  }

  close(): void {
    clearTimeout(this.#total);
    clearTimeout(this.#pause);
    clearTimeout(this.#between);
  }

  #watchPause(): void {
    const { between_tokens_ms } = this.#limits;
    this.#between = setTimeout(() => {
      if (this.#clientHolds()) this.#watchPause();
      else this.#end('replica', 'nothing more of the answer has come', between_tokens_ms);
    }, between_tokens_ms);
  }

  #end(kind: DeadlineKind, what: string, limit_ms: number): void {
    this.close();
    const error = new HpcserveError('E_AGENT_TIMEOUT', {
      what: `${what} after ${limit_ms / 1000} s`,
      because: 'the timeouts of the model allow no more',
    });
    this.#expired(kind, error);
  }
}
