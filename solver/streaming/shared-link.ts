/**
 * A link between host and device that several slices read over at once. Each gets what it asks for where all of it
 * fits; else the link is divided max-min fairly: nobody gets more than an equal part while another has less than it
 * asks for (Bertsekas and Gallager, Data Networks, §6.5.2).
 */

export interface SharedLink {
  /** What one reader alone reaches. */
  bytes_per_s: number;
  /**
   * Share of it that is lost with each further reader (requests of several interleave, rows of memory are opened
   * anew). 0: none. Higher: co-runners lose more than each other's part.
   */
  loss_per_reader: number;
}

/** Of the link's rate this much stays, however many read. */
const kept_share_min = 0.5;

/** What a link gives to so many readers together. */
export function linkCapacity_bytes_per_s(
  { bytes_per_s, loss_per_reader }: SharedLink,
  readers: number,
): number {
  const lost = loss_per_reader * Math.max(0, readers - 1);
  return bytes_per_s * Math.max(kept_share_min, 1 - lost);
}

/** @param demands_bytes_per_s what each could take, 0 of who does not read @returns what each gets */
export function divideLink(link: SharedLink, demands_bytes_per_s: readonly number[]): number[] {
  const readers = demands_bytes_per_s.filter((demand) => demand > 0).length;
  const given = demands_bytes_per_s.map(() => 0);
  let left = linkCapacity_bytes_per_s(link, readers);
  const order = [...demands_bytes_per_s.keys()]
    .filter((index) => demands_bytes_per_s[index]! > 0)
    .sort((a, b) => demands_bytes_per_s[a]! - demands_bytes_per_s[b]!);
  for (const [place, index] of order.entries()) {
    const part = Math.min(demands_bytes_per_s[index]!, left / (order.length - place));
    given[index] = part;
    left -= part;
  }
  return given;
}
