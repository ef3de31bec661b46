/**
 * The cost of a choice, from the rules alone: shares no code with the solver.
 * @throws Error naming the rule that is broken
 */
interface Rules {
  counts: readonly number[];
  shares: number | readonly number[];
  options: readonly (readonly { type: number; devices: number; share: number; cost: number }[])[];
}

export function recomputeCost(
  { counts, shares, options }: Rules,
  chosen: readonly (readonly number[])[],
): number {
  const picked = options.map((row, model) => chosen[model]!.map((index) => row[index]!));
  for (const [model, row] of picked.entries()) {
    if (
      row.reduce((sum, { share }) => sum + share, 0) !== (typeof shares === 'number' ? shares : shares[model])
    )
      throw new Error(`model ${model}: shares do not make the whole`);
    if (new Set(row.map(({ type }) => type)).size < row.length)
      throw new Error(`model ${model}: two options of one type`);
  }
  const flat = picked.flat();
  for (const [type, count] of counts.entries()) {
    const taken = flat
      .filter((option) => option.type === type)
      .reduce((sum, { devices }) => sum + devices, 0);
    if (taken > count) throw new Error(`type ${type}: ${taken} devices of ${count}`);
  }
  return flat.reduce((sum, { cost }) => sum + cost, 0);
}
