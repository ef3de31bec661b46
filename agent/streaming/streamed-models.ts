import type { Engine, EngineOptions } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { DevicePool } from '../memory/device-pool.ts';
import { TensorLoader } from '../memory/load/tensor-loader.ts';
import { openHybridProducts } from './hybrid-opening.ts';
import { whyUnlocked } from './locked-uploads.ts';
import { openStreamingEngine } from './open-streaming.ts';
import { StreamingArena } from './streaming-arena.ts';

/** Of what was to stay, as much of it as the pool has room for. More of them: nearer to it; fewer: tried sooner. */
const resident_shares = [1, 0.75, 0.5, 0.25, 0.125] as const;

/** What a model has whose weights stay in host memory. */
export interface StreamedPart {
  /** Of the device, for layers that stay. */
  resident_bytes: number;
  /** Of the rate of its link, what it counts on where others read over it, too; absent: all of it. */
  link_share?: number | undefined;
  /** What the plan takes its link to give who reads over it alone; absent: it has no figure for it. */
  link_bytes_per_s?: number | undefined;
  /** Of host memory, for page-locked copies; absent: no product of the device would read them. */
  locked_bytes?: number | undefined;
}

/** What a device has for models whose weights are streamed. */
export interface StreamingShare {
  /** Of the pool; what the largest layers of all such models need. */
  arena_bytes: number;
  /** The same beside it, for layers that stay, of all such models together. */
  resident_bytes: number;
  /** What the plan counted on for everything else that the pool holds; absent: nothing is known of it. */
  beside_bytes?: number | undefined;
  /** That bring weights. */
  copy_threads: number;
  /** That compute meanwhile. */
  compute_threads: number;
}

export interface StreamedSurroundings {
  /** A part of a model was brought and computed. */
  beat(): void;
  /** So many bytes of the pool are the arena's from now on; 0: it is gone. */
  held(bytes: number): void;
}

/** What `openStreamingEngine` made; there is nothing to wait for. */
interface OpenedEngine {
  advance(): Engine;
  abort(): void;
}

/**
 * Of a device's cores, copies have half: where both are bound by memory they take as long as products. Another device
 * computes by itself.
 */
export function streamingThreads(
  threads: number,
  isOnCpu: boolean,
): Pick<StreamingShare, 'copy_threads' | 'compute_threads'> {
  if (!isOnCpu) return { copy_threads: threads, compute_threads: threads };
  const copy_threads = Math.max(1, Math.floor(threads / 2));
  return { copy_threads, compute_threads: Math.max(1, threads - copy_threads) };
}

/**
 * The models of a device whose weights are streamed. They share one arena, which is there while any of them has an
 * engine.
 */
export class StreamedModels {
  readonly #pool: () => DevicePool;
  readonly #share: StreamingShare | undefined;
  readonly #around: StreamedSurroundings;
  #loader: TensorLoader | undefined;
  #arena: StreamingArena | undefined;
  /** Since the arena is there. */
  #uploads_because: string | undefined;
  #engines = 0;

  constructor(pool: () => DevicePool, share: StreamingShare | undefined, around: StreamedSurroundings) {
    this.#pool = pool;
    this.#share = share;
    this.#around = around;
  }

  /**
   * @returns the engine, ready at once: its weights come with its first step
   * @throws HpcserveError as `openStreamingEngine`; E_POOL_FULL: there is no room for the arena
   */
  open(name: string, options: EngineOptions, own: StreamedPart): OpenedEngine {
    const { resident_bytes, link_share, link_bytes_per_s, locked_bytes } = own;
    const share = this.#share;
    if (!share)
      throw new HpcserveError('E_ENGINE_OPTIONS', {
        what: `the weights of ${name} cannot be streamed`,
        because: 'the device worker was given no arena for them',
      });
    const arena = this.#takeArena(share);
    try {
      // Where the arena has less than was planned, every model does.
      const part = share.resident_bytes > 0 ? Math.min(1, arena.resident_bytes / share.resident_bytes) : 0;
      const given_bytes = Math.floor(part * resident_bytes);
      const { engine } = openStreamingEngine({ ...options, threads: share.compute_threads }, arena, {
        resident_bytes: given_bytes,
        lacking_bytes: resident_bytes - given_bytes,
        planned_link_bytes_per_s: link_bytes_per_s && (link_share ?? 1) * link_bytes_per_s,
        uploads_because: this.#uploads_because,
        kv: this.#pool().kv(name),
        disk: this.#pool().disk,
        products: (meter) =>
          openHybridProducts({
            backend: this.#pool().backend,
            meter,
            arena_bytes: arena.ring.bytes,
            link_share,
            locked_bytes,
          }),
        on_part: () => this.#around.beat(),
        on_closed: () => this.#leave(),
      });
      return { advance: () => engine, abort: () => engine.close() };
    } catch (error) {
      this.#leave();
      throw error;
    }
  }

  /** Once no model is open. */
  async close(): Promise<void> {
    await this.#loader?.close();
  }

  #takeArena(share: StreamingShare): StreamingArena {
    if (!this.#arena) {
      this.#arena = this.#openArena(share);
      this.#uploads_because = whyUnlocked(this.#arena.backend, share.copy_threads);
      this.#around.held(this.#arena.bytes);
    }
    this.#engines++;
    return this.#arena;
  }

  /**
   * Where the pool has no room for all that is to stay, less of it does. A pool that is smaller than was planned (the
   * site's limit, memory that a stranger has) lacks first what was left over: models that were to lie there, those that
   * rest now among them, keep their room.
   */
  #openArena({
    arena_bytes: ring_bytes,
    beside_bytes,
    copy_threads,
    ...share
  }: StreamingShare): StreamingArena {
    const pool = this.#pool();
    this.#loader ??= new TensorLoader(pool.backend, pool.memory, {
      threads: copy_threads,
      // Every round needs them again: they are to stay in host memory.
      past_cache: () => false,
      stays_mapped: true,
    });
    const left_bytes =
      beside_bytes === undefined ? share.resident_bytes : pool.memory.bytes - beside_bytes - ring_bytes;
    const resident_bytes = Math.max(0, Math.min(share.resident_bytes, left_bytes));
    for (const part of resident_bytes > 0 ? resident_shares : []) {
      const options = { ring_bytes, resident_bytes: Math.floor(part * resident_bytes), copy_threads };
      try {
        return new StreamingArena(pool, this.#loader, options);
      } catch (error) {
        if (!(error instanceof HpcserveError && error.code === 'E_POOL_FULL')) throw error;
      }
    }
    return new StreamingArena(pool, this.#loader, { ring_bytes, resident_bytes: 0, copy_threads });
  }

  #leave(): void {
    if (--this.#engines > 0) return;
    this.#arena?.close();
    this.#arena = undefined;
    this.#around.held(0);
  }
}
