import { cacheScopeOf } from '../keys/cache-scope.ts';
import type { PromptKnowledge, SentTo } from '../routing/prompt-knowledge.ts';
import type { Replica } from '../routing/replica.ts';
import type { SessionLink } from '../session-link.ts';
import type { AcceptedRequest, Outcome } from './accepted-request.ts';
import { isTextAlone, scopedBlocks } from './prompt-blocks.ts';
import { promptsOf } from './request-body.ts';

/** What the prompt of one request is to the caches of replicas, and to the prompts that come there after it. */
export class PromptUse {
  /** Absent: it has no text to look for. */
  readonly blocks: ReturnType<typeof scopedBlocks>;
  readonly #of: AcceptedRequest;
  readonly #prompts: PromptKnowledge;
  readonly #scope: string | undefined;
  /** As it counts at the replica that was asked last. */
  #sent: SentTo | undefined;

  constructor(of: AcceptedRequest, prompts: PromptKnowledge) {
    this.#of = of;
    this.#prompts = prompts;
    this.#scope = cacheScopeOf(of.key);
    this.blocks = of.endpoint.computes ? scopedBlocks(of.parsed.blocks, this.#scope) : undefined;
  }

  /** @param begun whether the client has its first token: the stream goes on elsewhere */
  send(replica: Replica<SessionLink>, begun: boolean): void {
    if (this.#sent) this.#prompts.ended(this.#sent, undefined);
    const streams = this.#of.parsed.stream && !begun;
    this.#sent = this.blocks && this.#prompts.sent(replica, this.blocks, streams);
  }

  /** The first token is on its way to the client. */
  began(): void {
    if (this.#sent) this.#prompts.began(this.#sent);
  }

  end({ status, usage }: Outcome): void {
    if (!this.#sent) return;
    // Of several prompts the sum would say nothing.
    const counts = status < 300 && promptsOf(this.#of.parsed.scan) === 1;
    this.#prompts.ended(this.#sent, counts ? usage?.prompt_tokens : undefined);
  }

  /**
   * Takes the prompt's tokens; undefined where they are of no use. What engines tell of their blocks is about tokens
   * alone, without a salt.
   */
  get onTokens(): ((token_ids: Int32Array) => void) | undefined {
    if (!this.#sent || this.#scope !== undefined) return undefined;
    const take = this.#prompts.wantsTokens(this.#sent);
    return take && isTextAlone(this.#of.parsed.scan) ? take : undefined;
  }
}
