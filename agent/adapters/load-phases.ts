/**
 * What engines do before they serve, by lines of their logs: each with the version in which it was seen. A line that no
 * pattern knows is no phase, and what an engine never says is not shown.
 */
import type { LoadPhase } from '../../spec/session-record.ts';
import type { EngineAdapter } from './adapter.ts';
import { isAccessLine, readLogLine } from './log-line.ts';

interface PhaseLine {
  phase: LoadPhase;
  test: RegExp;
  /** Where it was seen. */
  seen: string;
}

/**
 * transformers, vLLM and SGLang count shards of the weights: `…shards:  25% Completed | 1/4 [00:01<00:03]`; with
 * several threads `Multi-thread loading shards` (`multi_thread_safetensors_weights_iterator` of
 * model_loader/weight_utils.py in both, the default of SGLang in 2026).
 */
const shards =
  /\b(?:Loading (?:safetensors|pt|checkpoint|weights)[^:]*(?:shards|)|Multi-thread loading shards):?\s+(\d{1,3})%/;

const lines: Partial<Record<EngineAdapter['name'], readonly PhaseLine[]>> = {
  vllm: [
    { phase: 'weights', test: /^Starting to load model\b/, seen: '0.9 to 0.32' },
    { phase: 'weights', test: shards, seen: '0.6 to 0.32' },
    {
      phase: 'compiling',
      test: /\bUsing cache directory: .* for vLLM's torch\.compile/,
      seen: '0.8 to 0.32',
    },
    {
      phase: 'compiling',
      test: /^Dynamo bytecode transform time\b|^Compiling a graph for\b/,
      seen: '0.8 to 0.32',
    },
    { phase: 'compiling', test: /^Warming up model for the compilation\b/, seen: '0.9 to 0.32, on CPUs' },
    {
      phase: 'kv_cache',
      test: /^(Available KV cache memory|(GPU|CPU) KV cache size): /,
      seen: '0.8 to 0.32',
    },
    { phase: 'kv_cache', test: /\bGiB for KV cache on node \d/, seen: '0.32, on CPUs' },
    { phase: 'warming_up', test: /^Captur(e|ing) (CUDA|cuda) ?graphs?\b/i, seen: '0.6 to 0.32' },
    { phase: 'warming_up', test: /^Starting vLLM (API )?server\b/, seen: '0.8 to 0.32' },
  ],
  // srt/model_executor/model_runner.py and srt/mem_cache/memory_pool.py, from 0.2.13 (2024) to main of May 2026.
  sglang: [
    { phase: 'weights', test: /^Load weight begin\. /, seen: '0.2 to 0.5' },
    { phase: 'weights', test: shards, seen: '0.2 to 0.5' },
    { phase: 'kv_cache', test: /^KV Cache is allocated\. /, seen: '0.4 to 0.5' },
    { phase: 'kv_cache', test: /^Memory pool end\. /, seen: '0.2 to 0.5' },
    { phase: 'compiling', test: /^Compiling num tokens \(/, seen: '0.5, with piecewise graphs' },
    // Of CUDA, CPUs, NPUs; `piecewise`, `draft`, `draft extend` before that.
    { phase: 'warming_up', test: /^Capture (?:[\w-]+ ){1,4}graph begin\. /i, seen: '0.2 to 0.5' },
  ],
  // src/llama-model.cpp, src/llama-context.cpp and src/llama-kv-cache*.cpp, common/common.cpp.
  'llama.cpp': [
    {
      phase: 'weights',
      test: /^load_tensors: loading model tensors, this can take a while/,
      seen: 'b4450 to b7000',
    },
    // Its context was made by the last of these until b4760.
    {
      phase: 'kv_cache',
      test: /^llama_(kv_cache\w*|context|init_from_model|new_context_with_model): /,
      seen: 'b4000 to b7000',
    },
    {
      phase: 'warming_up',
      test: /^common_init_from_params: warming up the model with an empty run\b/,
      seen: 'b4100 to b10969',
    },
  ],
  // launcher/src/main.rs, and backends/v2 and v3/src/lib.rs, which make KV and graphs while they warm up.
  tgi: [
    {
      phase: 'weights',
      test: /^(shard-manager: )?text_generation_launcher: Starting shard\b/,
      seen: '2.0 to 3.3.7',
    },
    {
      phase: 'warming_up',
      test: /^text_generation_router(_v[23])?: (\S+: )?Warming up model$/,
      seen: '2.0 to 3.3.7',
    },
  ],
};

interface PhaseSign {
  phase: LoadPhase;
  /** Of the weights, from 0 to 1, where the line says it. */
  share?: number;
}

/** What a line says of the phase an engine is in; undefined for all others. Pure. */
export function phaseSign(engine: EngineAdapter['name'], line: string): PhaseSign | undefined {
  const { text } = readLogLine(line);
  const found = lines[engine]?.find(({ test }) => test.test(text));
  if (!found) return undefined;
  const percent = shards.exec(text)?.[1];
  return percent === undefined
    ? { phase: found.phase }
    : { phase: found.phase, share: Math.min(1, Number(percent) / 100) };
}

/** Of torch.compile, Triton, FlashInfer, TVM and CUDA graphs, as engines that serve meet a shape that is new. */
const compilation =
  /\b(compil(e|es|ed|ing|ation)|autotun(e|ing)|captur(e|ing) cuda ?graphs?|building (extension|kernel)|JIT)\b/i;

/** Whether an engine that serves says that it builds kernels; lines of requests say nothing. */
export function saysCompilation(line: string): boolean {
  return compilation.test(line) && !isAccessLine(line);
}
