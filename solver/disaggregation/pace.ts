/** How fast a replica computes prompts and tokens, and how fast KV travels to a peer, as they were lately. Pure. */
import type { PeerLink } from './handover.ts';

/** Of what was before, so much stays with each iteration. Higher: steadier; lower: follows sooner. */
const kept_share = 0.9;
/** An iteration with fewer tokens that decode, for each of a prompt, is one of prompts. */
const decode_share_max = 1 / 8;

/** Times of iterations, by what they computed. */
export class IterationPace {
  #prefill_tokens = 0;
  #prefill_s = 0;
  #step_s: number | undefined;

  observe(prefill_tokens: number, decode_tokens: number, elapsed_s: number): void {
    if (prefill_tokens > 0 && decode_tokens <= decode_share_max * prefill_tokens) {
      this.#prefill_tokens = kept_share * this.#prefill_tokens + prefill_tokens;
      this.#prefill_s = kept_share * this.#prefill_s + elapsed_s;
    } else if (prefill_tokens === 0 && decode_tokens > 0)
      this.#step_s = mixed(this.#step_s ?? elapsed_s, elapsed_s);
  }

  /** Undefined: no prompt was computed yet. */
  get prefill_tokens_per_s(): number | undefined {
    return this.#prefill_s > 0 ? this.#prefill_tokens / this.#prefill_s : undefined;
  }

  /** An iteration of sequences that decode; undefined: there was none. */
  get step_s(): number | undefined {
    return this.#step_s;
  }
}

/** Of a link that nothing is known of. Lower: fewer answers are handed over at first; higher: more that wait. */
export const supposedLink: PeerLink = { transfer_s: 0.01, bytes_per_s: 250e6 };
/** What is smaller tells what a transfer takes whatever it brings; what is larger, what its bytes take. */
const large_bytes = 4 * 2 ** 20;
/** What was measured longer ago says nothing, or a link that was slow once would never be tried again, s. */
const known_for_s = 120;

/** Times of transfers to one peer. */
export class LinkPace {
  #link: PeerLink = supposedLink;
  #measured_s = Number.NEGATIVE_INFINITY;

  /** @param now_s by any steady clock */
  observe(bytes: number, elapsed_s: number, now_s: number): void {
    const { transfer_s, bytes_per_s } = this.link(now_s);
    this.#measured_s = now_s;
    if (bytes >= large_bytes) {
      const rate = bytes / Math.max(elapsed_s - transfer_s, elapsed_s / 2);
      this.#link = { transfer_s, bytes_per_s: mixed(bytes_per_s, rate) };
    } else {
      const rest_s = Math.max(0, elapsed_s - bytes / bytes_per_s);
      this.#link = { transfer_s: mixed(transfer_s, rest_s), bytes_per_s };
    }
  }

  link(now_s: number): PeerLink {
    return now_s - this.#measured_s > known_for_s ? supposedLink : this.#link;
  }
}

/** Half of what is new: few are seen, and the last says most. */
function mixed(before: number, now: number): number {
  return (before + now) / 2;
}
