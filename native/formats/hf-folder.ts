/**
 * Checks a Hugging Face folder (config.json, safetensors with or without an index, tokenizer) from headers
 * alone, and summarizes its model.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import {
  type ConfigKeys,
  configNumber,
  configPart,
  type HuggingFaceConfig,
  readHuggingFaceConfig,
} from '../../spec/hugging-face-config.ts';
import type { Experts } from '../../spec/hyper-parameters.ts';
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
  const shards = index ? [...new Set(Object.values(index))].sort() : hfWeightFiles(names).sort();
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

/**
 * The safetensors files of a Hugging Face model. Mistral's repositories hold the weights a second time, under the names
 * of their own format: `consolidated*.safetensors` beside `model*.safetensors`.
 */
export function hfWeightFiles(paths: readonly string[]): string[] {
  const weights = paths.filter((path) => path.endsWith('.safetensors'));
  const modelFolders = new Set(weights.filter((path) => basename(path).startsWith('model')).map(dirname));
  return weights.filter(
    (path) => !basename(path).startsWith('consolidated') || !modelFolders.has(dirname(path)),
  );
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

function readConfig(path: string): HuggingFaceConfig {
  const file = join(path, 'config.json');
  const read = readHuggingFaceConfig(readJson(file), basename(path));
  if (!('wrong' in read) && read.sizes.architecture !== '') return read;
  throw new HpcserveError('E_MODEL_METADATA', {
    what: `${file} does not describe a language model`,
    because:
      'missing' in read
        ? read.missing.map((key) => `${key}: a positive whole number is needed`)
        : 'wrong' in read
          ? 'it is not a JSON object'
          : 'model_type: a string is needed',
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
  { keys, sizes }: HuggingFaceConfig,
  files: readonly SafetensorsFile[],
): ModelFileSummary {
  const tensors = files.flatMap((file) => file.tensors);
  const packing = configPart(keys, 'quantization_config');
  const latent = configNumber(keys, 'kv_lora_rank');
  const elements =
    latent === undefined
      ? 2 * sizes.n_head_kv * sizes.head_dim
      : latent + (configNumber(keys, 'qk_rope_head_dim') ?? 0);
  return {
    format: 'safetensors',
    ...sizes,
    tied_embeddings:
      sizes.tied_embeddings ?? !tensors.some((tensor) => tensor.name.endsWith('lm_head.weight')),
    n_params: tensors.reduce((sum, tensor) => sum + tensorParameters(tensor, packing), 0),
    n_params_active: activeParameters(tensors, packing, sizes.experts),
    quantization: quantizationName(packing, tensors),
    tensor_types: tallyTypes(tensors),
    file_bytes: files.reduce((sum, file) => sum + file.file_bytes, 0),
    weight_bytes: tensors.reduce((sum, tensor) => sum + tensor.size_bytes, 0),
    weight_bytes_of: distributeWeights(tensors, sizes.n_layer, {
      layer: /\.(?:layers|h|blocks)\.(\d+)\./,
      output: /(^|\.)(lm_head|norm|ln_f|final_layernorm)\./,
    }),
    kv_bytes_per_token: 2 * sizes.n_layer * elements,
    has_chat_template: hasChatTemplate(path, names),
    has_tokenizer: true,
    supported_by_native: 'the native engine reads GGUF files; convert the folder, or use a wrapped engine',
  };
}

/**
 * Packed 4-bit and 8-bit formats (awq, gptq, …) hold several parameters in one I32.
 * @param packing `quantization_config`; empty where there is none
 */
function tensorParameters(tensor: SafetensorsTensor, packing: ConfigKeys): number {
  if (Object.keys(packing).length === 0) return tensor.n_elements;
  if (/(qzeros|scales?|scale_inv|g_idx|zero_point|weight_shape)$/.test(tensor.name)) return 0;
  const bits = packedBits(packing) ?? 0;
  return tensor.type === 'I32' && bits > 0 ? tensor.n_elements * (32 / bits) : tensor.n_elements;
}

function packedBits(packing: ConfigKeys): number | undefined {
  return configNumber(packing, 'bits', 'w_bit');
}

/** Tensors of experts count by the share that a token uses. */
function activeParameters(
  tensors: readonly SafetensorsTensor[],
  packing: ConfigKeys,
  experts: Experts | undefined,
): number {
  return Math.round(
    tensors.reduce((sum, tensor) => {
      const count = tensorParameters(tensor, packing);
      const shared = experts === undefined || !/\.experts\./.test(tensor.name);
      return sum + (shared ? count : (count / experts.count) * experts.used_per_token);
    }, 0),
  );
}

function quantizationName(packing: ConfigKeys, tensors: readonly SafetensorsTensor[]): string {
  if (Object.keys(packing).length > 0) {
    const bits = packedBits(packing);
    const method = String(packing.quant_method ?? 'quantized');
    return bits === undefined ? method : `${method}-${bits}bit`;
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
