/** Names that are longer are near nothing: nobody mistypes them, and comparing takes time with the square of it. */
const compared_chars_max = 64;

/**
 * The candidate closest to what was typed, for "did you mean": smallest Damerau–Levenshtein distance
 * (adjacent transpositions count one), at most a third of the longer word; undefined where nothing is close.
 */
export function nearest(typed: string, candidates: Iterable<string>): string | undefined {
  if (typed.length > compared_chars_max) return undefined;
  let best: string | undefined;
  let bestDistance = Number.POSITIVE_INFINITY;
  for (const candidate of candidates) {
    if (candidate.length > compared_chars_max) continue;
    const limit = Math.max(1, Math.floor(Math.max(typed.length, candidate.length) / 3));
    // Each character more is an insertion at least.
    if (Math.abs(typed.length - candidate.length) > limit) continue;
    const distance = editDistance(typed.toLowerCase(), candidate.toLowerCase());
    if (distance <= limit && distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

/** By rows of the matrix: a row needs the two before it, the second for transpositions. */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const substitution = last[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      let cost = Math.min(last[j]! + 1, row[j - 1]! + 1, substitution);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        cost = Math.min(cost, before[j - 2]! + 1);
      row.push(cost);
    }
    before = last;
    last = row;
  }
  return last[b.length]!;
}
