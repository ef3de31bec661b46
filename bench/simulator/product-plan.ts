/** The plan that `hpcserve plan` would make of a case of the catalog: the product's own question, and its `place`. */
import { findDevice } from '../../solver/catalog/devices.ts';
import { findModel } from '../../solver/catalog/known-models.ts';
import {
  activeParameters,
  kvElementsPerLayer,
  parameterCount,
  storedWeights_bytes,
} from '../../solver/catalog/model-shape.ts';
import { place } from '../../solver/placement/placement.ts';
import { modelSchema } from '../../spec/model-yaml.ts';
import {
  defaultPlacementSettings,
  type NodeKindOffer,
  type Placement,
  type PlacementModel,
  type PlannedGroup,
} from '../../spec/plan.ts';

export interface AskedModel {
  name: string;
  rate_per_s: number;
  input_tokens: number;
  output_tokens: number;
}

export interface OfferedDevices {
  device: string;
  nodes: number;
  per_node: number;
}

const gib = 2 ** 30;
/** What vLLM computes at once unless told otherwise. */
const max_sequences = 256;
/** How long a better plan is looked for, as `plan` does. */
const search_ms = 5000;

/** By model: its replicas where they run; and how the search ended. @throws Error where the product has no plan */
export function productPlan(
  models: readonly AskedModel[],
  devices: readonly OfferedDevices[],
): { groups: PlannedGroup[][]; search: Placement['search'] } {
  const deadline_ms = performance.now() + search_ms;
  const placement = place(
    {
      deployment: 'case',
      site: 'case',
      models: models.map(placementModel),
      node_kinds: devices.map(offer),
      settings: defaultPlacementSettings,
      objective: 'latency',
    },
    { shouldStop: () => performance.now() > deadline_ms },
  );
  if (placement.unplaced.length > 0)
    throw new Error(
      `the product has no plan: ${placement.unplaced.map(({ model }) => model).join(', ')} find no place`,
    );
  return {
    groups: models.map(({ name }) => placement.models.find(({ model }) => model === name)!.groups),
    search: placement.search,
  };
}

function placementModel({ name, rate_per_s, input_tokens, output_tokens }: AskedModel): PlacementModel {
  const shape = findModel(name);
  const weight_bytes = storedWeights_bytes(shape);
  const kv_bytes_per_token = 2 * kvElementsPerLayer(shape) * shape.n_layer;
  return {
    spec: modelSchema.parse({ name, source: '/m', engine: 'vllm', replicas: 'auto', max_sequences }),
    model_path: '/m',
    format: 'huggingface',
    architecture: 'llama',
    weight_bytes,
    kv_bytes_per_token,
    trained_context_tokens: 4096,
    native: { supported: false, because: 'not a GGUF file' },
    summary: {
      format: 'safetensors',
      architecture: 'llama',
      name,
      n_layer: shape.n_layer,
      n_embd: shape.n_embd,
      n_head: shape.n_head,
      n_head_kv: shape.n_head_kv,
      head_dim: shape.head_dim,
      n_ff: shape.n_ff,
      n_vocab: shape.n_vocab,
      n_ctx_train: 4096,
      tied_embeddings: shape.tied_embeddings,
      n_params: parameterCount(shape).total,
      n_params_active: activeParameters(shape),
      quantization: 'BF16',
      tensor_types: {},
      file_bytes: weight_bytes,
      weight_bytes,
      weight_bytes_of: { embedding: 0, layers: [], output: 0 },
      kv_bytes_per_token,
      has_chat_template: true,
      has_tokenizer: true,
      supported_by_native: 'not a GGUF file',
    },
    workload: { rate_per_s, input_tokens, output_tokens, source: 'given' },
  };
}

function offer({ device, nodes, per_node }: OfferedDevices): NodeKindOffer {
  return {
    node_kind: device.toLowerCase(),
    tier: 'stable',
    partitions: ['gpu'],
    nodes_total: nodes,
    cpus: 256,
    memory_bytes: 1024 * gib,
    devices: { kind: 'gpu', model: device, count: per_node, memory_bytes: findDevice(device).memory_bytes },
    engines: { vllm: { available: true } },
    isa: [],
    architecture: 'x86_64',
  };
}
