/**
 * What is known of the prompts of one model: which replica has computed which beginnings, how fast each computes what
 * it does not have, and how many tokens a text has. Learned from requests and answers; pure, since times are given.
 */
import { type HeldPrefix, type PrefixMatch, PrefixTree } from './prefix-tree.ts';
import type { ResidentBlocks } from './resident-blocks.ts';
import { tokenHashes } from './token-blocks.ts';

/** A prompt by the hashes of its beginnings: `blocks[i]` of its first `(i + 1) · units_per_block` units of text. */
export interface PromptBlocks {
  blocks: Uint32Array;
  /** Length of the whole prompt, in the same units. */
  units: number;
}

/** What a policy is told of a prompt and of those who may compute it. */
export interface PromptView {
  /** Tokens that the prompt has, as far as its length tells. */
  tokens: number;
  /** Of these, tokens that a replica has in its cache, by session id; absent: none. */
  held_tokens: ReadonlyMap<string, number>;
  /** What a replica has to do before its first token, by session id; absent: nothing was sent there. */
  prefills: ReadonlyMap<string, PrefillLoad>;
  /** Of replicas of which it is not known: the mean of the others. */
  prefill_tokens_per_s: number;
  /**
   * The share of what nobody is known to have that may be where hashing has the prompt, since another gateway sent it
   * there: 0 for a gateway that is alone.
   */
  elsewhere: number;
}

export interface PrefillLoad {
  /** Tokens of prompts that it was sent and has not computed yet. */
  pending_tokens: number;
  tokens_per_s: number;
}

/** A request on its way: what it was taken to cost where it was sent. */
export interface SentPrompt {
  readonly session_id: string;
  readonly units: number;
  /** Of its own, and of all that were to be computed there when it came, itself included. */
  readonly uncached_tokens: number;
  readonly queued_tokens: number;
  readonly sent_ms: number;
  /** Whose first token does not show: over when it should be, or with its answer. Undefined: it shows. */
  readonly unseen: UnseenPrefill | undefined;
  state: 'pending' | 'begun';
}

export interface PrefixSettings {
  /** Of the tree. */
  bytes_max: number;
  /** Units of text that a block of a prompt has. */
  units_per_block: number;
}

/** English text with the tokenizers of today's models, until answers say how many tokens theirs had. */
const unknown_tokens_per_unit = 0.25;
/** Of an engine on a GPU, until first tokens say how long they took. */
const unknown_tokens_per_s = 5000;
/** What older samples count when a new one comes. Lower: changes are followed sooner; higher: steadier. */
const kept = 0.95;
/**
 * So long after a prompt was sent, its blocks are told. Lower: evictions are seen sooner; higher: events may be late.
 */
const events_late_ms = 5000;
/**
 * Of a prompt that another gateway may have sent, so much is taken to be where hashing has it. Lower: loads are even;
 * higher: several gateways find more of each other's. Chosen by replay (`-- prefix`).
 */
const elsewhere_share = 0.8;
/** Samples of less work say more about the way of a request than about the speed of its replica. */
const sample_tokens_min = 64;

/** A ratio of sums: a large sample counts for more than a small one, and old ones fade. */
class FadingRatio {
  #above = 0;
  #below = 0;

  add(above: number, below: number): void {
    this.#above = kept * this.#above + above;
    this.#below = kept * this.#below + below;
  }

  get value(): number | undefined {
    return this.#below > 0 && this.#above > 0 ? this.#above / this.#below : undefined;
  }
}

/** Tokens of a prompt that are to be computed, at the latest until then. */
interface UnseenPrefill {
  tokens: number;
  until_ms: number;
}

class ReplicaPrefills {
  readonly #speed = new FadingRatio();
  #streamed_tokens = 0;
  /** Of requests whose first token nobody sees, the first to be over first. */
  readonly #unseen = new Set<UnseenPrefill>();
  #unseen_tokens = 0;

  pending_tokens(now_ms: number): number {
    for (const prefill of this.#unseen) {
      if (prefill.until_ms > now_ms) break;
      this.takeUnseen(prefill);
    }
    return this.#streamed_tokens + this.#unseen_tokens;
  }

  get tokens_per_s(): number | undefined {
    return this.#speed.value;
  }

  add(tokens: number): void {
    this.#streamed_tokens += tokens;
  }

  take(tokens: number): void {
    this.#streamed_tokens = Math.max(0, this.#streamed_tokens - tokens);
  }

  addUnseen(prefill: UnseenPrefill): void {
    this.#unseen.add(prefill);
    this.#unseen_tokens += prefill.tokens;
  }

  /** Whoever has its answer has had its first token. */
  takeUnseen(prefill: UnseenPrefill): void {
    if (!this.#unseen.delete(prefill)) return;
    // Sums of fractions are not to drift where nothing is left.
    this.#unseen_tokens = this.#unseen.size === 0 ? 0 : this.#unseen_tokens - prefill.tokens;
  }

  measured(tokens: number, seconds: number): void {
    if (tokens >= sample_tokens_min && seconds > 0) this.#speed.add(tokens, seconds);
  }
}

/** The state of one model; its owner brings the time. */
export class ModelPrefixes {
  /** That answer for the model, this one included. */
  gateways = 1;
  readonly #tree: PrefixTree;
  readonly #units_per_block: number;
  readonly #lengths = new FadingRatio();
  readonly #speeds = new FadingRatio();
  readonly #prefills = new Map<string, ReplicaPrefills>();

  constructor({ bytes_max, units_per_block }: PrefixSettings) {
    this.#tree = new PrefixTree(bytes_max);
    this.#units_per_block = units_per_block;
  }

  get tokens_per_unit(): number {
    return this.#lengths.value ?? unknown_tokens_per_unit;
  }

  /** What its tree takes, about. */
  get bytes(): number {
    return this.#tree.bytes;
  }

  /** @param residents what engines say that they hold, by session id; absent: they do not say */
  view(
    { blocks, units }: PromptBlocks,
    now_ms: number,
    residents: ReadonlyMap<string, ResidentBlocks> = new Map(),
  ): PromptView {
    const tokens = units * this.tokens_per_unit;
    const match = this.#tree.match(blocks);
    const held_tokens = new Map<string, number>();
    // Even of a prompt that is there whole, the last token is computed.
    const hold = (session_id: string, held: number): void => {
      if (held > 0) held_tokens.set(session_id, Math.max(0, Math.min(held, tokens - 1)));
    };
    for (const [session_id, { blocks: count }] of match.held)
      hold(session_id, count * this.#units_per_block * this.tokens_per_unit);
    for (const [session_id, resident] of residents) {
      if (!this.#believes(resident, match.held.get(session_id), now_ms)) continue;
      const there = this.#residentTokens(match, resident);
      if (there === undefined) continue;
      held_tokens.delete(session_id);
      hold(session_id, there);
    }
    const prefill_tokens_per_s = this.#speeds.value ?? unknown_tokens_per_s;
    const prefills = new Map<string, PrefillLoad>();
    for (const [session_id, replica] of this.#prefills)
      prefills.set(session_id, {
        pending_tokens: replica.pending_tokens(now_ms),
        tokens_per_s: replica.tokens_per_s ?? prefill_tokens_per_s,
      });
    const elsewhere = this.gateways > 1 ? elsewhere_share : 0;
    return { tokens, held_tokens, prefills, prefill_tokens_per_s, elsewhere };
  }

  /**
   * A prompt goes to a replica, which has it from then on.
   * @param view as it was seen at the same moment
   * @param streams whether its first token will show
   * @param kv_tokens that the replica's cache holds; 0: it does not say
   */
  sent(
    session_id: string,
    prompt: PromptBlocks,
    view: PromptView,
    { now_ms, streams, kv_tokens }: { now_ms: number; streams: boolean; kv_tokens: number },
  ): SentPrompt {
    const { pending_tokens = 0, tokens_per_s = view.prefill_tokens_per_s } =
      view.prefills.get(session_id) ?? {};
    const uncached_tokens = Math.max(0, view.tokens - (view.held_tokens.get(session_id) ?? 0));
    const queued_tokens = pending_tokens + uncached_tokens;
    const prefills = this.#prefillsOf(session_id);
    const until_ms = now_ms + (1000 * queued_tokens) / tokens_per_s;
    const unseen = streams ? undefined : { tokens: uncached_tokens, until_ms };
    if (unseen) prefills.addUnseen(unseen);
    else prefills.add(uncached_tokens);
    if (kv_tokens > 0) {
      const per_block = this.#units_per_block * this.tokens_per_unit;
      this.#tree.setCapacity(session_id, Math.floor(kv_tokens / per_block));
    }
    this.#tree.insert(session_id, prompt.blocks, now_ms);
    const { units } = prompt;
    return { session_id, units, uncached_tokens, queued_tokens, sent_ms: now_ms, unseen, state: 'pending' };
  }

  /** An engine has told the tokens of a prompt. @param block_tokens of the blocks of which engines tell */
  spelled({ blocks, units }: PromptBlocks, token_ids: Int32Array, block_tokens: number): void {
    const hashes = tokenHashes(token_ids, block_tokens);
    if (hashes.length > 0) this.#tree.annotate(blocks, { hashes, tokens: token_ids.length, units });
  }

  /** Events come with heartbeats: what was sent a moment ago is not among them yet. */
  #believes({ told }: ResidentBlocks, held: HeldPrefix | undefined, now_ms: number): boolean {
    return told && (held === undefined || now_ms - held.used_ms > events_late_ms);
  }

  /** Undefined where the tokens of the prompt's beginning are not known. */
  #residentTokens({ blocks, note }: PrefixMatch, resident: ResidentBlocks): number | undefined {
    if (note === undefined) return undefined;
    const tokens_max = (blocks * this.#units_per_block * note.tokens) / note.units;
    return Math.min(tokens_max, resident.tokensOf(note.hashes, tokens_max));
  }

  /** The first token of its answer came. */
  began(sent: SentPrompt, now_ms: number): void {
    if (sent.state !== 'pending') return;
    this.#leave(sent);
    if (sent.unseen) return;
    const seconds = (now_ms - sent.sent_ms) / 1000;
    this.#prefills.get(sent.session_id)?.measured(sent.queued_tokens, seconds);
    if (sent.queued_tokens >= sample_tokens_min && seconds > 0) this.#speeds.add(sent.queued_tokens, seconds);
  }

  /** It is over, with or without an answer. @param prompt_tokens as its replica counted them; undefined: unknown */
  ended(sent: SentPrompt, prompt_tokens: number | undefined): void {
    if (sent.state === 'pending') this.#leave(sent);
    if (prompt_tokens !== undefined && prompt_tokens > 0 && sent.units > 0)
      this.#lengths.add(prompt_tokens, sent.units);
  }

  /** Its cache is empty: it was restarted, cleared, or is gone. */
  forget(session_id: string): void {
    this.#tree.forget(session_id);
    this.#prefills.delete(session_id);
  }

  #leave(sent: SentPrompt): void {
    sent.state = 'begun';
    const prefills = this.#prefills.get(sent.session_id);
    if (sent.unseen) prefills?.takeUnseen(sent.unseen);
    else prefills?.take(sent.uncached_tokens);
  }

  #prefillsOf(session_id: string): ReplicaPrefills {
    let replica = this.#prefills.get(session_id);
    if (!replica) {
      replica = new ReplicaPrefills();
      this.#prefills.set(session_id, replica);
    }
    return replica;
  }
}
