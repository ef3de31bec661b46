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
  const own = ownCgroup(fsRoot);
  if (!own) return undefined;
  const file = own.version === 2 ? 'memory.max' : 'memory.limit_in_bytes';
  let limit: number | undefined;
  for (let folder = own.inside; ; folder = dirname(folder)) {
    const text = readIn(fsRoot, join(own.mount, folder, file));
    const bytes = text === undefined ? undefined : parseMemoryLimit(text);
    if (bytes !== undefined) limit = Math.min(limit ?? bytes, bytes);
    if (folder === '/') return limit;
  }
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
