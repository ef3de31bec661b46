/**
 * The page cache of a node is the host-memory cache of its models: what it keeps comes back at the rate of memory, and
 * comes quicker the first time, too, since the kernel reads ahead. Of what it cannot hold, the first bytes are gone
 * before the last have come: it is read past it, and what others have there stays.
 *
 * @param room_bytes of memory that the page cache could have, what it has now included
 */
export function fitsHostCache(load_bytes: number, room_bytes: number): boolean {
  return load_bytes <= room_bytes;
}
