/** What the tokenizers of the model families have of their own: pre-tokenizer, special tokens, chat template. */
import { llamaChatTemplate, qwenChatTemplate } from './chat-templates.ts';

export interface TokenizerFamily {
  /** `tokenizer.ggml.pre`, by which libllama chooses its splitting rules. */
  pre: string;
  /** The same rules, for training: merges never cross a match. */
  pieces: RegExp;
  /** In order, with their token types. */
  special_tokens: readonly SpecialToken[];
  /** Names further special tokens where the true vocabulary has more than those listed. */
  filler: (index: number, id: number) => SpecialToken;
  /** Special tokens of the true vocabulary, filled up so from `full_vocabulary` tokens on. */
  full_special_tokens: number;
  full_vocabulary: number;
  bos?: string;
  eos: string;
  padding: string;
  add_bos: boolean;
  chat_template: string;
}

export interface SpecialToken {
  text: string;
  type: TokenType;
}

/** `llama_token_type` numbers as they stand in `tokenizer.ggml.token_type`. */
export const tokenTypes = { normal: 1, control: 3, user_defined: 4, unused: 5 } as const;
type TokenType = keyof typeof tokenTypes;

const control = (text: string): SpecialToken => ({ text, type: 'control' });
const visible = (text: string): SpecialToken => ({ text, type: 'user_defined' });

const contractions = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const pieces = (digits: string): RegExp =>
  new RegExp(
    `${contractions}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${digits}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`,
    'gu',
  );

export const llamaFamily: TokenizerFamily = {
  pre: 'llama-bpe',
  pieces: pieces('\\p{N}{1,3}'),
  special_tokens: [
    control('<|begin_of_text|>'),
    control('<|end_of_text|>'),
    control('<|reserved_special_token_0|>'),
    control('<|reserved_special_token_1|>'),
    control('<|finetune_right_pad_id|>'),
    control('<|reserved_special_token_2|>'),
    control('<|start_header_id|>'),
    control('<|end_header_id|>'),
    control('<|eom_id|>'),
    control('<|eot_id|>'),
    control('<|python_tag|>'),
  ],
  filler: (index) => control(`<|reserved_special_token_${index + 3}|>`),
  full_special_tokens: 256,
  full_vocabulary: 128_256,
  bos: '<|begin_of_text|>',
  eos: '<|eot_id|>',
  padding: '<|finetune_right_pad_id|>',
  add_bos: true,
  chat_template: llamaChatTemplate,
};

export const qwenFamily: TokenizerFamily = {
  pre: 'qwen2',
  pieces: pieces('\\p{N}'),
  special_tokens: [
    control('<|endoftext|>'),
    control('<|im_start|>'),
    control('<|im_end|>'),
    visible('<tool_call>'),
    visible('</tool_call>'),
    control('<|fim_prefix|>'),
    control('<|fim_middle|>'),
    control('<|fim_suffix|>'),
    control('<|fim_pad|>'),
    control('<|repo_name|>'),
    control('<|file_sep|>'),
    visible('<tool_response>'),
    visible('</tool_response>'),
    visible('<think>'),
    visible('</think>'),
  ],
  filler: (_, id) => ({ text: `[PAD${id}]`, type: 'unused' }),
  full_special_tokens: 293,
  full_vocabulary: 151_936,
  eos: '<|im_end|>',
  padding: '<|endoftext|>',
  add_bos: false,
  chat_template: qwenChatTemplate,
};
