/** Minimisation without derivatives (Nelder and Mead, The Computer Journal 1965), in the logarithms of x. */
export function minimize(
  objective: (x: readonly number[]) => number,
  start: readonly number[],
  { evaluations, spread = 0.25 }: { evaluations: number; spread?: number },
): { x: number[]; value: number } {
  const f = (logs: readonly number[]): number => objective(logs.map(Math.exp));
  const origin = start.map(Math.log);
  let used = 0;
  const point = (logs: number[]): Point => {
    used++;
    return { logs, value: f(logs) };
  };
  const simplex: Point[] = [point(origin)];
  for (const index of origin.keys())
    simplex.push(point(origin.map((log, i) => (i === index ? log + spread : log))));
  while (used < evaluations) {
    simplex.sort((a, b) => a.value - b.value);
    const best = simplex[0]!;
    const worst = simplex.at(-1)!;
    if (worst.value - best.value < 1e-7) break;
    const centre = origin.map(
      (_, i) => simplex.slice(0, -1).reduce((sum, { logs }) => sum + logs[i]!, 0) / (simplex.length - 1),
    );
    const along = (factor: number): Point => point(centre.map((c, i) => c + factor * (worst.logs[i]! - c)));
    const reflected = along(-1);
    if (reflected.value < best.value) {
      const expanded = along(-2);
      simplex[simplex.length - 1] = expanded.value < reflected.value ? expanded : reflected;
    } else if (reflected.value < simplex.at(-2)!.value) simplex[simplex.length - 1] = reflected;
    else {
      const contracted = along(reflected.value < worst.value ? -0.5 : 0.5);
      if (contracted.value < Math.min(worst.value, reflected.value)) simplex[simplex.length - 1] = contracted;
      else
        for (const [index, { logs }] of simplex.entries())
          if (index > 0)
            simplex[index] = point(logs.map((log, i) => best.logs[i]! + (log - best.logs[i]!) / 2));
    }
  }
  simplex.sort((a, b) => a.value - b.value);
  return { x: simplex[0]!.logs.map(Math.exp), value: simplex[0]!.value };
}

interface Point {
  logs: number[];
  value: number;
}

/** Mean absolute logarithm of prediction over measurement; far outliers count no more than `cap`. */
export function logError(
  pairs: readonly (readonly [predicted: number, measured: number])[],
  cap = 0.7,
): number {
  let total = 0;
  for (const [predicted, measured] of pairs) total += Math.min(cap, Math.abs(Math.log(predicted / measured)));
  return total / pairs.length;
}

export function medianError(pairs: readonly (readonly [predicted: number, measured: number])[]): number {
  const errors = pairs
    .map(([predicted, measured]) => Math.abs(predicted / measured - 1))
    .sort((a, b) => a - b);
  if (errors.length === 0) return Number.NaN;
  const middle = errors.length >> 1;
  return errors.length % 2 === 1 ? errors[middle]! : (errors[middle - 1]! + errors[middle]!) / 2;
}
