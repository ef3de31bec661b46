import type { GatewayLog } from '../log.ts';
import type { Replica } from '../routing/replica.ts';
import type { SessionLink } from '../session-link.ts';
import type { AcceptedRequest } from './accepted-request.ts';
import type { StreamJournal } from './journal/journal.ts';
import type { JsonRelay } from './json-relay.ts';
import { promptsOf } from './request-body.ts';
import type { StreamRelay } from './stream-relay.ts';
import type { TokenUsage } from './usage.ts';

/** No model has a longer context, whatever a session says of its own. */
const context_tokens_max = 100_000_000;
/** A token is a byte of text at least; inputs of one byte each, in a list, get some of the model's own. */
const tokensOfByte_max = 4;
/** About as many bytes of text are a token. */
const bytesOfToken = 4;

/** What a request may have used. */
interface Bounds {
  prompt_tokens: number;
  completion_tokens: number;
}

/**
 * What one request has used: as its replica says, where that is possible, else as the gateway counted it. Budgets of
 * keys and the ledger are made of it, so that a replica which says anything must not spoil them.
 */
export class UsedTokens {
  readonly #of: Pick<AcceptedRequest, 'parsed' | 'endpoint' | 'prompt_tokens_max' | 'request_id'>;
  readonly #log: GatewayLog;

  constructor(of: AcceptedRequest, log: GatewayLog) {
    this.#of = of;
    this.#log = log;
  }

  /** Of an answer that came whole. */
  ofAnswer(replica: Replica<SessionLink>, { usage, bytes }: JsonRelay): TokenUsage | undefined {
    return usage && this.#possible(replica, usage, Math.ceil(bytes / bytesOfToken));
  }

  /** Of a stream as far as it has come. Where its engine does not say it, a chunk carries a token, or a few. */
  ofStream(
    replica: Replica<SessionLink>,
    { usage, events_sent }: StreamRelay,
    journal: StreamJournal | undefined,
  ): TokenUsage {
    const told = usage ?? journal?.progress;
    return told ? this.#possible(replica, told, events_sent) : { completion_tokens: events_sent };
  }

  /** Tokens of its prompt, where nobody says them. */
  promptOf({ served }: Replica<SessionLink>): number {
    return Math.min(this.#of.prompt_tokens_max, contextOf(served));
  }

  /** @param answered tokens of the answer, as the gateway counts them */
  #possible(replica: Replica<SessionLink>, told: TokenUsage, answered: number): TokenUsage {
    const bounds = this.#bounds(replica);
    const isPossible = (tokens: number | undefined, max: number): boolean =>
      tokens === undefined || (Number.isSafeInteger(tokens) && tokens >= 0 && tokens <= max);
    const { prompt_tokens: prompt, completion_tokens: completion } = told;
    const used: TokenUsage = {};
    if (prompt !== undefined)
      used.prompt_tokens = isPossible(prompt, bounds.prompt_tokens) ? prompt : this.promptOf(replica);
    if (completion !== undefined)
      used.completion_tokens = isPossible(completion, bounds.completion_tokens)
        ? completion
        : Math.min(answered, bounds.completion_tokens);
    // Parts of these.
    const { cached_tokens, reasoning_tokens } = told;
    if (isPossible(cached_tokens, used.prompt_tokens ?? 0)) used.cached_tokens = cached_tokens;
    if (isPossible(reasoning_tokens, used.completion_tokens ?? 0)) used.reasoning_tokens = reasoning_tokens;
    if (used.prompt_tokens !== prompt || used.completion_tokens !== completion) this.#tell(replica, bounds);
    return used;
  }

  #bounds({ served }: Replica<SessionLink>): Bounds {
    const { parsed, endpoint } = this.#of;
    const context = contextOf(served);
    const longest = Math.min(parsed.max_tokens ?? context, context);
    // Of embeddings each input has a context, and nothing is answered; images are in no such request.
    const ofBytes = endpoint.dialect === 'none' ? tokensOfByte_max * parsed.scan.bytes.length : 0;
    return {
      prompt_tokens: Math.max(promptsOf(parsed.scan) * context, ofBytes),
      completion_tokens: parsed.choices * longest,
    };
  }

  /** Once a replica: it will say so again. */
  #tell({ session, served }: Replica<SessionLink>, bounds: Bounds): void {
    if (session.saidImpossible) return;
    session.saidImpossible = true;
    const told = { session: session.facts.session_id, model: served.name, ...bounds };
    this.#log.warn(
      { request_id: this.#of.request_id, ...told },
      'a replica said that a request used more than it can have; the gateway goes by its own count',
    );
  }
}

function contextOf({ context_tokens }: Replica<SessionLink>['served']): number {
  return Math.min(context_tokens, context_tokens_max);
}
