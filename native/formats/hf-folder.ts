/**
 * Checks a Hugging Face folder (config.json, safetensors with or without an index, tokenizer) from headers
 * alone, and summarizes its model.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ModelFileSummary } from '../../spec/model-summary.ts';
import { translate } from './file-window.ts';
import { readSafetensors, type SafetensorsFile, type SafetensorsTensor } from './safetensors.ts';
import { distributeWeights, tallyTypes } from './weight-tally.ts';

export interface HfFolder {
  path: string;
  /** Safetensors files that the model is made of. */
  files: SafetensorsFile[];
  summary: ModelFileSummary;
}

const positive = z.int().positive();
/** The keys of config.json that planning needs; families name some of them differently. */
const configSchema = z.looseObject({
  model_type: z.string(),
  num_hidden_layers: positive,
  hidden_size: positive,
  num_attention_heads: positive,
  num_key_value_heads: positive.nullish(),
  head_dim: positive.nullish(),
  intermediate_size: positive.nullish(),
  moe_intermediate_size: positive.nullish(),
  vocab_size: positive,
  max_position_embeddings: positive.nullish(),
  num_experts: positive.nullish(),
  num_local_experts: positive.nullish(),
  n_routed_experts: positive.nullish(),
  num_experts_per_tok: positive.nullish(),
  sliding_window: positive.nullish(),
  use_sliding_window: z.boolean().nullish(),
  kv_lora_rank: positive.nullish(),
  qk_rope_head_dim: positive.nullish(),
  tie_word_embeddings: z.boolean().nullish(),
  quantization_config: z.looseObject({}).nullish(),
});
type HfConfig = z.infer<typeof configSchema>;

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });

const tokenizerFiles = ['tokenizer.json', 'tokenizer.model', 'vocab.json', 'tekken.json'];

/**
 * Throws E_MODEL_MISSING, E_MODEL_FOLDER (config.json, index, shards, tokenizer: every absent one is named),
 * E_MODEL_METADATA (config.json), and as readSafetensors does for damaged shards.
 */
export function readHfFolder(path: string): HfFolder {
  const names = translate(path, () => readdirSync(path));
  const problems: string[] = [];
  if (!names.includes('config.json')) problems.push('config.json is missing');
  const hasTokenizer = tokenizerFiles.some((name) => names.includes(name));
  if (!hasTokenizer) problems.push(`no tokenizer: none of ${tokenizerFiles.join(', ')}`);
  const index = names.includes('model.safetensors.index.json') ? readIndex(path) : undefined;
  const shards = index
    ? [...new Set(Object.values(index))].sort()
    : names.filter((name) => name.endsWith('.safetensors')).sort();
  problems.push(...shardProblems(path, names, shards));
  if (problems.length > 0) {
    throw new HpcserveError('E_MODEL_FOLDER', {
      what: `${path} is not a complete Hugging Face folder`,
      because: problems,
      details: { path },
    });
  }
  const config = readConfig(path);
  const files = shards.map((name) => readSafetensors(join(path, name)));
  if (index) checkIndex(path, index, files);
  return { path, files, summary: summarize(path, names, config, files) };
}

function shardProblems(path: string, names: readonly string[], shards: readonly string[]): string[] {
  if (shards.length === 0) {
    const pickles = names.filter((name) => /\.(bin|pt|pth)$/.test(name));
    return [
      pickles.length > 0
        ? `no .safetensors files, only ${pickles.slice(0, 3).join(', ')}: convert them to safetensors`
        : 'no .safetensors files',
    ];
  }
  return shards
    .filter((name) => name !== basename(name) || !existsSync(join(path, name)))
    .map((name) => `the index names ${JSON.stringify(name)}, which is not in the folder`);
}

function readIndex(path: string): Record<string, string> {
  const file = join(path, 'model.safetensors.index.json');
  const parsed = indexSchema.safeParse(readJson(file));
  if (parsed.success) return parsed.data.weight_map;
  throw new HpcserveError('E_MODEL_FOLDER', {
    what: `${file} is not an index of safetensors files`,
    because: 'it must hold an object "weight_map" of tensor names to file names',
  });
}

function checkIndex(path: string, index: Record<string, string>, files: readonly SafetensorsFile[]): void {
  const held = new Set<string>();
  for (const file of files) {
    for (const tensor of file.tensors) held.add(`${basename(file.path)}\0${tensor.name}`);
  }
  const absent = Object.entries(index).filter(([tensor, file]) => !held.has(`${file}\0${tensor}`));
  if (absent.length === 0) return;
  throw new HpcserveError('E_MODEL_FOLDER', {
    what: `${path}: the index and the shards do not belong together`,
    because: absent.slice(0, 3).map(([tensor, file]) => `tensor "${tensor}" is not in ${file}`),
    details: { absent: absent.length },
  });
}

function readConfig(path: string): HfConfig {
  const file = join(path, 'config.json');
  const raw = readJson(file);
  // Multimodal models keep the language model's numbers one level down.
  const nested = z.looseObject({ text_config: z.looseObject({}) }).safeParse(raw);
  const value = nested.success ? { ...nested.data, ...nested.data.text_config } : raw;
  const parsed = configSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw new HpcserveError('E_MODEL_METADATA', {
    what: `${file} does not describe a language model`,
    because: parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`),
  });
}

function readJson(file: string): unknown {
  const text = translate(file, () => readFileSync(file, 'utf8'));
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new HpcserveError('E_MODEL_FOLDER', {
      what: `${file} is not JSON`,
      because: (error as Error).message,
      cause: error,
    });
  }
}

function summarize(
  path: string,
  names: readonly string[],
  config: HfConfig,
  files: readonly SafetensorsFile[],
): ModelFileSummary {
  const tensors = files.flatMap((file) => file.tensors);
  const n_layer = config.num_hidden_layers;
  const head_dim = config.head_dim ?? Math.floor(config.hidden_size / config.num_attention_heads);
  const n_head_kv = config.num_key_value_heads ?? config.num_attention_heads;
  const n_expert = config.num_experts ?? config.num_local_experts ?? config.n_routed_experts ?? 0;
  const used = config.num_experts_per_tok ?? 0;
  const elements = config.kv_lora_rank
    ? config.kv_lora_rank + (config.qk_rope_head_dim ?? 0)
    : 2 * n_head_kv * head_dim;
  const window = config.use_sliding_window === false ? undefined : (config.sliding_window ?? undefined);
  const n_ff = config.intermediate_size ?? 4 * config.hidden_size;
  const tied =
    config.tie_word_embeddings ?? !tensors.some((tensor) => tensor.name.endsWith('lm_head.weight'));
  return {
    format: 'safetensors',
    architecture: config.model_type,
    name: basename(path),
    n_params: parameters(tensors, config),
    n_params_active: activeParameters(tensors, config, n_expert, used),
    n_layer,
    n_embd: config.hidden_size,
    n_head: config.num_attention_heads,
    n_head_kv,
    head_dim,
    n_ff,
    n_vocab: config.vocab_size,
    n_ctx_train: config.max_position_embeddings ?? 0,
    ...(n_expert > 0
      ? { experts: { count: n_expert, used_per_token: used, n_ff: config.moe_intermediate_size ?? n_ff } }
      : {}),
    ...(window === undefined ? {} : { sliding_window: window }),
    tied_embeddings: tied,
    quantization: quantizationName(config, tensors),
    tensor_types: tallyTypes(tensors),
    file_bytes: files.reduce((sum, file) => sum + file.file_bytes, 0),
    weight_bytes: tensors.reduce((sum, tensor) => sum + tensor.size_bytes, 0),
    weight_bytes_of: distributeWeights(tensors, n_layer, {
      layer: /\.(?:layers|h|blocks)\.(\d+)\./,
      output: /(^|\.)(lm_head|norm|ln_f|final_layernorm)\./,
    }),
    kv_bytes_per_token: 2 * n_layer * elements,
    has_chat_template: hasChatTemplate(path, names),
    has_tokenizer: true,
    supported_by_native: 'the native engine reads GGUF files; convert the folder, or use a wrapped engine',
  };
}

/** Packed 4-bit and 8-bit formats (awq, gptq, …) hold several parameters in one I32. */
function parameters(tensors: readonly SafetensorsTensor[], config: HfConfig): number {
  return tensors.reduce((sum, tensor) => sum + tensorParameters(tensor, config), 0);
}

function tensorParameters(tensor: SafetensorsTensor, config: HfConfig): number {
  if (!config.quantization_config) return tensor.n_elements;
  if (/(qzeros|scales?|scale_inv|g_idx|zero_point|weight_shape)$/.test(tensor.name)) return 0;
  const bits = Number(config.quantization_config.bits ?? config.quantization_config.w_bit ?? 0);
  return tensor.type === 'I32' && bits > 0 ? tensor.n_elements * (32 / bits) : tensor.n_elements;
}

function activeParameters(
  tensors: readonly SafetensorsTensor[],
  config: HfConfig,
  n_expert: number,
  used: number,
): number {
  return Math.round(
    tensors.reduce((sum, tensor) => {
      const count = tensorParameters(tensor, config);
      return sum + (n_expert > 0 && /\.experts\./.test(tensor.name) ? (count / n_expert) * used : count);
    }, 0),
  );
}

function quantizationName(config: HfConfig, tensors: readonly SafetensorsTensor[]): string {
  const quantization = config.quantization_config;
  if (quantization) {
    const bits = quantization.bits ?? quantization.w_bit;
    const method = String(quantization.quant_method ?? 'quantized');
    return typeof bits === 'number' ? `${method}-${bits}bit` : method;
  }
  const types = Object.entries(tallyTypes(tensors)).sort(([, a], [, b]) => b.bytes - a.bytes);
  return types[0]?.[0] ?? 'unknown';
}

function hasChatTemplate(path: string, names: readonly string[]): boolean {
  if (names.includes('chat_template.jinja') || names.includes('chat_template.json')) return true;
  if (!names.includes('tokenizer_config.json')) return false;
  const config = z.looseObject({}).safeParse(readJson(join(path, 'tokenizer_config.json')));
  return config.success && config.data.chat_template !== undefined;
}
