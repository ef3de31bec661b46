import type { SampledToken, SequenceRequest } from '../../spec/engine-contract.ts';
import type { BlockList } from './kv-block-allocator.ts';
import { TokenList } from './token-list.ts';

/** One request while it lives in the engine. */
export class Sequence {
  readonly request: SequenceRequest;
  readonly tokens: TokenList;
  readonly n_prompt: number;
  /** Tokens at most, prompt and answer together. */
  readonly tokens_max: number;
  /** Tokens whose keys and values are in the cache. */
  n_computed = 0;
  /** Absent while waiting. */
  kv: BlockList | undefined;
  /** Prompt tokens that came from the prefix cache at the first admission. */
  cached_tokens: number | undefined;
  /** Set when cached_tokens has been reported. */
  reported = false;
  /** Order of admission: the youngest is preempted first. */
  admitted = 0;
  readonly prompt_logprobs: SampledToken[] = [];
  /** Sum of the hidden rows so far (mean pooling), or the row that was asked for. */
  pooled: Float32Array | undefined;

  constructor(request: SequenceRequest, context_tokens: number) {
    this.request = request;
    this.tokens = new TokenList(request.prompt_tokens);
    this.n_prompt = request.prompt_tokens.length;
    const wanted = this.isEmbedding ? 0 : request.max_new_tokens;
    this.tokens_max = Math.min(context_tokens, this.n_prompt + wanted);
  }

  get id(): number {
    return this.request.id;
  }

  get isEmbedding(): boolean {
    return this.request.sampler === undefined;
  }

  get n_generated(): number {
    return this.tokens.length - this.n_prompt;
  }

  /** Tokens still without keys and values; 1 while decoding. */
  get pending(): number {
    return this.tokens.length - this.n_computed;
  }

  /** One row an iteration, and a token for it; else its prompt, or what it had, is computed. */
  get decodes(): boolean {
    return this.pending === 1 && this.n_generated > 0;
  }

  /** Every prompt row is needed, not only the last. */
  get needsAllRows(): boolean {
    return this.isEmbedding || (this.request.prompt_logprobs !== undefined && this.n_generated === 0);
  }
}
