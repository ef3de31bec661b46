import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import type { KernelsOption, KvType, LoadProgress } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend } from '../backend/backend.ts';
import type { Compute, GraphOperations, GraphPort } from '../backend/compute.ts';
import type { Architecture } from './architecture.ts';
import { attentionFor } from './attention-choice.ts';
import { kernelPolicy } from './engine-options.ts';
import { buildGraph, type StageParts } from './graph.ts';
import {
  type BuiltGraph,
  type GraphShape,
  type MixtureTensors,
  type SegmentShape,
  shapeKey,
} from './graph-shape.ts';
import { KvMemory } from './kv-memory.ts';
import { type KvSource, kv_block_tokens } from './kv-storage.ts';
import type { ModelFile } from './model-file.ts';
import { type Operator, type StageRange, stageOperators } from './operators.ts';
import { isNarrow, type OutputOrder, outputOrder, singleRows } from './output-order.ts';
import { OwnScratch, type ScratchMemory, type ScratchSource } from './scratch.ts';
import type { BatchSegment, MixtureRows, StageBatch, StageResult } from './stage-batch.ts';
import { bytesByLayout, haveFixedOrder, isFixedUnasked } from './weight-layouts.ts';
import { planWeights } from './weight-plan.ts';
import { type LoadedWeights, Weights } from './weights.ts';

export interface StageOptions {
  threads: number;
  kv_tokens: number;
  kv_type: KvType;
  /** Absent: where it costs next to nothing. */
  batch_invariant?: boolean | undefined;
  /** Absent: `auto`. */
  kernels?: KernelsOption;
  range?: StageRange;
  /** In place of a range: with a mixture's feed-forward in two. */
  operators?: readonly Operator[];
  on_progress?: (progress: LoadProgress) => void;
  /** Weights that are loaded already, the stage's own from now on; absent: it loads them into memory of its own. */
  weights?: LoadedWeights;
  /** Absent: memory of the stage's own, all of it taken at once. */
  kv?: KvSource;
  /** What computes some of its operators, on a device that computes graphs in parts; absent: nothing. */
  operations?: GraphOperations | undefined;
  /** Where intermediate results lie; absent: in memory of the stage's own. */
  scratch?: ScratchSource;
}

/**
 * Rows of every product of ggml on CPUs are a multiple of this where results must not depend on the batch; ours need
 * none.
 */
const invariant_rows = 4;
/** Graphs that are kept: decode batches of every size in use, and the common prefill chunks. */
const kept_graphs_max = 24;
/** Halves of −∞ and 0 in a causal mask. */
const half_negative_infinity = 0xfc00;

interface KeptGraph extends BuiltGraph {
  port: GraphPort;
  tokens?: Int32Array;
  hiddenIn?: Float32Array;
  positions?: Int32Array;
  kvRows?: BigInt64Array;
  outputIds?: Int32Array;
  outputPositions?: Int32Array;
  plan?: Int32Array;
  outputPlan?: Int32Array;
  mixtureIn?: MixtureRows;
  segments: { gatherRows?: Int32Array; mask?: Uint16Array }[];
  routingOut?: MixtureRows & { guess?: Int32Array };
  logitsOut: Float32Array;
  hiddenOut: Float32Array;
}

/**
 * One stage of a model on one device: a contiguous range of operators, their weights and their KV cache.
 * A stage takes tokens or hidden states and gives hidden states or logits; an engine of a whole model is
 * one stage, a pipeline is several.
 */
export class Stage {
  readonly model: Architecture;
  readonly operators: readonly Operator[];
  readonly kv: KvMemory;
  readonly weight_bytes: number;
  /** Bytes of the weights by the layout in which they lie, which says whose kernels multiply by them. */
  readonly layouts: Readonly<Record<string, number>>;
  /** Whether a row's results are the same bits in every batch. */
  readonly batch_invariant: boolean;
  readonly #parts: StageParts;
  readonly #backend: Backend;
  readonly #ggml: Ggml;
  readonly #compute: Compute;
  readonly #allocator: Pointer;
  readonly #scratch: ScratchMemory | undefined;
  /** What gives its memory back, in the order in which that was taken. */
  readonly #frees: (() => void)[] = [];
  /** Rows of a batch are padded to a multiple of this. */
  readonly #row_multiple: number;
  /** Rows are attended one by one. */
  readonly #attends_singly: boolean;
  readonly #graphs = new Map<string, KeptGraph>();
  #computeBytes = 0;
  /** Of the longest sequence for whose batches there is memory, whatever else is in them; see `reserve`. */
  #reserved_keys = 0;

  /** @throws whatever keeps it from being made; then it has no memory, and what it was given is free, too */
  constructor(backend: Backend, file: ModelFile, options: StageOptions) {
    const { ggml } = backend;
    this.#backend = backend;
    this.#ggml = ggml;
    this.model = file.model;
    const { weights: given, threads, operations } = options;
    if (given) this.#frees.push(() => given.free());
    try {
      this.operators = options.operators ?? stageOperators(file.model.n_layer, options.range);
      const plan = given?.plan ?? planWeights(file.gguf, file.model, this.operators, kernelPolicy(options));
      const layers = this.operators.flatMap((op) => (op.kind === 'attention' ? [op.layer] : []));
      this.kv = new KvMemory(backend, file.model, layers, options, options.kv);
      this.#frees.push(() => this.kv.free());
      const weights = given ?? Weights.load(backend, file.gguf, plan, options.on_progress);
      if (!given) this.#frees.push(() => weights.free());
      this.weight_bytes = weights.bytes;
      this.layouts = bytesByLayout(ggml, weights);
      const { n_head, n_head_kv, head_dim } = file.model;
      const heads = { kv_type: this.kv.type, n_head, n_head_kv, head_dim };
      const attention = layers.length > 0 ? attentionFor(backend, heads, options) : undefined;
      const ordered = haveFixedOrder(ggml, weights);
      const isCheap = ordered && isFixedUnasked(ggml, weights) && attention?.servesAll === true;
      this.batch_invariant = options.batch_invariant ?? isCheap;
      const padded = this.batch_invariant && !ordered;
      const fixed_rows = this.batch_invariant ? backend.invariant_rows : undefined;
      this.#row_multiple = fixed_rows ?? (padded ? invariant_rows : 1);
      this.#attends_singly = fixed_rows !== undefined;
      this.#compute = backend.compute({ threads, fixed_paths: this.batch_invariant, operations });
      this.#frees.push(() => this.#compute.free());
      const scratch = options.scratch?.open() ?? (backend.addressable ? new OwnScratch(backend) : undefined);
      this.#scratch = scratch;
      if (scratch) this.#frees.push(() => scratch.free());
      this.#allocator = ggml.ggml_gallocr_new(scratch?.bufferType ?? backend.plain)!;
      this.#frees.push(() => ggml.ggml_gallocr_free(this.#allocator));
      const { model, operators, kv, batch_invariant } = this;
      this.#parts = { ggml, model, operators, plan, weights, kv, batch_invariant };
      if (fixed_rows !== undefined) this.#parts.rows_per_product = fixed_rows;
      if (attention) this.#parts.attention = attention;
    } catch (error) {
      this.free();
      throw error;
    }
  }

  /** Rows of prompts that one batch should have at most: where each is attended alone, a graph grows with them. */
  get prompt_rows_max(): number {
    return this.#attends_singly ? this.#row_multiple : Number.POSITIVE_INFINITY;
  }

  /** Bytes of the memory for intermediate results, shared by all graphs. */
  get compute_bytes(): number {
    return this.#computeBytes;
  }

  /** Of a pool that models share, what it has now beside weights and KV: see `EngineStats`. */
  get working_bytes(): number {
    return (this.kv.storage.padding_bytes ?? 0) + (this.#scratch?.pool_bytes ?? 0);
  }

  /** Whether the first operator is the embedding, so that batches bring tokens. */
  get takesTokens(): boolean {
    return this.operators[0]?.kind === 'embedding';
  }

  /** Whether the last operator is the head, so that batches end as logits. */
  get givesLogits(): boolean {
    return this.operators.at(-1)?.kind === 'output';
  }

  /**
   * Takes memory for the results of batches with a sequence of so many tokens, where its keys and values are gathered
   * before they are attended: on devices, whose attention follows no block table. They are twice a row of the KV cache
   * for each token, rounded up to a power of two, for one layer at a time, and the mask of a chunk beside them.
   * @param rows of a batch at most
   * @returns false where there is none: what was there before is gone, too, and is taken anew with the next batch
   */
  reserve(keys: number, rows: number): boolean {
    const gathers = !this.#backend.addressable && this.#attends && this.#parts.attention === undefined;
    if (!gathers || keys <= this.#reserved_keys) return true;
    const count = Math.min(keys, rows);
    // Two blocks at the same place: rows that do not lie side by side, wherever the sequence's own will be.
    const longest: BatchSegment = {
      past_tokens: keys - count,
      rows: count,
      blocks: [0, 0],
      output: 'last',
      logits: true,
    };
    const segments = this.#attends_singly ? singleRows(longest) : [longest];
    const { graph, memory } = buildGraph(this.#parts, this.#shape(segments, outputOrder(segments)));
    const reserved = this.#ggml.ggml_gallocr_reserve(this.#allocator, graph);
    memory.free();
    this.#followMemory();
    // A shorter one than a batch may be has fewer rows than a longer one of the same capacity.
    if (reserved) this.#reserved_keys = keys < rows ? keys : capacity(keys);
    return reserved;
  }

  /**
   * Computes one batch: writes the KV rows of its tokens and gives what leaves the stage.
   * @throws HpcserveError E_ENGINE_COMPUTE, E_NATIVE_MEMORY; E_ENGINE_NUMBERS: what it computed are no numbers
   */
  run(batch: StageBatch): StageResult {
    const order = outputOrder(batch.segments);
    // A last stage without attention keeps nothing of rows that do not leave it.
    if (this.givesLogits && !this.#attends && order.rows === 0)
      return { first_row: order.first_row, logits: new Float32Array(0), hidden: new Float32Array(0) };
    if (!this.#attends_singly) return this.#run(batch, order);
    const segments = batch.segments.flatMap(singleRows);
    return { ...this.#run({ ...batch, segments }, outputOrder(segments)), first_row: order.first_row };
  }

  #run(batch: StageBatch, order: OutputOrder): StageResult {
    const shape = this.#shape(batch.segments, order);
    const graph = this.#graph(shape);
    this.#fill(graph, batch, order);
    const operators_s = batch.measured ? this.#runMeasured(graph) : graph.port.run();
    this.#requireNumbers(graph, order, shape);
    const result: StageResult = {
      first_row: order.first_row,
      logits: graph.logitsOut,
      hidden: graph.hiddenOut,
    };
    if (operators_s) result.operators_s = operators_s;
    const { routingOut } = graph;
    if (routingOut) {
      const narrowed = shape.last_rows_only;
      const rows = narrowed ? order.rows : batch.segments.reduce((sum, segment) => sum + segment.rows, 0);
      result.routing = { rows, narrowed, ...routingOut };
    }
    return result;
  }

  #runMeasured({ port, operator_ends }: KeptGraph): readonly number[] | undefined {
    const parts_s = operator_ends.length === this.operators.length && port.runMeasured(operator_ends);
    if (parts_s) return parts_s;
    port.run();
    return undefined;
  }

  /**
   * What leaves the stage, padding left out. Before the head as well: a product with quantized weights rounds its input
   * to whole numbers, and NaN comes out of that as some number.
   */
  #requireNumbers(graph: KeptGraph, order: OutputOrder, shape: GraphShape): void {
    const { n_vocab, n_embd } = this.model;
    const hidden_rows = this.givesLogits || shape.last_rows_only ? order.rows : shape.rows;
    // What its segments put out is the last stage's business.
    const logit_rows = this.givesLogits ? order.logit_rows : 0;
    const right =
      areNumbers(graph.logitsOut, logit_rows * n_vocab) && areNumbers(graph.hiddenOut, hidden_rows * n_embd);
    if (right) return;
    throw new HpcserveError('E_ENGINE_NUMBERS', {
      what: `the ${this.givesLogits ? 'logits' : 'hidden states'} of a batch of ${shape.rows} rows are no numbers`,
      because: `some are NaN or infinite; ${this.#backend.description}`,
    });
  }

  /** Of what leaves it, nothing but the experts and the head are computed any more. */
  get #endsAtLastRouter(): boolean {
    const last = this.operators.at(-1);
    return last?.kind === 'router' && last.layer === this.model.n_layer - 1;
  }

  get #attends(): boolean {
    return this.kv.n_matrices > 0;
  }

  #padded(rows: number): number {
    return Math.ceil(rows / this.#row_multiple) * this.#row_multiple;
  }

  #shape(segments: readonly BatchSegment[], order: OutputOrder): GraphShape {
    const rows = segments.reduce((sum, segment) => sum + segment.rows, 0);
    // The last attention narrows; where there is none, rows are picked before the head.
    const narrow = (this.givesLogits || this.#endsAtLastRouter) && this.#attends && isNarrow(segments, order);
    const { attention } = this.#parts;
    const paged = attention?.serves(segments) ? attention.roomFor(segments) : undefined;
    const shapes = (paged ? [] : segments).map((segment): SegmentShape => {
      const keys = segment.past_tokens + segment.rows;
      return {
        rows: segment.rows,
        gather_capacity: this.#isOneExtent(segment) ? 0 : capacity(keys),
        mask_capacity: segment.rows > 1 ? capacity(keys) : 0,
      };
    });
    const shape: GraphShape = {
      segments: shapes,
      rows: this.#padded(rows),
      output_rows: this.givesLogits || narrow ? this.#padded(order.rows) : 0,
      logit_rows: this.givesLogits && order.logit_rows > 0 ? this.#logitRows(order) : 0,
      last_rows_only: narrow,
      selects:
        this.givesLogits && !narrow && !(order.rows === rows && order.row_ids.every((id, i) => id === i)),
      output_segments: narrow && !paged ? order.segments : [],
    };
    if (paged) shape.paged = paged;
    return shape;
  }

  /** Padding follows the rows with logits where all output rows have them. */
  #logitRows(order: OutputOrder): number {
    return order.logit_rows === order.rows
      ? this.#padded(order.rows)
      : Math.min(this.#padded(order.logit_rows), this.#padded(order.rows));
  }

  #graph(shape: GraphShape): KeptGraph {
    const key = shapeKey(shape);
    const known = this.#graphs.get(key);
    if (known) {
      this.#graphs.delete(key);
      this.#graphs.set(key, known);
      return known;
    }
    if (this.#graphs.size >= kept_graphs_max) {
      const [oldest, graph] = this.#graphs.entries().next().value!;
      drop(graph);
      this.#graphs.delete(oldest);
    }
    const built = buildGraph(this.#parts, shape);
    // Planned anew for each: ggml would place a graph like the one before it where both have as many tensors.
    const placed =
      this.#ggml.ggml_gallocr_reserve(this.#allocator, built.graph) &&
      this.#ggml.ggml_gallocr_alloc_graph(this.#allocator, built.graph);
    this.#followMemory();
    if (!placed) {
      built.memory.free();
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: `no memory to compute a batch of ${shape.rows} rows`,
        try: 'lower prefill_chunk_tokens, or ask for more memory',
      });
    }
    const kept = this.#mapInputs(built);
    this.#graphs.set(key, kept);
    return kept;
  }

  /** Where the memory was made anew, larger, or is gone, graphs that were placed in the old one are lost. */
  #followMemory(): void {
    const bytes = Number(this.#ggml.ggml_gallocr_get_buffer_size(this.#allocator, 0));
    if (bytes === this.#computeBytes) return;
    if (bytes < this.#computeBytes) this.#reserved_keys = 0;
    for (const graph of this.#graphs.values()) drop(graph);
    this.#graphs.clear();
    this.#computeBytes = bytes;
  }

  #mapInputs(built: BuiltGraph): KeptGraph {
    const { inputs, shape } = built;
    const { n_embd, n_vocab, n_head, head_dim } = this.model;
    const port = this.#compute.open(built.graph);
    const attentionRows = Math.max(shape.rows, shape.output_rows);
    if (built.attention) port.clear(built.attention, attentionRows * n_head * head_dim * 4);
    const output = (tensor: Pointer | undefined, bytes: number): Float32Array =>
      new Float32Array(tensor ? port.output(tensor, bytes) : new ArrayBuffer(0));
    const hiddenRows = this.givesLogits || shape.last_rows_only ? shape.output_rows : shape.rows;
    const kept: KeptGraph = {
      ...built,
      port,
      ...(inputs.tokens && { tokens: new Int32Array(port.input(inputs.tokens, shape.rows * 4)) }),
      ...(inputs.hidden && {
        hiddenIn: new Float32Array(port.input(inputs.hidden, shape.rows * n_embd * 4)),
      }),
      ...(inputs.positions && { positions: new Int32Array(port.input(inputs.positions, shape.rows * 4)) }),
      ...(inputs.kv_rows && { kvRows: new BigInt64Array(port.input(inputs.kv_rows, shape.rows * 8)) }),
      ...(inputs.output_ids && {
        outputIds: new Int32Array(port.input(inputs.output_ids, shape.output_rows * 4)),
      }),
      ...(inputs.output_positions && {
        outputPositions: new Int32Array(port.input(inputs.output_positions, shape.output_rows * 4)),
      }),
      segments: inputs.segments.map(({ gather_rows, mask }, index) => {
        const { gather_capacity, mask_capacity, rows } = shape.segments[index]!;
        return {
          ...(gather_rows && { gatherRows: new Int32Array(port.input(gather_rows, gather_capacity * 4)) }),
          ...(mask && { mask: new Uint16Array(port.input(mask, mask_capacity * rows * 2)) }),
        };
      }),
      logitsOut: output(built.logits, shape.logit_rows * n_vocab * 4),
      hiddenOut: output(built.hidden, hiddenRows * n_embd * 4),
    };
    const { mixture } = inputs;
    if (mixture)
      kept.mixtureIn = this.#mixtureRows((bytes, name) => port.input(mixture[name], bytes), shape.rows);
    const { routing } = built;
    if (routing) {
      kept.routingOut = this.#mixtureRows((bytes, name) => port.output(routing[name], bytes), hiddenRows);
      const { guess } = routing;
      if (guess) kept.routingOut.guess = new Int32Array(port.output(guess, this.#chosen_bytes(hiddenRows)));
    }
    const planOf = (tensor: Pointer): Int32Array =>
      new Int32Array(port.input(tensor, shape.paged!.words * 4));
    if (inputs.plan) kept.plan = planOf(inputs.plan);
    if (inputs.output_plan) kept.outputPlan = planOf(inputs.output_plan);
    return kept;
  }

  /** Arrays of the host beside the tensors of a mixture. */
  #mixtureRows(
    memory: (bytes: number, name: keyof MixtureTensors) => ArrayBuffer,
    rows: number,
  ): MixtureRows {
    const bytes = this.#chosen_bytes(rows);
    return {
      normed: new Float32Array(memory(rows * this.model.n_embd * 4, 'normed')),
      shares: new Float32Array(memory(bytes, 'shares')),
      chosen: new Int32Array(memory(bytes, 'chosen')),
    };
  }

  #chosen_bytes(rows: number): number {
    return rows * this.model.experts!.used_per_token * 4;
  }

  /** Writes the inputs of a batch and moves the views of the KV cache to its sequences. */
  #fill(graph: KeptGraph, batch: StageBatch, order: OutputOrder): void {
    if (graph.tokens) fillPadded(graph.tokens, batch.tokens!, 0);
    if (graph.hiddenIn) fillPadded(graph.hiddenIn, batch.hidden!, 0);
    if (graph.mixtureIn) fillMixture(graph.mixtureIn, batch.mixture!, this.model.experts!.used_per_token);
    let row = 0;
    batch.segments.forEach((segment, index) => {
      for (let offset = 0; offset < segment.rows; offset++, row++) {
        const position = segment.past_tokens + offset;
        if (graph.positions) graph.positions[row] = position;
        if (graph.kvRows) graph.kvRows[row] = BigInt(this.kv.rowOf(segment.blocks, position));
      }
      if (!graph.shape.paged) this.#fillSegment(graph, segment, index);
    });
    if (graph.shape.paged) this.#fillPlans(graph, batch.segments, order);
    for (; row < graph.shape.rows; row++) {
      if (graph.positions) graph.positions[row] = 0;
      if (graph.kvRows) graph.kvRows[row] = BigInt(this.kv.scratch_row);
    }
    if (graph.outputIds) fillPadded(graph.outputIds, order.row_ids, 0);
    if (graph.outputPositions) fillPadded(graph.outputPositions, order.positions, 0);
    for (const { layer, segment, keys, values } of graph.kvViews) {
      const { blocks } = batch.segments[segment]!;
      const offset = this.kv.storage.block_rows[blocks[0] ?? 0]! * this.kv.row_bytes;
      const cache = this.kv.layer(layer);
      graph.memory.moveView(keys, cache.keys_address, offset);
      graph.memory.moveView(values, cache.values_address, offset);
    }
  }

  #fillPlans(graph: KeptGraph, segments: readonly BatchSegment[], order: OutputOrder): void {
    const attention = this.#parts.attention!;
    const { block_rows } = this.kv.storage;
    if (graph.plan?.length) attention.fill(graph.plan, segments, block_rows);
    if (graph.outputPlan?.length) attention.fill(graph.outputPlan, segments, block_rows, order.segments);
  }

  #fillSegment(graph: KeptGraph, segment: BatchSegment, index: number): void {
    const keys = segment.past_tokens + segment.rows;
    const { memory } = graph;
    for (const slot of graph.keyExtents[index]!) memory.setExtent(slot, 1, keys);
    for (const slot of graph.keyWidths[index]!) memory.setExtent(slot, 0, keys);
    for (const slot of graph.maskSlots[index]!) {
      memory.setExtent(slot, 0, keys);
      memory.setStride(slot, 1, keys * 2);
      memory.setStride(slot, 2, keys * 2 * segment.rows);
      memory.setStride(slot, 3, keys * 2 * segment.rows);
    }
    const { gatherRows, mask } = graph.segments[index]!;
    if (gatherRows)
      for (let position = 0; position < keys; position++)
        gatherRows[position] = this.kv.rowOf(segment.blocks, position);
    if (mask)
      for (let offset = 0; offset < segment.rows; offset++) {
        const seen = segment.past_tokens + offset + 1;
        mask.fill(0, offset * keys, offset * keys + seen);
        mask.fill(half_negative_infinity, offset * keys + seen, (offset + 1) * keys);
      }
  }

  /** Whether rows lie side by side, wherever their blocks were taken from. */
  #isOneExtent({ past_tokens, rows, blocks }: BatchSegment): boolean {
    const { block_rows } = this.kv.storage;
    const count = Math.ceil((past_tokens + rows) / kv_block_tokens);
    const first = block_rows[blocks[0]!]!;
    for (let index = 1; index < count; index++)
      if (block_rows[blocks[index]!] !== first + index * kv_block_tokens) return false;
    return true;
  }

  free(): void {
    for (const graph of this.#graphs.values()) drop(graph);
    this.#graphs.clear();
    for (const free of this.#frees.splice(0).reverse()) free();
  }
}

/** NaN and infinity stay in every sum that they enter. */
function areNumbers(values: Float32Array, count: number): boolean {
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  const end = count - (count % 4);
  for (let at = 0; at < end; at += 4) {
    a += values[at]!;
    b += values[at + 1]!;
    c += values[at + 2]!;
    d += values[at + 3]!;
  }
  for (let at = end; at < count; at++) a += values[at]!;
  return Number.isFinite(a + b + c + d);
}

/** Room for keys in masks and gathers: few distinct sizes, so that graphs are reused while sequences grow. */
function capacity(keys: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(256, keys)));
}

function fillPadded<T extends Int32Array | Float32Array>(target: T, source: T, padding: number): void {
  if (source.length > target.length)
    throw new RangeError(`${source.length} rows for ${target.length} places`);
  target.set(source);
  target.fill(padding, source.length);
}

/** Rows that only pad go where the first one goes: those experts are there. */
function fillMixture(target: MixtureRows, source: MixtureRows, used: number): void {
  fillPadded(target.normed, source.normed, 0);
  fillPadded(target.shares, source.shares, 0);
  fillPadded(target.chosen, source.chosen, 0);
  for (let at = source.chosen.length; at < target.chosen.length; at += used)
    target.chosen.copyWithin(at, 0, used);
}

/** A graph that is not computed any more. */
function drop({ port, memory }: KeptGraph): void {
  port.free();
  memory.free();
}
