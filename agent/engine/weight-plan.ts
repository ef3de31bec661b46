/**
 * Which tensors of a GGUF file a stage needs, how they are joined, and what each is used for. Projections
 * that read the same input (Q, K and V; gate and up) are joined into one matrix where their types agree:
 * one multiplication instead of three reads its input once and meets at a third of the barriers.
 */
import type { GgufFile, GgufTensor } from '../../native/formats/gguf-reader.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Architecture } from './architecture.ts';
import type { Operator } from './operators.ts';

/** How a weight is used decides in which memory it may lie: only `matrix` and `experts` have fast kernels. */
export type WeightUse = 'rows' | 'matrix' | 'experts' | 'vector';

export interface PlannedWeight {
  /** Name in this engine: that of the file, or of the joined parts. */
  name: string;
  type: string;
  /** ggml's ne: contiguous dimension first. */
  shape: number[];
  use: WeightUse;
  /** Tensors of the file whose bytes follow one another in this weight. */
  parts: GgufTensor[];
}

export interface PlannedLayer {
  attention?: {
    norm: PlannedWeight;
    /** [n_embd, (n_head + 2 n_head_kv) × head_dim], or its three parts where their types differ. */
    qkv: PlannedWeight | { q: PlannedWeight; k: PlannedWeight; v: PlannedWeight };
    /** Bias of the joined projection (Qwen2). */
    qkv_bias?: PlannedWeight;
    q_norm?: PlannedWeight;
    k_norm?: PlannedWeight;
    output: PlannedWeight;
  };
  feed_forward?: {
    norm: PlannedWeight;
    dense?: { gate_up: PlannedWeight | { gate: PlannedWeight; up: PlannedWeight }; down: PlannedWeight };
    experts?: { router: PlannedWeight } & ExpertMatrices;
  };
  /** Of a stage that ends behind a router, or asks one in advance. */
  router?: RouterWeights;
  /** Of a stage that begins with the experts. */
  experts?: ExpertMatrices;
}

export interface RouterWeights {
  norm: PlannedWeight;
  router: PlannedWeight;
}

/** Each [inner, rows of a matrix, experts]. */
export interface ExpertMatrices {
  gate: PlannedWeight;
  up: PlannedWeight;
  down: PlannedWeight;
}

/**
 * Whose products multiply by a plan's matrices: whichever is faster on this device; ours, wherever there is one that is
 * right; ggml's alone.
 */
export type KernelPolicy = 'faster' | 'own' | 'ggml';

export interface WeightPlan {
  kernels: KernelPolicy;
  embedding?: PlannedWeight;
  layers: Map<number, PlannedLayer>;
  /** Llama 3's factors per rotary frequency, shape [n_dims / 2]. */
  rope_factors?: PlannedWeight;
  output_norm?: PlannedWeight;
  head?: PlannedWeight;
}

/**
 * @throws HpcserveError E_ENGINE_MODEL naming every tensor that is missing or of a wrong shape
 */
export function planWeights(
  file: GgufFile,
  model: Architecture,
  operators: readonly Operator[],
  kernels: KernelPolicy,
): WeightPlan {
  const planner = new Planner(file);
  const plan: WeightPlan = { kernels, layers: new Map() };
  const { n_embd, n_vocab } = model;
  for (const operator of operators) {
    if (operator.kind === 'embedding')
      plan.embedding = planner.take('token_embd.weight', 'rows', [n_embd, n_vocab]);
    else if (operator.kind === 'output') {
      plan.output_norm = planner.take('output_norm.weight', 'vector', [n_embd]);
      const head = planner.has('output.weight') ? 'output.weight' : 'token_embd.weight';
      plan.head = { ...planner.take(head, 'matrix', [n_embd, n_vocab]), name: 'output.weight' };
    } else {
      const layer = plan.layers.get(operator.layer) ?? {};
      plan.layers.set(operator.layer, layer);
      planLayer(planner, model, operator, layer);
    }
  }
  if (planner.has('rope_freqs.weight'))
    plan.rope_factors = planner.take('rope_freqs.weight', 'vector', [model.rope.n_dims / 2]);
  planner.finish();
  return plan;
}

function planLayer(
  planner: Planner,
  model: Architecture,
  operator: Exclude<Operator, { kind: 'embedding' | 'output' }>,
  layer: PlannedLayer,
): void {
  const { kind, layer: index } = operator;
  if (kind === 'attention') layer.attention = planAttention(planner, model, index);
  else if (kind === 'feed_forward') layer.feed_forward = planFeedForward(planner, model, index);
  else if (kind === 'experts') layer.experts = planExperts(planner, model, index);
  else layer.router = planRouter(planner, model, index);
}

function planAttention(planner: Planner, model: Architecture, index: number): PlannedLayer['attention'] {
  const { n_embd, n_head, n_head_kv, head_dim } = model;
  const name = (part: string) => `blk.${index}.${part}`;
  const q = planner.take(name('attn_q.weight'), 'matrix', [n_embd, n_head * head_dim]);
  const k = planner.take(name('attn_k.weight'), 'matrix', [n_embd, n_head_kv * head_dim]);
  const v = planner.take(name('attn_v.weight'), 'matrix', [n_embd, n_head_kv * head_dim]);
  const biases = ['attn_q.bias', 'attn_k.bias', 'attn_v.bias'].filter((part) => planner.has(name(part)));
  const joined = join(name('attn_qkv.weight'), [q, k, v]);
  return {
    norm: planner.take(name('attn_norm.weight'), 'vector', [n_embd]),
    qkv: joined ?? { q, k, v },
    ...(biases.length > 0 && {
      qkv_bias: join(name('attn_qkv.bias'), [
        planner.take(name('attn_q.bias'), 'vector', [n_head * head_dim]),
        planner.take(name('attn_k.bias'), 'vector', [n_head_kv * head_dim]),
        planner.take(name('attn_v.bias'), 'vector', [n_head_kv * head_dim]),
      ])!,
    }),
    ...((planner.has(name('attn_q_norm.weight')) || planner.has(name('attn_k_norm.weight'))) && {
      q_norm: planner.take(name('attn_q_norm.weight'), 'vector', [head_dim]),
      k_norm: planner.take(name('attn_k_norm.weight'), 'vector', [head_dim]),
    }),
    output: planner.take(name('attn_output.weight'), 'matrix', [n_head * head_dim, n_embd]),
  };
}

function planFeedForward(planner: Planner, model: Architecture, index: number): PlannedLayer['feed_forward'] {
  const { n_embd, n_ff, experts } = model;
  const name = (part: string) => `blk.${index}.${part}`;
  if (experts !== undefined) {
    const { norm, router } = planRouter(planner, model, index);
    return { norm, experts: { router, ...planExperts(planner, model, index) } };
  }
  const norm = planner.take(name('ffn_norm.weight'), 'vector', [n_embd]);
  const gate = planner.take(name('ffn_gate.weight'), 'matrix', [n_embd, n_ff]);
  const up = planner.take(name('ffn_up.weight'), 'matrix', [n_embd, n_ff]);
  return {
    norm,
    dense: {
      gate_up: join(name('ffn_gate_up.weight'), [gate, up]) ?? { gate, up },
      down: planner.take(name('ffn_down.weight'), 'matrix', [n_ff, n_embd]),
    },
  };
}

function planRouter(planner: Planner, { n_embd, experts }: Architecture, index: number): RouterWeights {
  return {
    norm: planner.take(`blk.${index}.ffn_norm.weight`, 'vector', [n_embd]),
    router: planner.take(`blk.${index}.ffn_gate_inp.weight`, 'matrix', [n_embd, experts!.count]),
  };
}

function planExperts(planner: Planner, { n_embd, experts }: Architecture, index: number): ExpertMatrices {
  const { count, n_ff: width } = experts!;
  const take = (part: string, shape: number[]): PlannedWeight =>
    planner.take(`blk.${index}.ffn_${part}_exps.weight`, 'experts', shape);
  return {
    gate: take('gate', [n_embd, width, count]),
    up: take('up', [n_embd, width, count]),
    down: take('down', [width, n_embd, count]),
  };
}

/** One weight whose rows are those of all parts; undefined where their types differ. */
function join(name: string, parts: PlannedWeight[]): PlannedWeight | undefined {
  const first = parts[0]!;
  if (parts.some((part) => part.type !== first.type)) return undefined;
  const last = first.shape.length - 1;
  const rows = parts.reduce((sum, part) => sum + part.shape[last]!, 0);
  return {
    name,
    type: first.type,
    shape: [...first.shape.slice(0, last), rows],
    use: first.use,
    parts: parts.flatMap((part) => part.parts),
  };
}

/** Takes tensors by name and collects what is wrong, so that one error names it all. */
class Planner {
  readonly #file: GgufFile;
  readonly #byName: Map<string, GgufTensor>;
  readonly #wrong: string[] = [];

  constructor(file: GgufFile) {
    this.#file = file;
    this.#byName = new Map(file.tensors.map((tensor) => [tensor.name, tensor]));
  }

  has(name: string): boolean {
    return this.#byName.has(name);
  }

  take(name: string, use: WeightUse, shape: number[]): PlannedWeight {
    const tensor = this.#byName.get(name);
    if (!tensor) {
      this.#wrong.push(`the tensor ${name} is missing`);
      return { name, type: 'F32', shape, use, parts: [] };
    }
    const found = [...tensor.shape];
    while (found.length > shape.length && found.at(-1) === 1) found.pop();
    if (found.join() !== shape.join())
      this.#wrong.push(`${name} has the shape [${tensor.shape.join(', ')}], expected [${shape.join(', ')}]`);
    if (use === 'vector' && tensor.type !== 'F32')
      this.#wrong.push(`${name} is of the type ${tensor.type}, expected F32`);
    return { name, type: tensor.type, shape, use, parts: [tensor] };
  }

  finish(): void {
    const [first, ...others] = this.#wrong;
    if (first === undefined) return;
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `${this.#file.path} lacks weights that its architecture needs`,
      because:
        others.length < 8
          ? this.#wrong
          : [...this.#wrong.slice(0, 8), `and ${this.#wrong.length - 8} more tensors`],
    });
  }
}
