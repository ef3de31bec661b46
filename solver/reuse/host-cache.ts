/**
 * The page cache of a node is the host-memory cache of its models: what it keeps comes back at the rate of memory. What
 * it cannot keep is better read past it, since each page would only push out another that somebody may want.
 */

/**
 * Share of the memory that the page cache could have which model files take. Lower: others keep theirs; higher: more
 * models come back from memory.
 */
export const host_cache_share = 0.5;

/** @param room_bytes of memory that the page cache could have, what it has now included */
export function fitsHostCache(load_bytes: number, room_bytes: number): boolean {
  return load_bytes <= host_cache_share * room_bytes;
}
