/**
 * The tokenizer of a synthetic GGUF model as Hugging Face's library reads it. Programs that measure servers count and
 * write tokens themselves, so they have to know the ones that the engine knows.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SynthShape } from '../../../native/synth/shape.ts';
import { qwenFamily } from '../../../native/synth/tokenizer/families.ts';
import { buildVocabulary } from '../../../native/synth/tokenizer/vocabulary.ts';

/**
 * Writes `tokenizer.json` and its configuration.
 * @param shape of Qwen's family, whose tokenizer puts nothing before a text
 * @param seed that the model was made with
 */
export function writeQwenTokenizer(folder: string, { n_vocab, n_ctx_train }: SynthShape, seed: number): void {
  const { tokens, merges, first_special, special_tokens } = buildVocabulary(qwenFamily, n_vocab, seed);
  const ordinary = tokens.slice(0, first_special);
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };
  const tokenizer = {
    version: '1.0',
    added_tokens: special_tokens.map(({ text, type }, index) => ({
      id: first_special + index,
      content: text,
      special: type === 'control',
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
    })),
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        {
          type: 'Split',
          pattern: { Regex: qwenFamily.pieces.source },
          behavior: 'Isolated',
          invert: false,
        },
        byteLevel,
      ],
    },
    decoder: byteLevel,
    model: {
      type: 'BPE',
      vocab: Object.fromEntries(ordinary.map((token, id) => [token, id])),
      merges: merges.map(({ left, right }) => [left, right]),
    },
  };
  const config = {
    tokenizer_class: 'PreTrainedTokenizerFast',
    eos_token: qwenFamily.eos,
    pad_token: qwenFamily.padding,
    chat_template: qwenFamily.chat_template,
    model_max_length: n_ctx_train,
    clean_up_tokenization_spaces: false,
  };
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'tokenizer.json'), JSON.stringify(tokenizer));
  writeFileSync(join(folder, 'tokenizer_config.json'), JSON.stringify(config));
}
