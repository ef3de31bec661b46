/** How many bits engines keep of each element of their KV caches. One table for all of them. */
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { PlacementModel, ResolvedEngine } from '../../spec/plan.ts';
import { weightPrecisionIfKnown } from './weight-precision.ts';

/** Of `kv_bytes_per_token` of a model's summary. */
const summary_bits = 16;

/**
 * What an engine's KV is of, where nobody gives it an option for it:
 *
 * - `kv_type`: what model.yaml says, in ggml's types.
 * - `dtype`: what the model computes in, so its precision; where that is a quantization, 16 bits.
 * - `stored`: the same, and without a precision what the files are of. The others make 16 bits of files of 32 (`auto`
 *   of `--dtype`: vLLM `_resolve_auto_dtype` in vllm/config/model.py, SGLang `_get_and_verify_dtype` in
 *   srt/configs/model_config.py).
 * - `half`: 16 bits in any case.
 */
type KvRule = 'kv_type' | 'dtype' | 'stored' | 'half';

interface EngineKv {
  of: KvRule;
  /** Options that say it otherwise, in engine_args: those of keys first, then those of values where they are apart. */
  options: readonly (readonly string[])[];
}

const kvCacheDtype = [['--kv-cache-dtype']] as const;
const engines: Readonly<Record<ResolvedEngine, EngineKv>> = {
  native: { of: 'kv_type', options: [] },
  'llama.cpp': {
    of: 'kv_type',
    options: [
      ['--cache-type-k', '-ctk'],
      ['--cache-type-v', '-ctv'],
    ],
  },
  // It knows f16, q8_0 and q4_0, and takes f16 for any other word (`kvCacheTypeFromStr` in
  // runner/ollamarunner/cache.go).
  ollama: { of: 'kv_type', options: [] },
  vllm: { of: 'dtype', options: kvCacheDtype },
  sglang: { of: 'dtype', options: kvCacheDtype },
  tgi: { of: 'dtype', options: kvCacheDtype },
  lmdeploy: { of: 'dtype', options: [['--quant-policy']] },
  'tensorrt-llm': { of: 'half', options: kvCacheDtype },
  transformers: { of: 'stored', options: [] },
  command: { of: 'half', options: [] },
};

/** Bits of ggml's types, scales included: those of 32 elements a block. */
const ggmlBits: Readonly<Record<string, number>> = {
  f32: 32,
  f16: 16,
  bf16: 16,
  q8_0: 8.5,
  q5_1: 6,
  q5_0: 5.5,
  q4_1: 5,
  q4_0: 4.5,
  iq4_nl: 4.5,
};

/** Bits of a KV element, scales included. @param precision as the engine is asked for it; `auto`: as the files are */
export function kvBits(
  engine: ResolvedEngine,
  model: Pick<PlacementModel, 'spec' | 'summary'>,
  precision: string,
): number {
  const { of, options } = engines[engine];
  const { engine_args } = model.spec;
  const bits = usualBits(engine, of, model, precision);
  if (options.length === 0) return bits;
  const told = options.map((names) => bitsNamed(argumentOf(engine_args, names)) ?? bits);
  return told.reduce((sum, each) => sum + each, 0) / told.length;
}

/** KV bytes of one token, over all layers and devices. */
export function kvBytesPerToken(
  engine: ResolvedEngine,
  model: Pick<PlacementModel, 'spec' | 'summary' | 'kv_bytes_per_token'>,
  precision: string,
): number {
  return Math.ceil((model.kv_bytes_per_token * kvBits(engine, model, precision)) / summary_bits);
}

function usualBits(
  engine: ResolvedEngine,
  of: KvRule,
  { spec, summary }: Pick<PlacementModel, 'spec' | 'summary'>,
  precision: string,
): number {
  if (of === 'half') return 16;
  if (of === 'kv_type') return engine === 'ollama' && spec.kv_type === 'f32' ? 16 : typeBits(spec);
  const dtype = argumentOf(spec.engine_args, ['--dtype']) ?? precision;
  const name = dtype === 'auto' && of === 'stored' ? (summary?.quantization ?? 'f16') : dtype;
  return name === 'float' || weightPrecisionIfKnown(name)?.name === 'f32' ? 32 : 16;
}

function typeBits({ kv_type }: ModelSpec): number {
  return ggmlBits[kv_type]!;
}

/** Of what an option for KV says; undefined where that leaves it as it is, or is of no known size. */
function bitsNamed(value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  const name = value.toLowerCase();
  if (ggmlBits[name] !== undefined) return ggmlBits[name];
  if (/^(fp8|int8)/.test(name) || name === '8') return 8;
  // Scales of a byte for each 16 elements.
  if (/^(nvfp4|fp4)/.test(name)) return 4.5;
  if (name === '4') return 4;
  if (/^(bfloat16|float16|half)$/.test(name)) return 16;
  return undefined;
}

/** The value of the last of these options; engines in Python take `_` for `-`. */
export function argumentOf(engine_args: readonly string[], names: readonly string[]): string | undefined {
  let value: string | undefined;
  for (const [at, word] of engine_args.entries()) {
    const [name, joined] = splitAt(word, word.indexOf('='));
    if (names.includes(name.replaceAll('_', '-'))) value = joined ?? engine_args[at + 1];
  }
  return value;
}

function splitAt(word: string, at: number): [string, string | undefined] {
  return at < 0 ? [word, undefined] : [word.slice(0, at), word.slice(at + 1)];
}
