import { version } from '../../host/version.ts';
import { loadLlama } from '../../native/llama.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { ModelFile } from '../engine/model-file.ts';
import { modelIdentity } from './model-identity.ts';
import type { PipelinePlace } from './pipeline-place.ts';
import type { ToldFacts } from './pipeline-stage.ts';

export function toldFacts(
  { gguf }: ModelFile,
  { kv_type, batch_invariant = false }: EngineOptions,
  { device, device_identity, session }: PipelinePlace,
): ToldFacts {
  const build = `${version} ${loadLlama().version}`;
  return { model: modelIdentity(gguf), build, kv_type, batch_invariant, device, device_identity, session };
}
