import { randomBytes } from 'node:crypto';
import {
  type DecodePeer,
  decideHandover,
  type HandoverDecision,
  leastHandover_tokens,
  partSize_tokens,
} from '../../../solver/disaggregation/handover.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type HandoversReport, type KeptReason, keptReasons } from '../../../spec/moves-report.ts';
import type { KvSource, SentKv } from '../../transfer/kv-source.ts';
import type { SequenceState } from '../compute/kv-messages.ts';
import type { Submission } from '../compute/messages.ts';
import type { Models } from '../models.ts';
import type { ServedModel } from '../served-model.ts';
import type { AgentPeers, ListedPeer } from './agent-peers.ts';
import { type Leaving, newLeaving, sendComputed, settle, stopAndSend } from './answer-move.ts';
import { DecodePeers } from './decode-peers.ts';
import type { ModelPaces } from './model-paces.ts';
import type { MovableModels } from './movable-models.ts';

interface HandoverParts {
  models: Models;
  movable: MovableModels;
  agent: AgentPeers;
  paces: ModelPaces;
  source(): Promise<KvSource>;
  /** An answer goes there. */
  goesTo(peer: ListedPeer): void;
  /** Something works worse than it should. */
  warn(notice: HpcserveError): void;
  /** What there is to report changed. */
  changed(): void;
}

/** What is said to gateways, which have the answer continued. */
const because = 'its prompt is computed, and it goes on at a replica of the decode pool';

/**
 * Has answers whose prompts this worker computes go on at replicas of the decode pool, where it has a replica of the
 * prefill pool. Whether, and where, is decided in `solver/disaggregation`.
 *
 *     submitted ─► decide ─► hold, copy ─► … the prompt is computed ─► stop, copy the rest ─► tell the gateway
 *                    │         while the next part is computed                 │
 *                    └─ nobody, no room, not worth it ─► decoded here ◄────────┘ nobody took it
 */
export class PromptHandovers {
  readonly #parts: HandoverParts;
  readonly #peers: DecodePeers;
  /** Answers that are handed over, or may be. */
  readonly #answers = new Set<number>();
  /** By sequence: who waits for the next iteration of its model, or its end. */
  readonly #waiting = new Map<number, { model: string; wake: () => void }>();
  readonly #kept = new Map<KeptReason, number>();
  #handed_over = 0;
  #tokens = 0;
  #early_tokens = 0;
  #pauses_ms = 0;
  #last_because: string | undefined;

  constructor(parts: HandoverParts) {
    this.#parts = parts;
    this.#peers = new DecodePeers(parts.agent, (notice) => parts.warn(notice));
  }

  /** Whether an answer is on its way, or about to be: nothing else moves it meanwhile. */
  has(answer: number): boolean {
    return this.#answers.has(answer);
  }

  /** A sequence was handed to the compute thread. */
  submitted(submission: Submission): void {
    const { models } = this.#parts;
    const model = models.all.find(({ config }) => config.name === submission.model);
    if (model?.config.pool !== 'prefill' || submission.sampling === undefined) return;
    if (!submission.handover) {
      this.#keep('several', 'answers with several choices, and prompts with log probabilities, stay');
      return;
    }
    this.#answers.add(submission.answer);
    void this.#run(submission, model).finally(() => this.#answers.delete(submission.answer));
  }

  /** An iteration of a model has ended. */
  stepped(name: string): void {
    for (const { model, wake } of this.#waiting.values()) if (model === name) wake();
  }

  /** A sequence has ended. */
  ended(id: number): void {
    this.#waiting.get(id)?.wake();
  }

  /** Undefined: no replica of a prefill pool is here. */
  get report(): HandoversReport | undefined {
    if (this.#parts.models.all.every(({ config }) => config.pool !== 'prefill')) return undefined;
    const kept = keptReasons.map((reason) => [reason, this.#kept.get(reason) ?? 0] as const);
    const report: HandoversReport = {
      handed_over: this.#handed_over,
      tokens: this.#tokens,
      early_tokens: this.#early_tokens,
      pause_ms: this.#handed_over === 0 ? 0 : this.#pauses_ms / this.#handed_over,
      kept: Object.fromEntries(kept) as HandoversReport['kept'],
    };
    if (this.#last_because !== undefined) report.last_because = this.#last_because;
    return report;
  }

  /** Until it is handed over, has ended, or nobody is left that could take it. */
  async #run(submission: Submission, model: ServedModel): Promise<void> {
    const { models, warn } = this.#parts;
    const refused_by: string[] = [];
    let failed: string | undefined;
    while (models.isLive(submission.id)) {
      let to: (DecodePeer & { listed: ListedPeer }) | undefined;
      try {
        const { decision, peers } = await this.#decide(submission, model, refused_by);
        if (decision.do === 'keep') {
          this.#keep(failed === undefined ? decision.reason : 'failed', failed ?? decision.because);
          return;
        }
        to = peers.find(({ id }) => id === decision.peer)!;
        if (!models.isLive(submission.id)) return;
        this.#peers.take(to, submission.tokens.length);
        await this.#handOver(submission, model, to.listed);
        return;
      } catch (error) {
        const failure = HpcserveError.from(error);
        if (!models.isLive(submission.id)) return;
        failed = [failure.message, ...failure.because].join(': ');
        if (to === undefined) {
          this.#keep('failed', failed);
          return;
        }
        warn(failure);
        refused_by.push(to.id);
      }
    }
  }

  async #decide(
    { tokens, max_new_tokens }: Submission,
    model: ServedModel,
    refused_by: readonly string[],
  ): Promise<{
    decision: HandoverDecision;
    peers: readonly (DecodePeer & { listed: ListedPeer })[];
  }> {
    const { movable, paces } = this.#parts;
    const { name, prefill_chunk_tokens: chunk_tokens } = model.config;
    // Where its rows cannot move, nobody is asked.
    movable.formatOf(name);
    const peers = await this.#peers.of(name);
    const { prefill_tokens_per_s } = paces.of(name);
    const pace = { kv_token_bytes: movable.tokenSize_bytes(name), chunk_tokens, prefill_tokens_per_s };
    if (prefill_tokens_per_s !== undefined && peers.length > 0)
      model.handover_tokens_min = leastHandover_tokens(pace, peers, model.context_tokens);
    const asked = { tokens: tokens.length, answer_tokens: max_new_tokens };
    return { decision: decideHandover(asked, pace, peers, refused_by), peers };
  }

  /** @throws HpcserveError E_KV_*: it goes on here */
  async #handOver(submission: Submission, { config }: ServedModel, listed: ListedPeer): Promise<void> {
    const { models, movable, agent, source: open, goesTo } = this.#parts;
    const { id, tokens } = submission;
    const kv = randomBytes(16).toString('hex');
    const one = newLeaving(kv, submission);
    const peer = agent.peer(listed);
    const source = await open();
    goesTo(listed);
    const note = (sent: SentKv | undefined): void => {
      if (sent) this.#peers.sent(peer.session_id, sent);
    };
    const send = async (): Promise<void> => note(await sendComputed({ source, movable }, peer, one));
    try {
      const part = partSize_tokens(tokens.length, config.prefill_chunk_tokens);
      if (!(await this.#copyWhileComputed(one, part, send))) return;
      const stopped_ms = performance.now();
      const { stopped, sent } = await stopAndSend({ source, movable }, peer, one);
      if (!stopped) return;
      note(sent);
      await settle(movable, [one], true);
      this.#pauses_ms += performance.now() - stopped_ms;
    } catch (error) {
      await settle(movable, [one], false);
      throw error;
    }
    this.#handed_over++;
    this.#tokens += tokens.length;
    models.giveAway(id, because, { session: peer.session_id, kv });
    this.#parts.changed();
  }

  /**
   * Sends what is computed of a prompt, a part at a time, until its first token is there and little is left.
   * @returns false where it has ended
   */
  async #copyWhileComputed(one: Leaving, part_tokens: number, send: () => Promise<void>): Promise<boolean> {
    const { models } = this.#parts;
    const { id, model, tokens } = one.submission;
    while (models.isLive(id)) {
      const next = this.#nextStep(id, model);
      const state = await this.#stateOf(model, id);
      const left = state ? state.computed_tokens - one.sent : 0;
      const begun = state !== undefined && state.tokens > tokens.length;
      if (begun && left <= 2 * part_tokens) return true;
      if (left < part_tokens) {
        await next;
        continue;
      }
      const before = one.sent;
      await send();
      if (!begun) this.#early_tokens += one.sent - before;
    }
    return false;
  }

  /** Undefined: it does not run, or not yet. */
  async #stateOf(model: string, id: number): Promise<SequenceState | undefined> {
    const states = (await this.#parts.movable.ask({ do: 'list', model })) as SequenceState[];
    return states.find((state) => state.id === id && !state.waiting);
  }

  /** Asked for before it is looked at how far the sequence is: an iteration that ends meanwhile counts. */
  #nextStep(id: number, model: string): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        this.#waiting.delete(id);
        resolve();
      };
      this.#waiting.set(id, { model, wake });
    });
  }

  #keep(reason: KeptReason, why: string): void {
    this.#kept.set(reason, (this.#kept.get(reason) ?? 0) + 1);
    this.#last_because = why;
    this.#parts.changed();
  }
}
