/**
 * Where parts of a model lie in an arena that is smaller than all of them. They are computed one behind the other,
 * again and again, and each is brought while those before it compute; so the arena is a ring, and a part may be brought
 * as soon as what lay in its place was computed.
 *
 *   ring   [ part 3 | part 4 | part 5 ]      part 6 goes where part 3 lies, once part 3 was computed:
 *                                            parts 4 and 5 are between, and it comes meanwhile
 */

export interface RingPart {
  offset: number;
  /**
   * It lies over a part so many before it, the nearest one, counted in the order of computation and around its end. 1:
   * it cannot come before the part in front of it was computed, so that nothing overlaps.
   */
  distance: number;
}

/**
 * Each part behind the one before it, from the beginning again where the end is too near.
 * @returns undefined where a part is larger than the ring
 */
export function planRing(
  sizes_bytes: readonly number[],
  ring_bytes: number,
  alignment_bytes: number,
): RingPart[] | undefined {
  let cursor = 0;
  const ranges: { begin: number; end: number }[] = [];
  for (const bytes of sizes_bytes) {
    const taken = Math.ceil(bytes / alignment_bytes) * alignment_bytes;
    if (taken > ring_bytes) return undefined;
    if (cursor + taken > ring_bytes) cursor = 0;
    ranges.push({ begin: cursor, end: cursor + taken });
    cursor += taken;
  }
  const count = ranges.length;
  return ranges.map((own, index) => {
    const at = (back: number): { begin: number; end: number } => ranges[(index - back + count) % count]!;
    let distance = 1;
    while (distance < count && !(at(distance).begin < own.end && own.begin < at(distance).end)) distance++;
    return { offset: own.begin, distance };
  });
}

/** Whether the part of that number, counted over all rounds, may be brought when so many were computed. */
export function mayBring(parts: readonly RingPart[], number: number, computed: number): boolean {
  return computed > number - parts[number % parts.length]!.distance;
}
