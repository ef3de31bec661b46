import { dirname } from 'node:path';
import { chunkOf_tokens, concurrencyOf } from '../../spec/launch.ts';
import type { NativeModel } from '../device-worker/messages.ts';
import type { GroupUnit } from './assign-devices.ts';
import type { ProcessContext } from './serving-process.ts';
import { stagePlace } from './stage-place.ts';

/**
 * A model as its worker is told of it.
 * @param device of the worker, for people
 */
export function nativeModel(
  unit: GroupUnit,
  { runtime_folder, session_id }: Pick<ProcessContext, 'runtime_folder' | 'session_id'>,
  device: string,
): NativeModel {
  const { model } = unit;
  const native: NativeModel = {
    name: model.name,
    aliases: model.aliases,
    model_path: unit.model_path,
    context_tokens: unit.context_tokens,
    max_sequences: concurrencyOf(unit),
    prefill_chunk_tokens: chunkOf_tokens(unit),
    kv_tokens: unit.kv_tokens,
    kv_type: model.kv_type,
    batch_invariant: model.batch_invariant,
    kernels: model.kernels,
    latency_sensitivity: model.latency_sensitivity,
  };
  if (model.chat_template !== undefined) native.chat_template_file = model.chat_template;
  if (Object.keys(model.slo).length > 0) native.slo = model.slo;
  if (unit.pool) native.pool = unit.pool;
  if (model.weights === 'streamed') {
    native.weights = 'streamed';
    native.resident_bytes = unit.memory?.resident_bytes;
    native.link_share = unit.memory?.link_share;
    native.link_bytes_per_s = unit.memory?.link_bytes_per_s;
    native.locked_bytes = unit.memory?.locked_bytes;
  }
  const pipeline = stagePlace(unit, device, dirname(runtime_folder));
  if (pipeline) native.pipeline = { ...pipeline, session: session_id };
  return native;
}
