/** Seeded random numbers and the distributions of workloads. */

/** Uniform numbers in [0, 1) from a 32-bit seed: mulberry32, a public-domain generator by T. Ettinger. */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function exponential(random: () => number): number {
  return -Math.log(1 - random());
}

/** Standard normal by Box and Muller. */
export function normal(random: () => number): number {
  return Math.sqrt(2 * exponential(random)) * Math.cos(2 * Math.PI * random());
}

/** Gamma with the given shape and scale 1 (Marsaglia and Tsang, ACM TOMS 2000). */
export function gamma(shape: number, random: () => number): number {
  if (shape < 1) return gamma(shape + 1, random) * (1 - random()) ** (1 / shape);
  const d = shape - 1 / 3;
  const c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = normal(random);
    const v = (1 + c * x) ** 3;
    if (v <= 0) continue;
    if (Math.log(1 - random()) < 0.5 * x * x + d - d * v + d * Math.log(v)) return d * v;
  }
}
