import type { LoadMessage } from './compute/messages.ts';
import type { NativeModel } from './messages.ts';
import type { ModelsOptions } from './models-options.ts';
import type { ModelText } from './served-model.ts';

/** What is known of models from earlier, and what they are computed by. */
export type LearnedBefore = Pick<ModelsOptions, 'profiles' | 'lengths' | 'threads' | 'profile_ms'>;

/** What the compute thread is told of a model, or of a stage of it, that is to come. */
export function loadMessage(
  config: NativeModel,
  { vocabulary, utf8 }: ModelText,
  { profiles, lengths: lengthStore, threads, profile_ms }: LearnedBefore,
): LoadMessage {
  const { name, slo, latency_sensitivity } = config;
  const { context_tokens, max_sequences, prefill_chunk_tokens, kv_tokens, kv_type, batch_invariant } = config;
  const invariant = batch_invariant ? ', batch invariant' : '';
  const kernels = config.kernels ?? 'auto';
  const { pipeline } = config;
  const part = pipeline ? `, ${pipeline.stages} stages from ${pipeline.begin} to ${pipeline.end}` : '';
  const { resident_bytes = 0 } = config;
  const but = resident_bytes > 0 ? ` but for ${resident_bytes} bytes` : '';
  const streamed = config.weights === 'streamed' ? `, weights streamed${but}` : '';
  const how = `${kv_type}${invariant}${part}${streamed}, kernels ${kernels}, chunks of ${prefill_chunk_tokens}`;
  const file = { name, path: config.model_path };
  const profile = profiles?.read(file, how);
  const lengths = lengthStore?.read(file);
  const message: LoadMessage = {
    type: 'load',
    name,
    vocabulary: vocabulary.address,
    utf8,
    profile_ms,
    options: {
      model_path: config.model_path,
      threads,
      context_tokens,
      max_sequences,
      prefill_chunk_tokens,
      kv_tokens,
      kv_type,
      batch_invariant,
      kernels,
    },
  };
  if (slo) message.slo = slo;
  if (config.weights === 'streamed') {
    const { link_share, link_bytes_per_s, locked_bytes } = config;
    message.streamed = { resident_bytes, link_share, link_bytes_per_s, locked_bytes };
  }
  if (config.pipeline) {
    const { begin, end } = config.pipeline;
    message.pipeline = config.pipeline;
    message.options.stage = { begin, end };
  }
  if (profile) message.profile = profile;
  if (lengths) message.lengths = lengths;
  if (latency_sensitivity !== undefined) message.latency_sensitivity = latency_sensitivity;
  return message;
}
