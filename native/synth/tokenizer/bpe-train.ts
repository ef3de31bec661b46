/**
 * Trains byte-pair merges (Sennrich et al., 2016, arXiv:1508.07909) over byte characters: the most frequent
 * pair becomes a token, again and again. Ties fall to the pair that sorts first, so the result is determined.
 */
import { toByteCharacters } from './byte-alphabet.ts';

export interface Merge {
  left: string;
  right: string;
}

/**
 * @param text training text
 * @param pieces pre-tokenizer: a global regular expression whose matches merges never cross
 * @param limit merges wanted; fewer come back where every piece has become one token
 */
export function trainMerges(text: string, pieces: RegExp, limit: number): Merge[] {
  const words = countWords(text, pieces);
  const merges: Merge[] = [];
  while (merges.length < limit) {
    const best = mostFrequentPair(words);
    if (best === undefined) break;
    merges.push(best);
    for (const word of words) applyMerge(word.symbols, best);
  }
  return merges;
}

interface Word {
  symbols: string[];
  count: number;
}

function countWords(text: string, pieces: RegExp): Word[] {
  const counts = new Map<string, number>();
  for (const [piece] of text.matchAll(pieces)) counts.set(piece, (counts.get(piece) ?? 0) + 1);
  return [...counts].map(([piece, count]) => ({ symbols: [...toByteCharacters(piece)], count }));
}

function mostFrequentPair(words: readonly Word[]): Merge | undefined {
  const counts = new Map<string, number>();
  for (const { symbols, count } of words) {
    for (let index = 0; index + 1 < symbols.length; index++) {
      // A space never occurs among byte characters, so it separates.
      const pair = `${symbols[index]} ${symbols[index + 1]}`;
      counts.set(pair, (counts.get(pair) ?? 0) + count);
    }
  }
  let best: string | undefined;
  let bestCount = 0;
  for (const [pair, count] of counts) {
    if (count > bestCount || (count === bestCount && best !== undefined && pair < best)) {
      best = pair;
      bestCount = count;
    }
  }
  if (best === undefined) return undefined;
  const [left, right] = best.split(' ') as [string, string];
  return { left, right };
}

function applyMerge(symbols: string[], { left, right }: Merge): void {
  for (let index = 0; index + 1 < symbols.length; index++) {
    if (symbols[index] === left && symbols[index + 1] === right) symbols.splice(index, 2, left + right);
  }
}
