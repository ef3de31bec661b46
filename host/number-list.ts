/** `0-3,8,10-11` as the kernel and Slurm write sets of numbers. Throws on anything else. */
export function parseNumberList(text: string): number[] {
  const numbers = new Set<number>();
  for (const part of text.trim().split(',')) {
    if (part === '') continue;
    const match = /^(\d+)(?:-(\d+))?$/.exec(part.trim());
    const first = Number(match?.[1]);
    const last = Number(match?.[2] ?? match?.[1]);
    if (!match || last < first || last - first > 65_536) {
      throw new RangeError(`not a list of numbers: ${JSON.stringify(text.slice(0, 80))}`);
    }
    for (let number = first; number <= last; number++) numbers.add(number);
  }
  return [...numbers].sort((a, b) => a - b);
}
