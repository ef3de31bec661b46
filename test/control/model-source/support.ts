/** Small model files for tests, made by our own writers. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type GgufMetadata, type GgufValue, text, texts, u32 } from '../../../native/formats/gguf-values.ts';
import { layoutGguf } from '../../../native/formats/gguf-writer.ts';
import { writeGguf } from '../../native/formats/support.ts';

export function tinyMetadata(architecture = 'llama'): GgufMetadata {
  return new Map<string, GgufValue>([
    ['general.architecture', text(architecture)],
    ['general.name', text('Tiny')],
    [`${architecture}.block_count`, u32(2)],
    [`${architecture}.embedding_length`, u32(64)],
    [`${architecture}.attention.head_count`, u32(4)],
    [`${architecture}.attention.head_count_kv`, u32(2)],
    [`${architecture}.feed_forward_length`, u32(128)],
    [`${architecture}.context_length`, u32(512)],
    ['tokenizer.ggml.model', text('gpt2')],
    ['tokenizer.ggml.tokens', texts(['a', 'b', 'c', 'd'])],
  ]);
}

export const tinyTensors = [
  { name: 'token_embd.weight', type: 'F32', shape: [64, 4] },
  { name: 'blk.0.ffn_up.weight', type: 'Q4_0', shape: [64, 128] },
  { name: 'blk.1.ffn_up.weight', type: 'Q8_0', shape: [64, 128] },
  { name: 'output_norm.weight', type: 'F32', shape: [64] },
];

/** A GGUF file whose tensor bytes count up; not a model that computes. */
export async function writeTinyGguf(
  path: string,
  metadata: GgufMetadata = tinyMetadata(),
  tensors = tinyTensors,
): Promise<void> {
  await writeGguf(path, layoutGguf(metadata, tensors), (tensor) =>
    Uint8Array.from({ length: tensor.size_bytes }, (_, index) => index),
  );
}

/** Bytes of a safetensors file with BF16 tensors of zeros. */
export function safetensorsBytes(tensors: Record<string, number[]>, dtype = 'BF16', width = 2): Buffer {
  let offset = 0;
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  for (const [name, shape] of Object.entries(tensors)) {
    const bytes = shape.reduce((product, extent) => product * extent, width);
    header[name] = { dtype, shape, data_offsets: [offset, offset + bytes] };
    offset += bytes;
  }
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json, Buffer.alloc(offset)]);
}

export const tinyConfig = {
  model_type: 'qwen2',
  num_hidden_layers: 2,
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  intermediate_size: 128,
  vocab_size: 10,
  max_position_embeddings: 1024,
  tie_word_embeddings: true,
};

/** A complete Hugging Face folder; with several shards it has an index. */
export function writeTinyHfFolder(path: string, { shards = 1 }: { shards?: number } = {}): void {
  mkdirSync(path, { recursive: true });
  writeFileSync(join(path, 'config.json'), JSON.stringify(tinyConfig));
  writeFileSync(join(path, 'tokenizer.json'), '{}');
  writeFileSync(join(path, 'tokenizer_config.json'), JSON.stringify({ chat_template: '{{ messages }}' }));
  const tensors: [string, number[]][] = [
    ['model.embed_tokens.weight', [10, 64]],
    ['model.layers.0.mlp.up_proj.weight', [128, 64]],
    ['model.layers.1.mlp.up_proj.weight', [128, 64]],
    ['model.norm.weight', [64]],
  ];
  const name = (shard: number): string =>
    shards === 1 ? 'model.safetensors' : `model-0000${shard + 1}-of-0000${shards}.safetensors`;
  const weight_map: Record<string, string> = {};
  for (let shard = 0; shard < shards; shard++) {
    const own = tensors.filter((_, index) => index % shards === shard);
    writeFileSync(join(path, name(shard)), safetensorsBytes(Object.fromEntries(own)));
    for (const [tensor] of own) weight_map[tensor] = name(shard);
  }
  if (shards > 1) {
    writeFileSync(join(path, 'model.safetensors.index.json'), JSON.stringify({ weight_map }));
  }
}
