/** Index of the largest logit, the lowest of equal ones; −1 where no logit is finite. @param logits shape [n_vocab] */
export function argmax(logits: Float32Array): number {
  let best = -1;
  let largest = Number.NEGATIVE_INFINITY;
  for (let token = 0; token < logits.length; token++) {
    const logit = logits[token]!;
    if (logit > largest) {
      largest = logit;
      best = token;
    }
  }
  return best;
}
