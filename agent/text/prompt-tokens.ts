export interface PromptTokenizer {
  tokenize(text: string, options: { add_special: boolean; parse_special: boolean }): Int32Array;
  readonly bos: number | undefined;
  readonly add_bos: boolean;
}

/** Private-use characters around the number of a masked stretch; such characters in a message are masked themselves. */
const open = '\uE0F0';
const close = '\uE0F1';

/**
 * Text to prompt tokens. The chat template's own control tokens become tokens; text of users that spells a
 * control token stays text, so that nobody can write a system message into a user message.
 */
export class ControlTextGuard {
  readonly #pattern: RegExp;

  /** @param controlTexts how the model's control tokens are spelled */
  constructor(controlTexts: Iterable<string>) {
    const texts = [...controlTexts].filter((text) => text.length > 1).sort((a, b) => b.length - a.length);
    this.#pattern = new RegExp([...texts.map(escapeRegExp), open, close].join('|'), 'gu');
  }

  /** The same value with its texts masked, keys apart, and what the masks stand for. */
  mask<T>(value: T): { value: T; masked: string[] } {
    const masked: string[] = [];
    const deep = (part: unknown): unknown => {
      if (typeof part === 'string')
        return part.replace(this.#pattern, (found) => `${open}${masked.push(found) - 1}${close}`);
      if (Array.isArray(part)) return part.map(deep);
      if (typeof part === 'object' && part !== null)
        return Object.fromEntries(Object.entries(part).map(([key, inner]) => [key, deep(inner)]));
      return part;
    };
    return { value: deep(value) as T, masked };
  }

  /**
   * Tokens of a rendered prompt, masks resolved, with exactly one beginning-of-sequence token where the model wants
   * one.
   */
  tokenize(tokenizer: PromptTokenizer, prompt: string, masked: readonly string[]): Int32Array {
    const tokens: number[] = [];
    const parts = prompt.split(new RegExp(`${open}(\\d+)${close}`, 'u'));
    for (const [index, part] of parts.entries()) {
      const isMask = index % 2 === 1;
      const text = isMask ? (masked[Number(part)] ?? '') : part;
      if (text === '') continue;
      for (const token of tokenizer.tokenize(text, { add_special: false, parse_special: !isMask }))
        tokens.push(token);
    }
    return withBos(tokenizer, Int32Array.from(tokens));
  }
}

/** Puts the beginning-of-sequence token first where the model wants one and the text did not have it. */
export function withBos(tokenizer: PromptTokenizer, tokens: Int32Array): Int32Array {
  const { bos, add_bos } = tokenizer;
  if (!add_bos || bos === undefined || tokens[0] === bos) return tokens;
  const all = new Int32Array(tokens.length + 1);
  all[0] = bos;
  all.set(tokens, 1);
  return all;
}

function escapeRegExp(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&');
}
