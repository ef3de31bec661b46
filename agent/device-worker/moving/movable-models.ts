import type { TransferMemory } from '../../../native/fabric/memory.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvFormat } from '../../transfer/kv-format.ts';
import type { KvRoom } from '../../transfer/messages.ts';
import type { HostRoom, KvAsk, KvTold } from '../compute/kv-messages.ts';
import type { Models } from '../models.ts';
import type { ServedModel } from '../served-model.ts';
import { HostStaging } from './host-staging.ts';

/** The models of a worker as far as their answers can move. */
export class MovableModels {
  readonly #models: Models;
  readonly #build: string;
  readonly #pool_bytes: number;
  #staging: HostStaging | undefined;

  /**
   * @param build of hpcserve and of what computes
   * @param pool_bytes of the device: staging memory is a small part of that
   */
  constructor(models: Models, build: string, pool_bytes: number) {
    this.#models = models;
    this.#build = build;
    this.#pool_bytes = pool_bytes;
  }

  /**
   * Memory that rows of all of them travel from and to: the pool's, or staging memory of the host where others cannot
   * address that. Undefined before the first one serves.
   * @throws HpcserveError E_NATIVE_MEMORY
   */
  openMemory(): TransferMemory | undefined {
    for (const { kv, stage_kv } of this.#models.all) {
      const shape = kv ?? stage_kv;
      if (!shape) continue;
      if (shape.memory) return shape.memory;
      this.#staging ??= new HostStaging(this.#pool_bytes);
      return this.#staging.memory;
    }
    return undefined;
  }

  /** Absent: others address the memory of the device. */
  get staging(): HostStaging | undefined {
    return this.#staging;
  }

  ask(asked: KvAsk): Promise<KvTold> {
    return this.#models.askKv(asked);
  }

  /**
   * Does something with rows that leave, with a room of the host for them where others cannot address the device.
   * Once `use` is over, nothing reads the room.
   */
  async withRoom<T>(use: (into: HostRoom | undefined) => Promise<T>): Promise<T> {
    const room = await this.#staging?.toLeave();
    try {
      return await use(room && roomOnly(room));
    } finally {
      room?.give();
    }
  }

  /** @throws HpcserveError E_KV_FORMAT: answers of this model cannot move, and why */
  formatOf(name: string): KvFormat {
    const { kv, digest, config } = this.#serving(name);
    if (!kv) throw cannot(name, 'its KV is spread over stages, or not in the memory pool');
    if (digest === undefined) throw cannot(name, 'its model file has not been hashed yet');
    const { row_bytes, n_head_kv, head_dim } = kv;
    const { kv_type } = config;
    return { build: this.#build, model: digest, kv_type, row_bytes, n_head_kv, head_dim };
  }

  canMove(name: string): boolean {
    const model = this.#models.all.find(({ config }) => config.name === name);
    return model?.state === 'serving' && model.kv !== undefined && model.digest !== undefined;
  }

  /** Of rows of its stages. @throws HpcserveError E_KV_FORMAT */
  rowFormatOf(name: string): KvFormat {
    const model = this.#models.all.find(({ config }) => config.name === name);
    if (!model?.stage_kv) throw cannot(name, 'no stage of it is here');
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
      places: Math.max(0, model.max_sequences - this.#models.liveOf(name)),
      kv_tokens: Math.max(0, kv_tokens_total - kv_tokens_used),
    };
  }

  #serving(name: string): ServedModel {
    const model = this.#models.all.find(({ config }) => config.name === name);
    if (model?.state !== 'serving') throw cannot(name, `it is ${model?.state ?? 'not loaded'} here`);
    return model;
  }
}

/** Without what messages cannot carry. */
export function roomOnly({ offset, bytes, address }: HostRoom): HostRoom {
  return { offset, bytes, address };
}

function cannot(name: string, because: string): HpcserveError {
  return new HpcserveError('E_KV_FORMAT', { what: `keys and values of ${name} cannot move`, because });
}
