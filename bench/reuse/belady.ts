/**
 * What nobody can do better: the bytes that a pool of so many must load for a trace whose future is known. What is
 * asked for last goes first (Belady 1966), byte by byte, so that neither the size of tensors nor where they lie costs
 * anything.
 */
export function beladyLoads_bytes(
  trace: readonly number[],
  sizes: readonly number[],
  pool_bytes: number,
): number {
  const resident = sizes.map(() => 0);
  let loaded = 0;
  trace.forEach((model, index) => {
    const missing = sizes[model]! - resident[model]!;
    loaded += missing;
    let over = resident.reduce((sum, bytes) => sum + bytes, 0) + missing - pool_bytes;
    const byNextUse = sizes.map((_, other) => other).filter((other) => other !== model);
    const next = (other: number): number => {
      const at = trace.indexOf(other, index + 1);
      return at < 0 ? Number.POSITIVE_INFINITY : at;
    };
    byNextUse.sort((a, b) => next(b) - next(a));
    for (const other of byNextUse) {
      if (over <= 0) break;
      const gone = Math.min(resident[other]!, over);
      resident[other]! -= gone;
      over -= gone;
    }
    resident[model] = sizes[model]!;
  });
  return loaded;
}
