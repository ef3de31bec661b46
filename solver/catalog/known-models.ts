/** Shapes of models people ask for by name, each from the `config.json` its authors published. */
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';
import type { ModelShape } from './model-shape.ts';
import { weightPrecision } from './weight-precision.ts';

export interface KnownModel {
  shape: ModelShape;
  aliases: readonly string[];
  /** Repository whose config.json holds these numbers. */
  source: string;
}

type Row = readonly [
  name: string,
  source: string,
  sizes: readonly [
    layer: number,
    embd: number,
    head: number,
    kv: number,
    dim: number,
    ff: number,
    vocab: number,
  ],
  more?: Partial<ModelShape>,
  aliases?: readonly string[],
];

const moe = (
  count: number,
  used_per_token: number,
  n_ff: number,
  n_layer: number,
  shared_n_ff = 0,
): NonNullable<ModelShape['experts']> => ({ count, used_per_token, n_ff, shared_n_ff, n_layer });
const tied = { tied_embeddings: true } as const;
const deepseek = { kv_rank: 512, q_rank: 1536, rope_dim: 64, nope_dim: 128, v_dim: 128 } as const;

// biome-ignore format: one model a line reads as the table it is
const rows: readonly Row[] = [
  ['llama-2-7b', 'meta-llama/Llama-2-7b-hf', [32, 4096, 32, 32, 128, 11008, 32000]],
  ['llama-2-13b', 'meta-llama/Llama-2-13b-hf', [40, 5120, 40, 40, 128, 13824, 32000]],
  ['llama-2-70b', 'meta-llama/Llama-2-70b-hf', [80, 8192, 64, 8, 128, 28672, 32000]],
  ['codellama-34b', 'codellama/CodeLlama-34b-hf', [48, 8192, 64, 8, 128, 22016, 32000]],
  ['llama-3-8b', 'meta-llama/Meta-Llama-3-8B', [32, 4096, 32, 8, 128, 14336, 128256]],
  ['llama-3.1-8b', 'meta-llama/Llama-3.1-8B', [32, 4096, 32, 8, 128, 14336, 128256]],
  ['llama-3.1-70b', 'meta-llama/Llama-3.1-70B', [80, 8192, 64, 8, 128, 28672, 128256]],
  ['llama-3.1-405b', 'meta-llama/Llama-3.1-405B', [126, 16384, 128, 8, 128, 53248, 128256]],
  ['llama-3.2-1b', 'meta-llama/Llama-3.2-1B', [16, 2048, 32, 8, 64, 8192, 128256], tied],
  ['llama-3.2-3b', 'meta-llama/Llama-3.2-3B', [28, 3072, 24, 8, 128, 8192, 128256], tied],
  ['llama-3.3-70b', 'meta-llama/Llama-3.3-70B-Instruct', [80, 8192, 64, 8, 128, 28672, 128256], {}, ['llama-70b']],
  ['llama-4-scout', 'meta-llama/Llama-4-Scout-17B-16E', [48, 5120, 40, 8, 128, 0, 202048], { experts: moe(16, 1, 8192, 48, 8192), sliding_window: { tokens: 8192, n_layer: 36 } }],
  ['llama-4-maverick', 'meta-llama/Llama-4-Maverick-17B-128E', [48, 5120, 40, 8, 128, 16384, 202048], { experts: moe(128, 1, 8192, 24, 8192), sliding_window: { tokens: 8192, n_layer: 36 } }],
  ['mistral-7b', 'mistralai/Mistral-7B-v0.3', [32, 4096, 32, 8, 128, 14336, 32768]],
  ['mistral-nemo-12b', 'mistralai/Mistral-Nemo-Base-2407', [40, 5120, 32, 8, 128, 14336, 131072]],
  ['mistral-small-24b', 'mistralai/Mistral-Small-24B-Base-2501', [40, 5120, 32, 8, 128, 32768, 131072]],
  ['mistral-large-123b', 'mistralai/Mistral-Large-Instruct-2407', [88, 12288, 96, 8, 128, 28672, 32768]],
  ['mixtral-8x7b', 'mistralai/Mixtral-8x7B-v0.1', [32, 4096, 32, 8, 128, 0, 32000], { experts: moe(8, 2, 14336, 32) }],
  ['mixtral-8x22b', 'mistralai/Mixtral-8x22B-v0.1', [56, 6144, 48, 8, 128, 0, 32768], { experts: moe(8, 2, 16384, 56) }],
  ['qwen2-7b', 'Qwen/Qwen2-7B', [28, 3584, 28, 4, 128, 18944, 152064]],
  ['qwen2.5-7b', 'Qwen/Qwen2.5-7B', [28, 3584, 28, 4, 128, 18944, 152064]],
  ['qwen2.5-14b', 'Qwen/Qwen2.5-14B', [48, 5120, 40, 8, 128, 13824, 152064]],
  ['qwen2.5-32b', 'Qwen/Qwen2.5-32B', [64, 5120, 40, 8, 128, 27648, 152064]],
  ['qwen2.5-72b', 'Qwen/Qwen2.5-72B', [80, 8192, 64, 8, 128, 29568, 152064]],
  ['qwen3-0.6b', 'Qwen/Qwen3-0.6B', [28, 1024, 16, 8, 128, 3072, 151936], tied],
  ['qwen3-4b', 'Qwen/Qwen3-4B', [36, 2560, 32, 8, 128, 9728, 151936], tied],
  ['qwen3-8b', 'Qwen/Qwen3-8B', [36, 4096, 32, 8, 128, 12288, 151936]],
  ['qwen3-14b', 'Qwen/Qwen3-14B', [40, 5120, 40, 8, 128, 17408, 151936]],
  ['qwen3-32b', 'Qwen/Qwen3-32B', [64, 5120, 64, 8, 128, 25600, 151936]],
  ['qwen3-30b-a3b', 'Qwen/Qwen3-30B-A3B', [48, 2048, 32, 4, 128, 0, 151936], { experts: moe(128, 8, 768, 48) }],
  ['qwen3-235b-a22b', 'Qwen/Qwen3-235B-A22B', [94, 4096, 64, 4, 128, 0, 151936], { experts: moe(128, 8, 1536, 94) }],
  ['qwen3-next-80b-a3b', 'Qwen/Qwen3-Next-80B-A3B-Instruct', [48, 2048, 16, 2, 256, 0, 151936], { experts: moe(512, 10, 512, 48, 512), linear: { n_layer: 36, columns: 12352, rows: 4096, state_elements: 524288 } }],
  ['gemma-2-2b', 'google/gemma-2-2b', [26, 2304, 8, 4, 256, 9216, 256000], { ...tied, sliding_window: { tokens: 4096, n_layer: 13 } }],
  ['gemma-2-9b', 'google/gemma-2-9b', [42, 3584, 16, 8, 256, 14336, 256000], { ...tied, sliding_window: { tokens: 4096, n_layer: 21 } }],
  ['gemma-2-27b', 'google/gemma-2-27b', [46, 4608, 32, 16, 128, 36864, 256000], { ...tied, sliding_window: { tokens: 4096, n_layer: 23 } }],
  ['gemma-3-4b', 'google/gemma-3-4b-it', [34, 2560, 8, 4, 256, 10240, 262208], { ...tied, sliding_window: { tokens: 1024, n_layer: 29 } }],
  ['gemma-3-12b', 'google/gemma-3-12b-it', [48, 3840, 16, 8, 256, 15360, 262208], { ...tied, sliding_window: { tokens: 1024, n_layer: 40 } }],
  ['gemma-3-27b', 'google/gemma-3-27b-it', [62, 5376, 32, 16, 128, 21504, 262208], { ...tied, sliding_window: { tokens: 1024, n_layer: 52 } }],
  ['gpt-oss-20b', 'openai/gpt-oss-20b', [24, 2880, 64, 8, 64, 0, 201088], { experts: { ...moe(32, 4, 2880, 24), weights: weightPrecision('mxfp4') }, sliding_window: { tokens: 128, n_layer: 12 } }],
  ['gpt-oss-120b', 'openai/gpt-oss-120b', [36, 2880, 64, 8, 64, 0, 201088], { experts: { ...moe(128, 4, 2880, 36), weights: weightPrecision('mxfp4') }, sliding_window: { tokens: 128, n_layer: 18 } }],
  ['phi-3-mini', 'microsoft/Phi-3-mini-128k-instruct', [32, 3072, 32, 32, 96, 8192, 32064]],
  ['phi-4', 'microsoft/phi-4', [40, 5120, 40, 10, 128, 17920, 100352]],
  ['falcon-7b', 'tiiuae/falcon-7b', [32, 4544, 71, 1, 64, 18176, 65024], { ...tied, gated_ffn: false }],
  ['falcon-40b', 'tiiuae/falcon-40b', [60, 8192, 128, 8, 64, 32768, 65024], { ...tied, gated_ffn: false }],
  ['glm-4-9b', 'zai-org/GLM-4-9B-0414', [40, 4096, 32, 2, 128, 13696, 151552]],
  ['glm-4.5-air', 'zai-org/GLM-4.5-Air', [46, 4096, 96, 8, 128, 10944, 151552], { experts: moe(128, 8, 1408, 45, 1408) }],
  ['glm-4.6', 'zai-org/GLM-4.6', [92, 5120, 96, 8, 128, 12288, 151552], { experts: moe(160, 8, 1536, 89, 1536) }, ['glm-4.5', 'zai-org/GLM-4.5']],
  ['olmo-2-7b', 'allenai/OLMo-2-1124-7B', [32, 4096, 32, 32, 128, 11008, 100352]],
  ['olmo-2-13b', 'allenai/OLMo-2-1124-13B', [40, 5120, 40, 40, 128, 13824, 100352]],
  ['olmoe-1b-7b', 'allenai/OLMoE-1B-7B-0924', [16, 2048, 16, 16, 128, 0, 50304], { experts: moe(64, 8, 1024, 16) }],
  ['deepseek-v2-lite', 'deepseek-ai/DeepSeek-V2-Lite', [27, 2048, 16, 16, 128, 10944, 102400], { experts: moe(64, 6, 1408, 26, 2816), latent: { ...deepseek, q_rank: 0 } }],
  ['deepseek-v2', 'deepseek-ai/DeepSeek-V2', [60, 5120, 128, 128, 128, 12288, 102400], { experts: moe(160, 6, 1536, 59, 3072), latent: deepseek }],
  ['deepseek-v3', 'deepseek-ai/DeepSeek-V3', [61, 7168, 128, 128, 128, 18432, 129280], { experts: moe(256, 8, 2048, 58, 2048), latent: deepseek, weights: weightPrecision('fp8') }, ['deepseek-r1']],
  ['kimi-k2', 'moonshotai/Kimi-K2-Instruct', [61, 7168, 64, 64, 128, 18432, 163840], { experts: moe(384, 8, 2048, 60, 2048), latent: deepseek, weights: weightPrecision('fp8') }],
];

export const knownModels: readonly KnownModel[] = rows.map(([name, source, sizes, more, aliases]) => {
  const [n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab] = sizes;
  return {
    shape: {
      name,
      n_layer,
      n_embd,
      n_head,
      n_head_kv,
      head_dim,
      n_ff,
      gated_ffn: true,
      n_vocab,
      tied_embeddings: false,
      weights: weightPrecision('bf16'),
      ...more,
    },
    aliases: [source, ...(aliases ?? [])],
    source: `https://huggingface.co/${source}/blob/main/config.json`,
  };
});

/**
 * The known model of that name (with or without its organisation, any case, `-instruct` and the like left
 * aside), as shape.
 * @throws E_MODEL_SHAPE with the nearest known name.
 */
export function findModel(name: string): ModelShape {
  const wanted = fold(name);
  const found = knownModels.find(
    ({ shape, aliases }) => fold(shape.name) === wanted || aliases.some((alias) => fold(alias) === wanted),
  );
  if (found !== undefined) return found.shape;
  const names = knownModels.map(({ shape }) => shape.name);
  const close = nearest(name, names);
  throw new HpcserveError('E_MODEL_SHAPE', {
    what: `there is no model "${name}" in the catalog, and no file of that name`,
    because: close === undefined ? `known models: ${names.join(', ')}` : `the nearest known name is ${close}`,
    try: [
      ...(close === undefined ? [] : [`name ${close}`]),
      'name a GGUF file, a Hugging Face folder or a config.json',
    ],
    details: { name, nearest: close ?? null },
  });
}

function fold(name: string): string {
  return (name.split('/').at(-1) ?? name)
    .toLowerCase()
    .replace(/^meta-/, '')
    .replace(/-(hf|instruct|chat|it|base)$/, '')
    .replace(/-\d+b-\d+e$/, '')
    .replace(/-v\d\.\d$/, '')
    .replaceAll('_', '-');
}
