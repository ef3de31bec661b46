/** The native engine's front: open a model, and it computes. */
import type { Engine, EngineOptions } from '../../spec/engine-contract.ts';
import { NativeEngine } from './native-engine.ts';

/**
 * Loads a GGUF model and makes an engine of it. Blocks until the weights are in memory.
 * @throws HpcserveError E_ENGINE_OPTIONS, E_ENGINE_MODEL, E_MODEL_*, E_NATIVE_*
 */
export function openEngine(options: EngineOptions): Engine {
  return new NativeEngine(options);
}
