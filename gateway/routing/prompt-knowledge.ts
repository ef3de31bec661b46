import {
  ModelPrefixes,
  type PromptBlocks,
  type PromptView,
  type SentPrompt,
} from '../../solver/routing/model-prefixes.ts';
import { ResidentBlocks } from '../../solver/routing/resident-blocks.ts';
import { type KvBlockNews, kvBlockNewsSchema, kvChange_bytes } from '../../spec/kv-blocks.ts';
import { block_bytes } from '../relay/prompt-blocks.ts';
import type { SessionLink } from '../session-link.ts';
import type { Replica } from './replica.ts';

/**
 * Of the tree of one model, bytes. Lower: less memory of the gateway; higher: more conversations are found again. With
 * prompts of 8 KiB it holds 10,000 and more.
 */
const tree_bytes_max = 16 * 2 ** 20;
/** Models of which something is known; the one that was asked for longest ago goes. Lower: less memory. */
const models_max = 16;

/** A request that was sent to a replica, as it counts there. */
export interface SentTo {
  model: ModelPrefixes;
  sent: SentPrompt;
  prompt: PromptBlocks;
}

/** Blocks of all replicas together that engines say they hold: 40 bytes each. Lower: less memory. */
const resident_blocks_max = 2 ** 20;
/** Of one replica. */
const replica_blocks_max = 2 ** 18;

/** What this gateway knows of prompts: by model, from what it has sent and what came of it. */
export class PromptKnowledge {
  /** The one asked for longest ago first. */
  readonly #models = new Map<string, ModelPrefixes>();
  /** How many gateways answer, this one included. */
  readonly #gateways: () => number;
  /** By session id. */
  readonly #residents = new Map<string, ResidentBlocks>();

  constructor(gateways: () => number) {
    this.#gateways = gateways;
  }

  view(model: string, prompt: PromptBlocks): PromptView {
    return this.#of(model).view(prompt, performance.now(), this.#residents);
  }

  /** @param streams whether its first token will show */
  sent(replica: Replica<SessionLink>, prompt: PromptBlocks, streams: boolean): SentTo {
    const model = this.#of(replica.served.name);
    const now_ms = performance.now();
    const sent = model.sent(replica.session_id, prompt, model.view(prompt, now_ms, this.#residents), {
      now_ms,
      streams,
      kv_tokens: replica.kv_tokens_total,
    });
    return { model, sent, prompt };
  }

  /** The first token is on its way to the client. */
  began({ model, sent }: SentTo): void {
    model.began(sent, performance.now());
  }

  /** @param prompt_tokens as its replica counted them; undefined: it did not say, or only of another prompt */
  ended({ model, sent }: SentTo, prompt_tokens: number | undefined): void {
    model.ended(sent, prompt_tokens);
  }

  /** Takes the tokens of a prompt that its stream begins with; undefined where they are of no use. */
  wantsTokens({ model, sent, prompt }: SentTo): ((token_ids: Int32Array) => void) | undefined {
    const resident = this.#residents.get(sent.session_id);
    if (!resident?.told) return undefined;
    return (token_ids) => model.spelled(prompt, token_ids, resident.block_tokens);
  }

  /**
   * What a session says that its engine's cache holds.
   * @param news as it came; what cannot be read voids what was told before
   */
  blocks(session_id: string, news: unknown): void {
    const { data } = kvBlockNewsSchema.safeParse(news);
    let resident = this.#residents.get(session_id);
    if (data === undefined || data.over) {
      resident?.end();
      return;
    }
    if (!resident) {
      resident = new ResidentBlocks(replica_blocks_max);
      this.#residents.set(session_id, resident);
    }
    if (data.reset) resident.reset(data.block_tokens);
    else if (resident.block_tokens !== data.block_tokens) resident.end();
    for (const change of changesOf(data)) resident.change(change);
    let all = 0;
    for (const { size } of this.#residents.values()) all += size;
    if (all > resident_blocks_max) resident.end();
  }

  /** A replica's cache is empty: its session has left, or its engine gave it up. */
  forget(session_id: string): void {
    for (const model of this.#models.values()) model.forget(session_id);
    this.#residents.delete(session_id);
  }

  #of(name: string): ModelPrefixes {
    let model = this.#models.get(name);
    if (model) this.#models.delete(name);
    else model = new ModelPrefixes({ bytes_max: tree_bytes_max, units_per_block: block_bytes });
    model.gateways = this.#gateways();
    this.#models.set(name, model);
    for (const oldest of this.#models.keys()) {
      if (this.#models.size <= models_max) break;
      this.#models.delete(oldest);
    }
    return model;
  }
}

function* changesOf({ changes }: KvBlockNews): Generator<number> {
  const bytes = Buffer.from(changes, 'base64');
  for (let at = 0; at + kvChange_bytes <= bytes.length; at += kvChange_bytes)
    yield bytes.readUIntBE(at, kvChange_bytes);
}
