import type { UnitSpec } from '../../spec/launch.ts';
import type { EngineAdapter } from './adapter.ts';
import { command } from './command.ts';
import { llamaCpp } from './llama-cpp.ts';
import { lmdeploy } from './lmdeploy.ts';
import { ollama } from './ollama.ts';
import { sglang } from './sglang.ts';
import { tensorrtLlm } from './tensorrt-llm.ts';
import { tgi } from './tgi.ts';
import { transformers } from './transformers.ts';
import { vllm } from './vllm.ts';

const adapters: Readonly<Record<EngineAdapter['name'], EngineAdapter>> = {
  vllm,
  sglang,
  'llama.cpp': llamaCpp,
  lmdeploy,
  'tensorrt-llm': tensorrtLlm,
  tgi,
  transformers,
  ollama,
  command,
};

/** The adapter of a wrapped engine. */
export function adapterOf(engine: Exclude<UnitSpec['engine'], 'native'>): EngineAdapter {
  return adapters[engine];
}
