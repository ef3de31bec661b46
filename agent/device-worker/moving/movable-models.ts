import type { TransferMemory } from '../../../native/fabric/memory.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvFormat } from '../../transfer/kv-format.ts';
import type { KvRoom } from '../../transfer/messages.ts';
import type { KvAsk, KvTold } from '../compute/kv-messages.ts';
import type { Models } from '../models.ts';
import type { ServedModel } from '../served-model.ts';

/** The models of a worker as far as their answers can move. */
export class MovableModels {
  readonly #models: Models;
  readonly #build: string;

  /** @param build of hpcserve and of what computes */
  constructor(models: Models, build: string) {
    this.#models = models;
    this.#build = build;
  }

  /** What rows of all of them lie in; undefined before the first one serves, or where others cannot address it. */
  get memory(): TransferMemory | undefined {
    for (const { kv, stage_kv } of this.#models.all) if (kv ?? stage_kv) return (kv ?? stage_kv)!.memory;
    return undefined;
  }

  ask(asked: KvAsk): Promise<KvTold> {
    return this.#models.askKv(asked);
  }

  /** @throws HpcserveError E_KV_FORMAT: answers of this model cannot move, and why */
  formatOf(name: string): KvFormat {
    const { kv, digest, config } = this.#serving(name);
    if (!kv)
      throw cannot(name, 'its KV is spread over stages, or in memory that other processes cannot address');
    if (digest === undefined) throw cannot(name, 'its model file has not been hashed yet');
    const { row_bytes, n_head_kv, head_dim } = kv;
    const { kv_type } = config;
    return { build: this.#build, model: digest, kv_type, row_bytes, n_head_kv, head_dim };
  }

  /** Of rows of its stages. @throws HpcserveError E_KV_FORMAT */
  rowFormatOf(name: string): KvFormat {
    const model = this.#models.all.find(({ config }) => config.name === name);
    if (!model?.stage_kv) throw cannot(name, 'no stage of it is here whose KV other processes can address');
    const { identity, row_bytes, n_head_kv, head_dim } = model.stage_kv;
    const { kv_type } = model.config;
    return { build: this.#build, model: identity, kv_type, row_bytes, n_head_kv, head_dim };
  }

  layersOf(name: string): number {
    return this.#serving(name).kv?.n_layer ?? 0;
  }

  /** Keys and values of a token over all layers. */
  tokenSize_bytes(name: string): number {
    const { kv } = this.#serving(name);
    return kv ? 2 * kv.n_layer * kv.row_bytes : 0;
  }

  roomOf(name: string): KvRoom {
    const model = this.#models.all.find(({ config, state }) => config.name === name && state === 'serving');
    if (!model?.kv || model.digest === undefined || !model.stats) return { places: 0, kv_tokens: 0 };
    const { kv_tokens_total, kv_tokens_used } = model.stats;
    return {
      places: Math.max(0, model.config.max_sequences - this.#models.liveOf(name)),
      kv_tokens: Math.max(0, kv_tokens_total - kv_tokens_used),
    };
  }

  #serving(name: string): ServedModel {
    const model = this.#models.all.find(({ config }) => config.name === name);
    if (model?.state !== 'serving') throw cannot(name, `it is ${model?.state ?? 'not loaded'} here`);
    return model;
  }
}

function cannot(name: string, because: string): HpcserveError {
  return new HpcserveError('E_KV_FORMAT', { what: `keys and values of ${name} cannot move`, because });
}
