/** Which engine computes a model on a kind of node, and why; the reasons are shown to people. */
import type { NodeKindOffer, PlacementModel, ResolvedEngine } from '../../spec/plan.ts';

export type EngineChoice =
  | { engine: ResolvedEngine; reason: string }
  | {
      engine?: ResolvedEngine;
      constraint: 'engine_unavailable' | 'architecture_unsupported';
      because: string;
    };

/** What each engine reads; `command` reads whatever its own command line says. */
const reads: Record<ResolvedEngine, readonly PlacementModel['format'][]> = {
  native: ['gguf'],
  vllm: ['huggingface', 'gguf'],
  sglang: ['huggingface'],
  'llama.cpp': ['gguf'],
  lmdeploy: ['huggingface'],
  'tensorrt-llm': ['huggingface'],
  tgi: ['huggingface'],
  transformers: ['huggingface'],
  ollama: ['gguf'],
  command: ['gguf', 'huggingface'],
};

const formatWords: Record<PlacementModel['format'], string> = {
  gguf: 'a GGUF file',
  huggingface: 'a Hugging Face folder',
};

/**
 * An engine that was asked for by name is checked; `auto` takes the first that can run, in this order:
 * GGUF: native, llama.cpp. Hugging Face folder: vLLM, SGLang, LMDeploy, TensorRT-LLM and TGI on real GPUs, vLLM and
 * SGLang on CPUs; transformers anywhere.
 */
export function chooseEngine(model: PlacementModel, offer: NodeKindOffer): EngineChoice {
  const asked = model.spec.engine;
  if (asked !== 'auto') {
    const obstacle = engineObstacle(model, offer, asked);
    if (obstacle) return { engine: asked, ...obstacle };
    return { engine: asked, reason: `engine ${asked}: asked for in model.yaml` };
  }
  const obstacles: string[] = [];
  let constraint: 'engine_unavailable' | 'architecture_unsupported' = 'engine_unavailable';
  for (const engine of autoOrder(model, offer)) {
    const obstacle = engineObstacle(model, offer, engine);
    if (!obstacle) return { engine, reason: autoReason(model, offer, engine) };
    obstacles.push(`${engine}: ${obstacle.because}`);
    if (obstacle.constraint === 'architecture_unsupported') constraint = obstacle.constraint;
  }
  return { constraint, because: obstacles.join('; ') };
}

function autoOrder(model: PlacementModel, offer: NodeKindOffer): ResolvedEngine[] {
  if (model.format === 'gguf') return ['native', 'llama.cpp'];
  if (onRealGpu(offer)) return ['vllm', 'sglang', 'lmdeploy', 'tensorrt-llm', 'tgi', 'transformers'];
  return offer.devices.kind === 'cpu' ? ['vllm', 'sglang', 'transformers'] : ['transformers', 'vllm'];
}

function autoReason(model: PlacementModel, offer: NodeKindOffer, engine: ResolvedEngine): string {
  const where =
    offer.devices.kind === 'cpu'
      ? 'CPU devices'
      : `${offer.devices.model}${offer.devices.emulated ? ' (emulated on CPU)' : ''}`;
  const offered = offer.engines[engine];
  const doubt =
    offered?.available && offered.unverified
      ? '; nobody has looked whether it is there: the site config can say so in runtime.engines'
      : '';
  return `engine ${engine}: first that runs ${formatWords[model.format]} (${model.architecture}) on ${where}${doubt}`;
}

function engineObstacle(
  model: PlacementModel,
  offer: NodeKindOffer,
  engine: ResolvedEngine,
): { constraint: 'engine_unavailable' | 'architecture_unsupported'; because: string } | undefined {
  if (!reads[engine].includes(model.format)) {
    return {
      constraint: 'engine_unavailable',
      because: `${engine} does not read ${formatWords[model.format]}`,
    };
  }
  if (model.spec.weights === 'streamed' && engine !== 'native') {
    return {
      constraint: 'engine_unavailable',
      because: `${engine} does not stream weights: the native engine does`,
    };
  }
  if (model.spec.weights === 'reuse' && engine !== 'native') {
    return {
      constraint: 'engine_unavailable',
      because: `${engine} does not give its weights up for other models: the native engine does`,
    };
  }
  if (engine === 'native' && !model.native.supported) {
    return { constraint: 'architecture_unsupported', because: model.native.because };
  }
  const offered = offer.engines[engine];
  if (!offered) {
    return {
      constraint: 'engine_unavailable',
      because: `the site config does not offer ${engine} on node kind ${offer.node_kind}`,
    };
  }
  return offered.available ? undefined : { constraint: 'engine_unavailable', because: offered.because };
}

/** A GPU or MIG slice that is one, not a CPU standing in for it. */
export function onRealGpu(offer: NodeKindOffer): boolean {
  return offer.devices.kind !== 'cpu' && offer.devices.emulated === undefined;
}
