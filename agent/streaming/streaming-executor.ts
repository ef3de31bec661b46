import type { EngineStats, SwapPlace } from '../../spec/engine-contract.ts';
import type { BatchExecutor, BatchOutputs, StageSummary } from '../engine/batch-executor.ts';
import { batchTokens, type PlannedSequence } from '../engine/iteration-batch.ts';
import type { KvMemory } from '../engine/kv-memory.ts';
import type { KvStorage } from '../engine/kv-storage.ts';
import type { ParkingDisk } from '../engine/parking-disk.ts';
import { readSegment } from '../engine/segment-output.ts';
import type { Stage } from '../engine/stage.ts';
import type { StageResult } from '../engine/stage-batch.ts';
import { SwappedSequences } from '../engine/swapped-sequences.ts';
import type { ExpertStream } from './expert-stream.ts';
import type { HostEmbedding } from './host-embedding.ts';
import type { HybridProducts } from './hybrid-products.ts';
import type { PartStream } from './part-stream.ts';
import type { StreamStatistics } from './stream-meter.ts';
import type { StreamedPass } from './streamed-pass.ts';
import type { StreamingArena } from './streaming-arena.ts';

interface ExecutorParts {
  arena: StreamingArena;
  stream: PartStream;
  embedding: HostEmbedding;
  /** Of all layers. */
  kv: KvMemory;
  /** Where KV of sequences may wait that give way; absent: in host memory alone. */
  disk: ParkingDisk | undefined;
  /** Of the parts of the stream; the last one has the head. */
  stages: readonly Stage[];
  pass: StreamedPass;
  /** Of a mixture that is cut at its routers. */
  experts: ExpertStream | undefined;
  /** What multiplies by weights where they are. */
  products: HybridProducts | undefined;
  /** Why nothing does, where something could. */
  copied_because: string | undefined;
  /** Why what is copied goes through memory that is not page-locked. */
  uploads_because: string | undefined;
  /** Of layers that were to stay, so many bytes found no room. */
  lacking_bytes: number;
  /** Gives back what parts have of the arena. */
  on_free: () => void;
}

/**
 * A whole model of which only a part lies on the device: its parts compute one behind the other, each once its weights
 * are there, while those of the next ones come.
 */
export class StreamingExecutor implements BatchExecutor {
  readonly depth = 1;
  readonly kv_tokens_max = Number.POSITIVE_INFINITY;
  readonly #own: ExecutorParts;
  readonly #swapped: SwappedSequences;
  #computed: { batch: readonly PlannedSequence[]; result: StageResult } | undefined;

  constructor(own: ExecutorParts) {
    this.#own = own;
    this.#swapped = new SwappedSequences(own.kv, own.disk);
  }

  get stage(): Stage {
    return this.#own.stages.at(-1)!;
  }

  get whole(): StageSummary {
    const { stages } = this.#own;
    const layouts: Record<string, number> = {};
    for (const stage of stages)
      for (const [layout, bytes] of Object.entries(stage.layouts))
        layouts[layout] = (layouts[layout] ?? 0) + bytes;
    return {
      kv: this.#own.kv,
      weight_bytes: stages.reduce((sum, { weight_bytes }) => sum + weight_bytes, 0),
      layouts,
      batch_invariant: stages.every(({ batch_invariant }) => batch_invariant),
      // They lie over one another.
      compute_bytes: Math.max(...stages.map(({ compute_bytes }) => compute_bytes)),
      working_bytes:
        (this.#own.kv.storage.padding_bytes ?? 0) +
        Math.max(...stages.map(({ working_bytes }) => working_bytes)),
      prompt_rows_max: Math.min(...stages.map(({ prompt_rows_max }) => prompt_rows_max)),
    };
  }

  get model(): Stage['model'] {
    return this.stage.model;
  }

  get streamed(): NonNullable<EngineStats['streamed']> {
    const { arena, stream, experts, products, lacking_bytes } = this.#own;
    const { link, slow, waited_ms } = stream.statistics;
    const { resident_bytes, step_bytes } = stream.sizes;
    const routed = experts?.statistics;
    const told: NonNullable<EngineStats['streamed']> = {
      arena_bytes: arena.ring.bytes,
      resident_bytes: resident_bytes + (experts?.resident_bytes ?? 0),
      step_bytes: step_bytes + Math.round(routed?.step_bytes ?? 0),
      waited_ms,
    };
    if (routed) told.experts_at_hand = routed.at_hand;
    // The first transfer says what there was to begin with.
    if (link && link.samples > 0) told.link_bytes_per_s = link.bytes_per_s;
    if (link?.reached_bytes_per_s) told.link_bytes_per_s_max = link.reached_bytes_per_s;
    const because = slow === undefined ? [] : [slow];
    if (lacking_bytes > 0)
      because.push(
        `of the layers that were to stay, ${Math.ceil(lacking_bytes / 2 ** 20)} MiB come with every step: the memory pool has no room for them`,
      );
    const { copied_because, uploads_because } = this.#own;
    for (const own of [products?.because ?? copied_because, uploads_because])
      if (own !== undefined) because.push(own);
    if (because.length > 0) told.because = because;
    return told;
  }

  get storage(): KvStorage {
    return this.#own.kv.storage;
  }

  get stream(): PartStream {
    return this.#own.stream;
  }

  get statistics(): StreamStatistics {
    return this.#own.stream.statistics;
  }

  reserve(tokens: number, rows: number): boolean {
    return this.#own.stages.every((stage) => stage.reserve(tokens, rows));
  }

  copyRows(from_block: number, to_block: number, rows: number): void {
    this.#own.kv.copyRows(from_block, to_block, rows);
  }

  /** @throws HpcserveError as `BatchExecutor`, and E_POOL_LOAD, E_MODEL_WEIGHTS: weights did not come */
  submit(batch: readonly PlannedSequence[]): void {
    const { stream, embedding, pass, products } = this.#own;
    const segments = batch.map(({ segment }) => segment);
    stream.beginRound(segments.reduce((sum, segment) => sum + segment.rows, 0));
    this.#computed = { batch, result: pass.run(segments, embedding.lookUp(batchTokens(batch))) };
    products?.packNext();
  }

  collect(): BatchOutputs {
    const { batch, result } = this.#computed!;
    this.#computed = undefined;
    const segments = batch.map((planned, index) =>
      readSegment(planned, result.first_row[index]!, result, this.model),
    );
    return { segments, damaged: [] };
  }

  get hasDisk(): boolean {
    return this.#swapped.hasDisk;
  }

  swapOut(id: number, blocks: readonly number[], tokens: number, place: SwapPlace): number | undefined {
    return this.#swapped.out(id, blocks, tokens, place);
  }

  swapIn(id: number, blocks: readonly number[]): boolean {
    return this.#swapped.in(id, blocks);
  }

  forgetSwapped(id: number): void {
    this.#swapped.forget(id);
  }

  free(): void {
    this.#swapped.clear();
    this.#own.arena.leave(this.#own.stream);
    for (const stage of this.#own.stages) stage.free();
    this.#own.experts?.free();
    this.#own.products?.free();
    this.#own.embedding.free();
    this.#own.kv.free();
    this.#own.on_free();
  }
}
