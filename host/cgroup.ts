import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseMountInfo } from './mounts.ts';

/** A cgroup this process is in: version 2 (one hierarchy) or the memory controller of version 1. */
export interface MemoryCgroup {
  version: 1 | 2;
  path: string;
}

/** From /proc/self/cgroup; a version 1 memory controller wins, for then version 2 does not limit memory. */
export function parseMemoryCgroup(text: string): MemoryCgroup | undefined {
  let unified: MemoryCgroup | undefined;
  for (const line of text.split('\n')) {
    const match = /^\d+:([^:]*):(.*)$/.exec(line);
    if (!match) continue;
    if (match[1]!.split(',').includes('memory')) return { version: 1, path: match[2]! };
    if (match[1] === '') unified = { version: 2, path: match[2]! };
  }
  return unified;
}

/** Where the memory hierarchy of that version is mounted, from /proc/self/mountinfo. */
export function parseCgroupMount(
  mountinfo: string,
  version: 1 | 2,
): { mount: string; root: string } | undefined {
  const found = parseMountInfo(mountinfo).find(({ type, options }) =>
    version === 2 ? type === 'cgroup2' : type === 'cgroup' && options.includes('memory'),
  );
  return found && { mount: found.mount_point, root: found.root };
}

/** `max` (version 2) and values near 2^63 (version 1) mean no limit. */
export function parseMemoryLimit(text: string): number | undefined {
  const bytes = Number(text.trim());
  return Number.isFinite(bytes) && bytes > 0 && bytes < 2 ** 60 ? bytes : undefined;
}

/** `oom_kill N` of memory.events (version 2) or memory.oom_control (version 1, Linux 4.13 and later). */
function parseOomKills(text: string): number | undefined {
  const count = /^oom_kill (\d+)$/m.exec(text)?.[1];
  return count === undefined ? undefined : Number(count);
}

/** How often the kernel has ended a process of this cgroup for want of memory; undefined where it does not say. */
export function cgroupOomKills(fsRoot = '/'): number | undefined {
  const own = ownCgroup(fsRoot);
  if (!own) return undefined;
  const file = own.version === 2 ? 'memory.events' : 'memory.oom_control';
  const text = readIn(fsRoot, join(own.mount, own.inside, file));
  return text === undefined ? undefined : parseOomKills(text);
}

/** The tightest memory limit of this process's cgroup and those above it, bytes. */
export function cgroupMemoryLimit(fsRoot = '/'): number | undefined {
  return limits(fsRoot).reduce<number | undefined>(
    (tightest, { bytes }) => Math.min(tightest ?? bytes, bytes),
    undefined,
  );
}

/**
 * What the limits of this process's cgroup and those above it leave for the page cache: all but what programs have, and
 * memory files; bytes. Undefined where nothing is limited.
 */
export function cgroupCacheRoom(fsRoot = '/'): number | undefined {
  return limits(fsRoot).reduce<number | undefined>((least, { bytes, held_bytes }) => {
    const room = Math.max(0, bytes - held_bytes);
    return Math.min(least ?? room, room);
  }, undefined);
}

/** Each limit with what counts against it and cannot be taken back. */
function limits(fsRoot: string): { bytes: number; held_bytes: number }[] {
  const own = ownCgroup(fsRoot);
  if (!own) return [];
  const file = own.version === 2 ? 'memory.max' : 'memory.limit_in_bytes';
  const found: { bytes: number; held_bytes: number }[] = [];
  for (let folder = own.inside; ; folder = dirname(folder)) {
    const here = join(own.mount, folder);
    const text = readIn(fsRoot, join(here, file));
    const bytes = text === undefined ? undefined : parseMemoryLimit(text);
    if (bytes !== undefined)
      found.push({ bytes, held_bytes: parseHeldMemory(readIn(fsRoot, join(here, 'memory.stat')) ?? '') });
    if (folder === '/') return found;
  }
}

/** `anon` and `shmem` of memory.stat (version 2), `total_rss` and `total_shmem` (version 1), where it says them. */
function parseHeldMemory(text: string): number {
  let bytes = 0;
  for (const [, , count] of text.matchAll(/^(anon|shmem|total_rss|total_shmem) (\d+)$/gm))
    bytes += Number(count);
  return bytes;
}

/** Where this process's memory cgroup is: the mount, and the path below it. */
function ownCgroup(fsRoot: string): { version: 1 | 2; mount: string; inside: string } | undefined {
  const own = parseMemoryCgroup(readIn(fsRoot, 'proc/self/cgroup') ?? '');
  const mounted = own && parseCgroupMount(readIn(fsRoot, 'proc/self/mountinfo') ?? '', own.version);
  if (!own || !mounted) return undefined;
  // Inside a container the mount shows a subtree: paths are counted from its root.
  const inside = own.path.startsWith(mounted.root) ? own.path.slice(mounted.root.length) : own.path;
  return { version: own.version, mount: mounted.mount, inside: join('/', inside) };
}

function readIn(fsRoot: string, path: string): string | undefined {
  const full = join(fsRoot, path);
  return existsSync(full) ? readFileSync(full, 'utf8') : undefined;
}
