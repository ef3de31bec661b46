import { readFileSync } from 'node:fs';
import { cgroupCacheRoom } from './cgroup.ts';

/** Memory that files could have in the page cache before programs lack it, what they have now included; bytes. */
export function pageCacheRoom_bytes(fsRoot = '/'): number {
  const line = /^MemAvailable:\s+(\d+) kB$/m.exec(readFileSync(`${fsRoot}/proc/meminfo`, 'utf8'));
  const node_bytes = line ? 1024 * Number(line[1]) : Number.POSITIVE_INFINITY;
  return Math.min(node_bytes, cgroupCacheRoom(fsRoot) ?? node_bytes);
}
