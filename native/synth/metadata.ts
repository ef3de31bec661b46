/** The metadata of a synthetic GGUF file, with the keys that converted files of the architecture have. */
import { f32, type GgufMetadata, type GgufValue, text, u32 } from '../formats/gguf-values.ts';
import { fileTypes, type SynthQuantization } from './quantization.ts';
import { countParameters, planTensors, type SynthShape } from './shape.ts';

/** Keys before those of the tokenizer. */
export function modelMetadata(
  shape: SynthShape,
  quantization: SynthQuantization,
  seed: number,
): GgufMetadata {
  const { architecture: arch, experts } = shape;
  const key = (name: string, value: GgufValue): [string, GgufValue] => [`${arch}.${name}`, value];
  const entries: [string, GgufValue][] = [
    ['general.architecture', text(arch)],
    ['general.type', text('model')],
    ['general.name', text(shape.name)],
    ['general.description', text(`Random weights by hpcserve model synth, seed ${seed}`)],
    ['general.size_label', text(sizeLabel(countParameters(planTensors(shape))))],
    ['general.file_type', u32(fileTypes[quantization])],
    ['general.quantization_version', u32(2)],
    key('block_count', u32(shape.n_layer)),
    key('context_length', u32(shape.n_ctx_train)),
    key('embedding_length', u32(shape.n_embd)),
    key('feed_forward_length', u32(experts?.n_ff ?? shape.n_ff)),
    key('attention.head_count', u32(shape.n_head)),
    key('attention.head_count_kv', u32(shape.n_head_kv)),
    key('attention.key_length', u32(shape.head_dim)),
    key('attention.value_length', u32(shape.head_dim)),
    key('attention.layer_norm_rms_epsilon', f32(shape.rms_epsilon)),
    key('rope.freq_base', f32(shape.rope_freq_base)),
    key('rope.dimension_count', u32(shape.head_dim)),
    key('vocab_size', u32(shape.n_vocab)),
  ];
  if (experts !== undefined) {
    entries.push(
      key('expert_count', u32(experts.count)),
      key('expert_used_count', u32(experts.used_per_token)),
    );
    if (arch === 'qwen3moe') entries.push(key('expert_feed_forward_length', u32(experts.n_ff)));
  }
  return new Map(entries);
}

function sizeLabel(parameters: number): string {
  for (const [unit, size] of [
    ['B', 1e9],
    ['M', 1e6],
  ] as const) {
    if (parameters >= size) return `${(parameters / size).toFixed(1).replace(/\.0$/, '')}${unit}`;
  }
  return `${Math.ceil(parameters / 1e3)}K`;
}
