import { ours, oursWithAgent } from './side-by-side.ts';

interface Rounds<T> {
  contenders: readonly T[];
  /** In each of which everybody is measured once. */
  rounds: number;
  /** Turns before them that nobody counts. */
  warm_ups: number;
  log: (line: string) => void;
}

/**
 * Figures of each contender, one a round. Who is first is another in every round. A router of others that breaks is
 * measured no more and has no figures, which is said; the others go on.
 *
 * @throws what went wrong with ours
 */
export async function roundsOf<T extends { name: string }>(
  { contenders, rounds, warm_ups, log }: Rounds<T>,
  measure: (contender: T) => Promise<readonly number[]>,
): Promise<Map<string, number[]>[]> {
  const broken = new Set<string>();
  const figures: Map<string, number[]>[] = [];
  const take = async (contender: T): Promise<readonly number[]> => {
    const { name } = contender;
    if (broken.has(name)) return [];
    try {
      return await measure(contender);
    } catch (error) {
      if (name === ours || name === oursWithAgent) throw error;
      log(`${name} broke, and has no figures here: ${(error as Error).message}`);
      broken.add(name);
      for (const column of figures) column.delete(name);
      return [];
    }
  };
  for (let turn = 0; turn < warm_ups; turn++) for (const contender of contenders) await take(contender);
  for (let round = 0; round < rounds; round++) {
    const first = round % contenders.length;
    for (const contender of [...contenders.slice(first), ...contenders.slice(0, first)]) {
      const measured = await take(contender);
      for (const [at, value] of measured.entries()) {
        figures[at] ??= new Map();
        const column = figures[at];
        const seen = column.get(contender.name);
        if (seen) seen.push(value);
        else column.set(contender.name, [value]);
      }
    }
  }
  // In the order in which they were named, whoever was first.
  return figures.map(
    (column) =>
      new Map(contenders.flatMap(({ name }) => (column.has(name) ? [[name, column.get(name)!]] : []))),
  );
}
