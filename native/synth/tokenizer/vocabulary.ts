/**
 * A usable byte-level BPE vocabulary of a given size: 256 bytes, merges trained from the corpus, merges of
 * made-up words up to the size wanted, and the special tokens of the family. Any UTF-8 text round-trips.
 */
import { HpcserveError } from '../../../spec/errors/error.ts';
import {
  bool,
  type GgufMetadata,
  type GgufValue,
  i32s,
  text,
  texts,
  u32,
} from '../../formats/gguf-values.ts';
import { fnv1a32, RandomStream } from '../random.ts';
import { type Merge, trainMerges } from './bpe-train.ts';
import { byteCharacters } from './byte-alphabet.ts';
import { corpus } from './corpus.ts';
import { type SpecialToken, type TokenizerFamily, tokenTypes } from './families.ts';

export interface SynthVocabulary {
  family: TokenizerFamily;
  /** Byte characters, merges, then special tokens, by token id. */
  tokens: string[];
  merges: Merge[];
  /** Special tokens have the ids from here on. */
  first_special: number;
  special_tokens: readonly SpecialToken[];
}

/** Throws E_MODEL_SYNTH where the size has no room for the bytes and the special tokens. */
export function buildVocabulary(family: TokenizerFamily, n_vocab: number, seed: number): SynthVocabulary {
  const special = specialTokens(family, n_vocab);
  const ordinary = n_vocab - special.length;
  const wanted = ordinary - byteCharacters.length;
  if (wanted < 0) {
    throw new HpcserveError('E_MODEL_SYNTH', {
      what: `a vocabulary of ${n_vocab} tokens is too small`,
      because: `256 bytes and ${special.length} special tokens need ${256 + special.length}`,
    });
  }
  const trained = trainMerges(corpus, family.pieces, wanted);
  const merges = [...trained, ...inventMerges(trained, wanted - trained.length, seed)];
  const tokens = [
    ...byteCharacters,
    ...merges.map(({ left, right }) => left + right),
    ...special.map((token) => token.text),
  ];
  return { family, tokens, merges, first_special: ordinary, special_tokens: special };
}

/** The `tokenizer.*` keys of a GGUF file. */
export function vocabularyMetadata(vocabulary: SynthVocabulary): GgufMetadata {
  const { family, tokens, merges, first_special, special_tokens } = vocabulary;
  const types = new Array<number>(tokens.length).fill(tokenTypes.normal);
  special_tokens.forEach((token, index) => {
    types[first_special + index] = tokenTypes[token.type];
  });
  const id = (name: string): GgufValue => u32(tokens.indexOf(name, first_special));
  return new Map<string, GgufValue>([
    ['tokenizer.ggml.model', text('gpt2')],
    ['tokenizer.ggml.pre', text(family.pre)],
    ['tokenizer.ggml.tokens', texts(tokens)],
    ['tokenizer.ggml.token_type', i32s(types)],
    ['tokenizer.ggml.merges', texts(merges.map(({ left, right }) => `${left} ${right}`))],
    ...(family.bos ? [['tokenizer.ggml.bos_token_id', id(family.bos)] as const] : []),
    ['tokenizer.ggml.eos_token_id', id(family.eos)],
    ['tokenizer.ggml.padding_token_id', id(family.padding)],
    ['tokenizer.ggml.add_bos_token', bool(family.add_bos)],
    ['tokenizer.chat_template', text(family.chat_template)],
  ]);
}

function specialTokens(family: TokenizerFamily, n_vocab: number): readonly SpecialToken[] {
  if (n_vocab < family.full_vocabulary) return family.special_tokens;
  const first = n_vocab - family.full_special_tokens;
  const missing = family.full_special_tokens - family.special_tokens.length;
  return [
    ...family.special_tokens,
    ...Array.from({ length: missing }, (_, index) =>
      family.filler(index, first + family.special_tokens.length + index),
    ),
  ];
}

/** Words made of two trained tokens each, in seeded order; each merge is the only way to its token. */
function inventMerges(trained: readonly Merge[], count: number, seed: number): Merge[] {
  if (count <= 0) return [];
  const known = new Set(trained.map(({ left, right }) => left + right));
  const letters = [...known].filter((token) => /^[a-z]{2,8}$/.test(token));
  const beginnings = [...known].filter((token) => /^Ġ?[A-Za-z]{2,8}$/.test(token));
  const random = new RandomStream(seed, fnv1a32('tokenizer.ggml.merges'), 0);
  const merges: Merge[] = [];
  while (merges.length < count) {
    const left = beginnings[random.below(beginnings.length)]!;
    const right = letters[random.below(letters.length)]!;
    if (known.has(left + right)) continue;
    known.add(left + right);
    merges.push({ left, right });
  }
  return merges;
}
