/** What the reader of a config.json takes from the spellings there are. */
import { expect, it } from 'vitest';
import { readHuggingFaceConfig } from '../../spec/hugging-face-config.ts';

const base = { num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 100 };

function contextOf(keys: Record<string, unknown>): number {
  const read = readHuggingFaceConfig({ ...base, ...keys }, 'm');
  if ('wrong' in read) throw new Error(read.wrong);
  return read.sizes.n_ctx_train;
}

it.each([
  ['max_position_embeddings', 'llama'],
  ['n_positions', 'gpt2'],
  ['max_seq_len', 'mpt, dbrx'],
  ['seq_length', 'chatglm'],
  ['model_max_length', 'baichuan'],
  ['max_sequence_length', 'others'],
  ['max_seq_length', 'others'],
  ['seq_len', 'others'],
])('the context in training is read from %s (%s)', (key) => {
  expect(contextOf({ [key]: 32_768 })).toBe(32_768);
});

it('a context that no key tells is 0', () => {
  expect(contextOf({})).toBe(0);
  expect(contextOf({ max_position_embeddings: 0 })).toBe(0);
});
