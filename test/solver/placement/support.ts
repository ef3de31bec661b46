import type { ModelFileSummary } from '../../../spec/model-summary.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import {
  defaultPlacementSettings,
  type NodeKindOffer,
  type Placement,
  type PlacementModel,
  type PlacementQuestion,
} from '../../../spec/plan.ts';

const gib = 1024 ** 3;

/** Published shapes, by billions of parameters. */
const shapes = {
  '1b': { n_layer: 16, n_embd: 2048, n_head: 32, n_head_kv: 8, head_dim: 64, n_ff: 8192, n_params: 1.24e9 },
  '8b': { n_layer: 32, n_embd: 4096, n_head: 32, n_head_kv: 8, head_dim: 128, n_ff: 14336, n_params: 8.03e9 },
  '13b': { n_layer: 40, n_embd: 5120, n_head: 40, n_head_kv: 40, head_dim: 128, n_ff: 13824, n_params: 13e9 },
  '70b': {
    n_layer: 80,
    n_embd: 8192,
    n_head: 64,
    n_head_kv: 8,
    head_dim: 128,
    n_ff: 28672,
    n_params: 70.6e9,
  },
} as const;
export type Size = keyof typeof shapes;

/** A Hugging Face folder in bf16, as its headers describe it. */
export function llama(name: string, size: Size, asked: Record<string, unknown> = {}): PlacementModel {
  const shape = shapes[size];
  const weight_bytes = 2 * shape.n_params;
  const summary: ModelFileSummary = {
    format: 'safetensors',
    architecture: 'llama',
    name,
    n_params_active: shape.n_params,
    ...shape,
    n_vocab: 128_256,
    n_ctx_train: 8192,
    tied_embeddings: false,
    quantization: 'BF16',
    tensor_types: {},
    file_bytes: weight_bytes,
    weight_bytes,
    weight_bytes_of: { embedding: 0, layers: [], output: 0 },
    kv_bytes_per_token: 4 * shape.n_head_kv * shape.head_dim * shape.n_layer,
    has_chat_template: true,
    has_tokenizer: true,
    supported_by_native: 'not a GGUF file',
  };
  const { workload, ...rest } = asked;
  return {
    spec: modelSchema.parse({ name, source: '/m', ...rest }),
    model_path: '/m',
    format: 'huggingface',
    architecture: 'llama',
    weight_bytes,
    kv_bytes_per_token: summary.kv_bytes_per_token,
    trained_context_tokens: 8192,
    native: { supported: false, because: 'not a GGUF file' },
    summary,
    ...(workload === undefined ? {} : { workload: { ...(workload as object), source: 'given' } as never }),
  };
}

/** The same as a GGUF file that the native engine computes. */
export function gguf(name: string, size: Size, asked: Record<string, unknown> = {}): PlacementModel {
  const model = llama(name, size, asked);
  const weight_bytes = (shapes[size].n_params * 4.5) / 8;
  return {
    ...model,
    format: 'gguf',
    weight_bytes,
    native: { supported: true },
    summary: {
      ...model.summary!,
      format: 'gguf',
      quantization: 'Q4_0',
      weight_bytes,
      supported_by_native: true,
    },
  };
}

/** Nodes of GPUs that vLLM runs on; so many as `nodes`, four devices each unless told otherwise. */
export function gpus(
  device: string,
  memory_gib: number,
  nodes: number,
  facts: Partial<NodeKindOffer> & { count?: number } = {},
): NodeKindOffer {
  const { count = 4, ...rest } = facts;
  return {
    node_kind: device.toLowerCase(),
    tier: 'stable',
    partitions: ['gpu'],
    nodes_total: nodes,
    cpus: 64,
    memory_bytes: 512 * gib,
    devices: { kind: 'gpu', model: device, count, memory_bytes: memory_gib * gib },
    engines: { vllm: { available: true } },
    isa: [],
    architecture: 'x86_64',
    ...rest,
  };
}

/** Nodes with one CPU device that the native engine runs on. */
export function cpus(
  model: string,
  nodes: number,
  isa: string[],
  facts: Partial<NodeKindOffer> = {},
): NodeKindOffer {
  return {
    ...gpus(model, 192, nodes, { count: 1 }),
    devices: { kind: 'cpu', model, count: 1, memory_bytes: 192 * gib },
    engines: { native: { available: true } },
    cpus: 48,
    isa,
    ...facts,
  };
}

export function ask(
  models: PlacementModel[],
  node_kinds: NodeKindOffer[],
  more: Partial<PlacementQuestion> = {},
): PlacementQuestion {
  return { deployment: 'd', site: 's', models, node_kinds, settings: defaultPlacementSettings, ...more };
}

/** Replicas of a model by node kind. */
export function where(plan: Placement, name: string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const launch of plan.launches)
    for (const unit of launch.units)
      if (unit.model.name === name) counts[launch.node_kind] = (counts[launch.node_kind] ?? 0) + 1;
  return counts;
}

export function planOf(plan: Placement, name: string): Placement['models'][number] {
  return plan.models.find(({ model }) => model === name)!;
}
