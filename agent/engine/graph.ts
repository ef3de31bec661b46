import { type Ggml, GgmlType } from '../../native/ggml.ts';
import { multiply, multiplyExactly, multiplyExperts, takeRows } from '../../native/packed-products.ts';
import type { Pointer } from '../../native/signature.ts';
import type { Architecture } from './architecture.ts';
import type { AttentionRoom, BatchAttention } from './batch-attention.ts';
import { flashAttention } from './flash-attention.ts';
import { GraphMemory } from './graph-memory.ts';
import type { BuiltGraph, GraphShape, SegmentInputs } from './graph-shape.ts';
import type { KvMemory } from './kv-memory.ts';
import { chooseExperts, type MixtureBuilder, mixExperts } from './mixture-graph.ts';
import type { MixtureOperator, Operator } from './operators.ts';
import type { PlannedLayer, PlannedWeight, WeightPlan } from './weight-plan.ts';
import type { LoadedWeights } from './weights.ts';

export interface StageParts {
  ggml: Ggml;
  model: Architecture;
  operators: readonly Operator[];
  plan: WeightPlan;
  weights: LoadedWeights;
  kv: KvMemory;
  /** Ours; absent: ggml's serves all batches. */
  attention?: BatchAttention;
  /** Sums go in one order, however many rows there are. */
  batch_invariant: boolean;
  /** Rows that each product takes; absent: all at once. The rows of a batch are a multiple of it. */
  rows_per_product?: number;
}

/** Of a layer: queries, keys and values apart, for all rows and for the last ones; output, and a feed-forward part. */
const products_max = 8;

/** Upper bound of tensors in a graph: per layer the fixed operations, and per segment its attention. */
function maxTensors(parts: StageParts, shape: GraphShape): number {
  const layers = parts.plan.layers.size;
  const { experts } = parts.model;
  const moe = experts === undefined ? 0 : 32 + 2 * experts.used_per_token;
  const groups = parts.rows_per_product ? Math.ceil(shape.rows / parts.rows_per_product) : 1;
  // Of a product in groups: a part of the rows, of the experts' ids, the product, and both joined.
  const split = groups > 1 ? products_max * 4 * groups : 0;
  return 64 + split + 3 * shape.segments.length + layers * (56 + moe + split + 20 * shape.segments.length);
}

export function buildGraph(parts: StageParts, shape: GraphShape): BuiltGraph {
  return new GraphBuilder(parts, shape).build();
}

/**
 * Builds the compute graph of one stage for one batch shape. A graph is kept and run again for every batch
 * of its shape: tokens, positions and KV rows are inputs, and the views of the KV cache are moved by
 * `GraphMemory` before each run.
 *
 * Rows of all sequences go through the projections together. Attention is one operation of ours for all of them,
 * which follows block tables; or one of ggml's per sequence over its own keys and values, which lie in one extent
 * (attended in place) or in several (gathered first).
 */
class GraphBuilder {
  readonly #parts: StageParts;
  readonly #ggml: Ggml;
  readonly #model: Architecture;
  readonly #context: Pointer;
  readonly #built: BuiltGraph;

  constructor(parts: StageParts, shape: GraphShape) {
    this.#parts = parts;
    this.#ggml = parts.ggml;
    this.#model = parts.model;
    const count = maxTensors(parts, shape);
    const memory = new GraphMemory(parts.ggml, count);
    this.#context = memory.context;
    this.#built = {
      memory,
      graph: parts.ggml.ggml_new_graph_custom(memory.context, count, false)!,
      shape,
      operator_ends: [],
      inputs: { segments: [] },
      kvViews: [],
      keyExtents: shape.segments.map(() => []),
      keyWidths: shape.segments.map(() => []),
      maskSlots: shape.segments.map(() => []),
    };
  }

  build(): BuiltGraph {
    const { operators, plan } = this.#parts;
    const { shape } = this.#built;
    this.#makeInputs();
    const lastAttention = operators.findLastIndex((operator) => operator.kind === 'attention');
    const hasOutput = operators.at(-1)?.kind === 'output';
    let hidden = this.#built.inputs.hidden;
    for (const [index, operator] of operators.entries()) {
      if (operator.kind === 'embedding')
        hidden = takeRows(
          this.#ggml,
          this.#context,
          this.#tensor(plan.embedding!),
          this.#built.inputs.tokens!,
        );
      else if (operator.kind === 'attention') {
        const narrow = index === lastAttention && shape.last_rows_only;
        const layer = plan.layers.get(operator.layer)!;
        hidden = this.#attention(hidden!, operator.layer, layer, narrow);
        if (hidden === undefined) return this.#built;
      } else if (operator.kind === 'feed_forward')
        hidden = this.#feedForward(hidden!, plan.layers.get(operator.layer)!);
      else if (operator.kind === 'output') this.#output(hidden!);
      else hidden = this.#half(hidden!, operator.kind, plan.layers.get(operator.layer)!);
      this.#built.operator_ends.push(hidden!);
    }
    if (!hasOutput) this.#result('hidden', hidden!);
    return this.#built;
  }

  #makeInputs(): void {
    const { operators } = this.#parts;
    const { shape, inputs } = this.#built;
    if (operators[0]?.kind === 'embedding') inputs.tokens = this.#input(GgmlType.I32, shape.rows);
    else inputs.hidden = this.#input(GgmlType.F32, this.#model.n_embd, shape.rows);
    if (operators[0]?.kind === 'experts') {
      const { used_per_token } = this.#model.experts!;
      inputs.mixture = {
        normed: this.#input(GgmlType.F32, this.#model.n_embd, shape.rows),
        shares: this.#input(GgmlType.F32, used_per_token, shape.rows),
        chosen: this.#input(GgmlType.I32, used_per_token, shape.rows),
      };
    }
    if (operators.some((operator) => operator.kind === 'attention')) {
      inputs.positions = this.#input(GgmlType.I32, shape.rows);
      inputs.kv_rows = this.#input(GgmlType.I64, shape.rows);
    }
    if (shape.output_rows > 0 && (shape.last_rows_only || shape.selects)) {
      inputs.output_ids = this.#input(GgmlType.I32, shape.output_rows);
      if (shape.last_rows_only) inputs.output_positions = this.#input(GgmlType.I32, shape.output_rows);
    }
    inputs.segments = shape.segments.map((segment, index) => {
      const made: SegmentInputs = {};
      if (segment.gather_capacity > 0) {
        made.gather_rows = this.#input(GgmlType.I32, segment.gather_capacity);
        this.#built.keyWidths[index]!.push(this.#built.memory.slot(made.gather_rows));
      }
      if (segment.mask_capacity > 0) {
        made.mask = this.#input(GgmlType.F16, segment.mask_capacity, segment.rows);
        this.#built.maskSlots[index]!.push(this.#built.memory.slot(made.mask));
      }
      return made;
    });
    if (shape.paged) {
      inputs.plan = this.#input(GgmlType.I32, shape.paged.words);
      if (shape.last_rows_only) inputs.output_plan = this.#input(GgmlType.I32, shape.paged.words);
      return;
    }
    const { n_head, head_dim } = this.#model;
    const oneSegment = shape.segments.length === 1 && shape.rows === shape.segments[0]!.rows;
    const oneOutput = !shape.last_rows_only || shape.output_rows <= 1;
    if (!oneSegment || !oneOutput) {
      const rows = Math.max(shape.rows, shape.output_rows);
      this.#built.attention = this.#input(GgmlType.F32, n_head * head_dim, rows);
      this.#ggml.ggml_set_output(this.#built.attention);
    }
  }

  #input(type: number, ...shape: number[]): Pointer {
    const [ne0, ne1 = 1] = shape;
    const tensor = this.#ggml.ggml_new_tensor_2d(this.#context, type, ne0!, ne1)!;
    this.#ggml.ggml_set_input(tensor);
    return tensor;
  }

  #tensor(weight: PlannedWeight): Pointer {
    return this.#parts.weights.tensor(weight);
  }

  /** Rows of x times a weight. */
  #multiply(weight: PlannedWeight, x: Pointer | null): Pointer {
    return this.#product(this.#tensor(weight), x);
  }

  #product(matrix: Pointer, x: Pointer | null): Pointer {
    const product = (rows: Pointer | null): Pointer =>
      multiply(this.#ggml, this.#context, matrix, rows, this.#parts.batch_invariant);
    if (x === null || this.#parts.rows_per_product === undefined) return product(x);
    return this.#inGroups(this.#rowsOf(x), 1, (first, rows) => product(this.#rowsFrom(x, first, rows)));
  }

  /**
   * What is computed of so many rows at a time, one behind the other.
   * @param dimension in which the rows of the results are
   */
  #inGroups(rows: number, dimension: number, make: (first: number, rows: number) => Pointer): Pointer {
    const group = this.#parts.rows_per_product ?? rows;
    let all = make(0, Math.min(group, rows));
    for (let first = group; first < rows; first += group) {
      const next = make(first, Math.min(group, rows - first));
      all = this.#ggml.ggml_concat(this.#context, all, next, dimension)!;
    }
    return all;
  }

  /** Some rows of a matrix. */
  #rowsFrom(x: Pointer, first: number, rows: number): Pointer {
    const { memory } = this.#built;
    if (rows === memory.extent(x, 1)) return x;
    const row_bytes = memory.stride(x, 1);
    return this.#ggml.ggml_view_2d(
      this.#context,
      x,
      memory.extent(x, 0),
      rows,
      row_bytes,
      first * row_bytes,
    )!;
  }

  /** Rows of x, [width, 1 or experts of a row, rows], times the matrices of their experts: one product a weight. */
  #expertProducts(weights: readonly PlannedWeight[], x: Pointer, chosen: Pointer): Pointer[] {
    const { rows_per_product, batch_invariant } = this.#parts;
    if (rows_per_product !== undefined)
      return weights.map((weight) => this.#expertProductInGroups(weight, x, chosen));
    const matrices = weights.map((weight) => this.#tensor(weight));
    return multiplyExperts(this.#ggml, this.#context, matrices, x, chosen, batch_invariant);
  }

  #expertProductInGroups(weight: PlannedWeight, x: Pointer, chosen: Pointer): Pointer {
    const ggml = this.#ggml;
    const c = this.#context;
    const { memory } = this.#built;
    const rows = memory.extent(x, 2);
    const [width, per_row, row_bytes] = [memory.extent(x, 0), memory.extent(x, 1), memory.stride(x, 2)];
    return this.#inGroups(rows, 2, (first, count) => {
      const whole = count === rows;
      const part = whole
        ? x
        : ggml.ggml_view_3d(c, x, width, per_row, count, memory.stride(x, 1), row_bytes, first * row_bytes);
      const ids = whole ? chosen : this.#rowsFrom(chosen, first, count);
      return ggml.ggml_mul_mat_id(c, this.#tensor(weight), part, ids)!;
    });
  }

  #expand(tensor: Pointer): void {
    this.#ggml.ggml_build_forward_expand(this.#built.graph, tensor);
  }

  #result(name: 'logits' | 'hidden', tensor: Pointer): void {
    this.#ggml.ggml_set_output(tensor);
    this.#expand(tensor);
    this.#built[name] = tensor;
  }

  #norm(x: Pointer, weight: PlannedWeight): Pointer {
    const normed = this.#ggml.ggml_rms_norm(this.#context, x, this.#model.rms_eps);
    return this.#ggml.ggml_mul(this.#context, normed, this.#tensor(weight))!;
  }

  /**
   * x + attention(norm(x)) over the rows of the batch.
   * @param narrow the last layer: keys and values of all rows, the rest only for the output rows.
   * @returns undefined where no row leaves the stage: everything behind the KV cache would be thrown away.
   */
  #attention(x: Pointer, index: number, layer: PlannedLayer, narrow: boolean): Pointer | undefined {
    const { ggml, kv } = this.#parts;
    const { shape, inputs } = this.#built;
    const attention = layer.attention!;
    const c = this.#context;
    const normed = this.#norm(x, attention.norm);
    const wide = this.#project(normed, attention, narrow ? 'kv' : 'qkv');
    const keys = this.#rope(this.#headNorm(wide.k!, attention.k_norm), inputs.positions!);
    const width = this.#model.n_head_kv * this.#model.head_dim;
    const cache = kv.layer(index);
    const flat = ggml.ggml_reshape_2d(c, keys, width, shape.rows);
    this.#expand(ggml.ggml_set_rows(c, cache.keys, flat, inputs.kv_rows!)!);
    this.#expand(ggml.ggml_set_rows(c, cache.values, wide.v!, inputs.kv_rows!)!);
    if (narrow && shape.output_rows === 0) return undefined;
    let residual = x;
    let queries: Pointer;
    if (narrow) {
      residual = ggml.ggml_get_rows(c, x, inputs.output_ids!)!;
      const rows = ggml.ggml_get_rows(c, normed, inputs.output_ids!)!;
      const projected = this.#project(rows, attention, 'q');
      queries = this.#rope(this.#headNorm(projected.q!, attention.q_norm), inputs.output_positions!);
    } else queries = this.#rope(this.#headNorm(wide.q!, attention.q_norm), inputs.positions!);
    const attended = this.#attend(queries, index, narrow);
    const projected = this.#multiply(attention.output, attended);
    return ggml.ggml_add(c, projected, residual)!;
  }

  /** Q and K as [head_dim, heads, rows], V as [n_head_kv × head_dim, rows]; views of one product where joined. */
  #project(
    x: Pointer,
    attention: NonNullable<PlannedLayer['attention']>,
    wanted: 'qkv' | 'q' | 'kv',
  ): { q?: Pointer; k?: Pointer; v?: Pointer } {
    const ggml = this.#ggml;
    const { n_head, n_head_kv, head_dim } = this.#model;
    const rows = wanted === 'q' ? this.#built.shape.output_rows : this.#built.shape.rows;
    const widths = { q: n_head * head_dim, k: n_head_kv * head_dim, v: n_head_kv * head_dim };
    const starts = { q: 0, k: widths.q, v: widths.q + widths.k };
    const bias = attention.qkv_bias ? this.#tensor(attention.qkv_bias) : undefined;
    const { qkv } = attention;
    const found: { q?: Pointer; k?: Pointer; v?: Pointer } = {};
    if ('parts' in qkv) {
      const height = starts.v + widths.v;
      const needed = { qkv: [0, height], q: [0, widths.q], kv: [widths.q, height] }[wanted] as [
        number,
        number,
      ];
      const rowsOf = this.#parts.weights.rows(qkv, ...needed);
      const [begin, end] = rowsOf ? needed : [0, height];
      const product = this.#joinedProduct(rowsOf ?? this.#tensor(qkv), x, bias, begin, end);
      const row_bytes = (end - begin) * 4;
      const part = (name: 'q' | 'k' | 'v'): Pointer =>
        ggml.ggml_view_2d(this.#context, product, widths[name], rows, row_bytes, (starts[name] - begin) * 4)!;
      const heads = (name: 'q' | 'k', count: number): Pointer =>
        ggml.ggml_view_3d(
          this.#context,
          product,
          head_dim,
          count,
          rows,
          head_dim * 4,
          row_bytes,
          (starts[name] - begin) * 4,
        )!;
      if (wanted !== 'kv') found.q = heads('q', n_head);
      if (wanted !== 'q') {
        found.k = heads('k', n_head_kv);
        found.v = part('v');
      }
      return found;
    }
    for (const name of ['q', 'k', 'v'] as const) {
      if (!wanted.includes(name)) continue;
      let product = this.#multiply(qkv[name], x);
      if (bias)
        product = ggml.ggml_add(
          this.#context,
          product,
          ggml.ggml_view_1d(this.#context, bias, widths[name], starts[name] * 4),
        )!;
      found[name] =
        name === 'v'
          ? product
          : ggml.ggml_reshape_3d(this.#context, product, head_dim, widths[name] / head_dim, rows)!;
    }
    return found;
  }

  /** x times `matrix`, which is the rows [begin, end) of a joined projection. */
  #joinedProduct(
    matrix: Pointer,
    x: Pointer,
    bias: Pointer | undefined,
    begin: number,
    end: number,
  ): Pointer {
    const ggml = this.#ggml;
    const product = this.#product(matrix, x);
    if (!bias) return product;
    // A vector's view of all its elements is the vector.
    const part = ggml.ggml_view_1d(this.#context, bias, end - begin, begin * 4);
    return ggml.ggml_add(this.#context, product, part)!;
  }

  #headNorm(heads: Pointer, weight: PlannedWeight | undefined): Pointer {
    return weight ? this.#norm(heads, weight) : heads;
  }

  #rope(heads: Pointer, positions: Pointer): Pointer {
    const { rope } = this.#model;
    const factors = this.#parts.plan.rope_factors;
    return this.#ggml.ggml_rope_ext(
      this.#context,
      heads,
      positions,
      factors ? this.#tensor(factors) : null,
      rope.n_dims,
      rope.mode,
      rope.n_ctx_orig,
      rope.freq_base,
      rope.freq_scale,
      rope.ext_factor,
      rope.attn_factor,
      rope.beta_fast,
      rope.beta_slow,
    )!;
  }

  /** Attention of every segment's rows over its own keys and values: [n_head × head_dim, rows]. */
  #attend(queries: Pointer, layer: number, narrow: boolean): Pointer {
    const ggml = this.#ggml;
    const { shape } = this.#built;
    if (shape.paged) return this.#attendPaged(queries, layer, narrow, shape.paged);
    const { n_head, head_dim } = this.#model;
    const row_bytes = n_head * head_dim * 4;
    const total = narrow ? shape.output_rows : shape.rows;
    const segments = narrow
      ? shape.output_segments.map((segment) => ({ segment, rows: 1 }))
      : shape.segments.map(({ rows }, segment) => ({ segment, rows }));
    const single = segments.length === 1 && segments[0]!.rows === total;
    let first = 0;
    let result: Pointer | undefined;
    for (const { segment, rows } of segments) {
      const view = ggml.ggml_view_3d(
        this.#context,
        queries,
        head_dim,
        n_head,
        rows,
        head_dim * 4,
        row_bytes,
        first * row_bytes,
      );
      const q = ggml.ggml_permute(this.#context, view, 0, 2, 1, 3)!;
      const attended = this.#attendSegment(q, segment, layer, narrow);
      if (single) result = ggml.ggml_reshape_2d(this.#context, attended, n_head * head_dim, total)!;
      else {
        this.#built.memory.writeInto(attended, this.#built.attention!, first * row_bytes);
        this.#expand(attended);
      }
      first += rows;
    }
    if (result) return result;
    return ggml.ggml_view_2d(this.#context, this.#built.attention!, n_head * head_dim, total, row_bytes, 0)!;
  }

  #attendPaged(queries: Pointer, layer: number, narrow: boolean, room: AttentionRoom): Pointer {
    const { shape, inputs } = this.#built;
    const { keys, values } = this.#parts.kv.layer(layer);
    const plan = narrow ? inputs.output_plan! : inputs.plan!;
    const rows = narrow ? shape.output_rows : shape.rows;
    return this.#parts.attention!.attend(this.#context, { queries, keys, values, plan }, rows, room);
  }

  #attendSegment(q: Pointer, segment: number, layer: number, narrow: boolean): Pointer {
    const { gather_capacity, mask_capacity } = this.#built.shape.segments[segment]!;
    const cache = this.#parts.kv.layer(layer);
    const views =
      gather_capacity > 0 ? this.#gatheredViews(segment, cache) : this.#extentViews(segment, layer, cache);
    const mask = mask_capacity > 0 && !narrow ? this.#built.inputs.segments[segment]!.mask! : null;
    const scale = 1 / Math.sqrt(this.#model.head_dim);
    return flashAttention(this.#ggml, this.#context, { q, k: views.k, v: views.v, mask, scale });
  }

  /** [head_dim, keys, n_head_kv] over the rows of one extent, moved before each run. */
  #extentViews(
    segment: number,
    layer: number,
    cache: { keys: Pointer; values: Pointer },
  ): { k: Pointer; v: Pointer } {
    const { n_head_kv, head_dim } = this.#model;
    const { row_bytes, head_bytes } = this.#parts.kv;
    const { memory } = this.#built;
    const view = (matrix: Pointer): Pointer =>
      this.#ggml.ggml_view_3d(this.#context, matrix, head_dim, 1, n_head_kv, row_bytes, head_bytes, 0)!;
    const k = view(cache.keys);
    const v = view(cache.values);
    this.#built.kvViews.push({ layer, segment, keys: memory.slot(k), values: memory.slot(v) });
    this.#built.keyExtents[segment]!.push(memory.slot(k), memory.slot(v));
    return { k, v };
  }

  /** The same over rows picked from several extents. Rows move as 32-bit words, so they stay what they are. */
  #gatheredViews(segment: number, cache: { keys: Pointer; values: Pointer }): { k: Pointer; v: Pointer } {
    const ggml = this.#ggml;
    const { n_head_kv, head_dim } = this.#model;
    const { row_bytes, head_bytes, type, n_rows } = this.#parts.kv;
    const { memory, inputs } = this.#built;
    const rows = inputs.segments[segment]!.gather_rows!;
    const gather = (matrix: Pointer): Pointer => {
      const words = ggml.ggml_view_2d(this.#context, matrix, head_dim, 1, row_bytes, 0)!;
      memory.retype(words, GgmlType.I32, [row_bytes / 4, n_rows], [4, row_bytes]);
      const picked = ggml.ggml_get_rows(this.#context, words, rows)!;
      const view = ggml.ggml_view_3d(this.#context, picked, 1, 1, n_head_kv, row_bytes, head_bytes, 0)!;
      const element = Number(ggml.ggml_type_size(type));
      memory.retype(view, type, [head_dim, 1, n_head_kv], [element, row_bytes, head_bytes]);
      this.#built.keyExtents[segment]!.push(memory.slot(picked), memory.slot(view));
      return view;
    };
    return { k: gather(cache.keys), v: gather(cache.values) };
  }

  /** x + ffn(norm(x)). */
  #feedForward(x: Pointer, layer: PlannedLayer): Pointer {
    const ggml = this.#ggml;
    const c = this.#context;
    const { norm, dense, experts } = layer.feed_forward!;
    const normed = this.#norm(x, norm);
    if (experts) {
      const rows = this.#rowsOf(normed);
      const choice = chooseExperts(this.#mixtures, normed, rows, experts.router);
      return ggml.ggml_add(c, mixExperts(this.#mixtures, normed, rows, experts, choice), x)!;
    }
    const { gate_up, down } = dense!;
    const activated =
      'parts' in gate_up
        ? ggml.ggml_swiglu(c, this.#multiply(gate_up, normed))
        : ggml.ggml_swiglu_split(c, this.#multiply(gate_up.gate, normed), this.#multiply(gate_up.up, normed));
    return ggml.ggml_add(c, this.#multiply(down, activated), x)!;
  }

  /** x + experts(norm(x)) in its two parts, between which the choice of experts leaves the graph. */
  #half(x: Pointer, kind: MixtureOperator['kind'], { router, experts }: PlannedLayer): Pointer {
    const ggml = this.#ggml;
    const c = this.#context;
    if (kind === 'experts') {
      const { normed, shares, chosen } = this.#built.inputs.mixture!;
      const { used_per_token } = this.#model.experts!;
      const each = ggml.ggml_reshape_3d(c, shares, 1, used_per_token, this.#rowsOf(x))!;
      const rows = this.#rowsOf(x);
      return ggml.ggml_add(
        c,
        mixExperts(this.#mixtures, normed, rows, experts!, { chosen, shares: each }),
        x,
      )!;
    }
    const leaves = (tensor: Pointer): Pointer => {
      ggml.ggml_set_output(tensor);
      this.#expand(tensor);
      return tensor;
    };
    const normed = this.#norm(x, router!.norm);
    if (kind === 'lookahead') {
      const scores = this.#route(router!.router, normed);
      const guess = ggml.ggml_argsort_top_k(c, scores, this.#model.experts!.used_per_token);
      this.#built.routing!.guess = leaves(ggml.ggml_cont(c, guess)!);
      return x;
    }
    const { chosen, shares } = chooseExperts(this.#mixtures, normed, this.#rowsOf(x), router!.router);
    // Copies: what is chosen is a view with gaps, and a result that is also a view may be written over.
    this.#built.routing = {
      normed: leaves(normed),
      chosen: leaves(ggml.ggml_cont(c, chosen)!),
      shares: leaves(ggml.ggml_cont(c, shares)!),
    };
    return x;
  }

  get #mixtures(): MixtureBuilder {
    const { n_embd, experts } = this.#model;
    return {
      ggml: this.#ggml,
      context: this.#context,
      n_embd,
      experts: experts!,
      expand: (tensor) => this.#expand(tensor),
      route: (router, x) => this.#route(router, x),
      products: (weights, x, chosen) => this.#expertProducts(weights, x, chosen),
    };
  }

  /** Scores of the experts: a choice between near ones must not depend on the batch either. */
  #route(router: PlannedWeight, x: Pointer): Pointer {
    const { batch_invariant, rows_per_product } = this.#parts;
    const isExact = batch_invariant && rows_per_product === undefined && router.type === 'F32';
    const exact = isExact ? multiplyExactly(this.#ggml, this.#context, this.#tensor(router), x) : undefined;
    return exact ?? this.#multiply(router, x);
  }

  #rowsOf(x: Pointer): number {
    return this.#built.memory.extent(x, 1);
  }

  /** Output norm and head over the output rows. */
  #output(x: Pointer): void {
    const ggml = this.#ggml;
    const c = this.#context;
    const { plan } = this.#parts;
    const { shape, inputs } = this.#built;
    if (shape.output_rows === 0) {
      this.#expand(x);
      return;
    }
    const rows = shape.selects ? ggml.ggml_get_rows(c, x, inputs.output_ids!)! : x;
    const normed = this.#norm(rows, plan.output_norm!);
    this.#result('hidden', normed);
    if (shape.logit_rows === 0) return;
    const { n_embd } = this.#model;
    const head =
      shape.logit_rows === shape.output_rows
        ? normed
        : ggml.ggml_view_2d(c, normed, n_embd, shape.logit_rows, n_embd * 4, 0)!;
    this.#result('logits', this.#multiply(plan.head!, head));
  }
}
