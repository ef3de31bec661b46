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

/** transformers and vLLM count shards of the weights: `…shards:  25% Completed | 1/4 [00:01<00:03]`. */
const shards = /\bLoading (?:safetensors|pt|checkpoint|weights)[^:]*(?:shards|):?\s+(\d{1,3})%/;

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
  sglang: [
    { phase: 'weights', test: /^Load weight begin\b/, seen: '0.3 to 0.5' },
    { phase: 'weights', test: shards, seen: '0.3 to 0.5' },
    { phase: 'kv_cache', test: /^(KV Cache is allocated|Memory pool end)\b/, seen: '0.3 to 0.5' },
    { phase: 'warming_up', test: /^Capture (cuda|cpu) graph begin\b/i, seen: '0.3 to 0.5' },
  ],
  'llama.cpp': [
    { phase: 'weights', test: /\bload_tensors: loading model tensors\b/, seen: 'b4600 to b7000' },
    { phase: 'kv_cache', test: /\bllama_(kv_cache\w*|context): /, seen: 'b4600 to b7000' },
    { phase: 'warming_up', test: /\bwarming up the model with an empty run\b/, seen: 'b4000 to b7000' },
  ],
  tgi: [
    { phase: 'weights', test: /\bStarting shard\b/, seen: '2.0 to 3.3' },
    { phase: 'warming_up', test: /\bWarming up model\b/, seen: '2.0 to 3.3' },
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
