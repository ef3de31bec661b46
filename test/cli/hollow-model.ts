import { closeSync, ftruncateSync, mkdirSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';

/** A Hugging Face folder of a Llama of this size whose weights take no room: headers are true, tensors are holes. */
export function hollowLlama(
  folder: string,
  shape: { hidden: number; ff: number; layers: number; heads: number; kv: number },
): void {
  const { hidden, ff, layers, heads, kv } = shape;
  const vocabulary = 128_256;
  mkdirSync(folder);
  const config = {
    architectures: ['LlamaForCausalLM'],
    model_type: 'llama',
    hidden_size: hidden,
    intermediate_size: ff,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kv,
    vocab_size: vocabulary,
    max_position_embeddings: 131_072,
    torch_dtype: 'bfloat16',
    tie_word_embeddings: false,
  };
  const head = hidden / heads;
  const tensors: Record<string, number[]> = {
    'model.embed_tokens.weight': [vocabulary, hidden],
    'lm_head.weight': [vocabulary, hidden],
    'model.norm.weight': [hidden],
  };
  for (let layer = 0; layer < layers; layer++) {
    const shapes = {
      'self_attn.q_proj': [heads * head, hidden],
      'self_attn.k_proj': [kv * head, hidden],
      'self_attn.v_proj': [kv * head, hidden],
      'self_attn.o_proj': [hidden, heads * head],
      'mlp.gate_proj': [ff, hidden],
      'mlp.up_proj': [ff, hidden],
      'mlp.down_proj': [hidden, ff],
      input_layernorm: [hidden],
      post_attention_layernorm: [hidden],
    };
    for (const [part, dimensions] of Object.entries(shapes))
      tensors[`model.layers.${layer}.${part}.weight`] = dimensions;
  }
  let offset = 0;
  const header = Object.fromEntries(
    Object.entries(tensors).map(([tensor, dimensions]) => {
      const begin = offset;
      offset += 2 * dimensions.reduce((product, each) => product * each, 1);
      return [tensor, { dtype: 'BF16', shape: dimensions, data_offsets: [begin, offset] }];
    }),
  );
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  const file = openSync(join(folder, 'model.safetensors'), 'w');
  writeSync(file, Buffer.concat([length, json]));
  ftruncateSync(file, 8 + json.length + offset);
  closeSync(file);
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  writeFileSync(join(folder, 'tokenizer.json'), '{"model": {}}');
  writeFileSync(join(folder, 'tokenizer_config.json'), '{"chat_template": "x"}');
}
