/** Where the worker's memory is: what the kernel counts, mapping by mapping, and what each mapping is for. */
import { readFile } from 'node:fs/promises';
import { getHeapStatistics } from 'node:v8';
import type { MemoryReport } from '../../spec/device-report.ts';

/** V8 takes memory in pages that begin at multiples of this. */
const script_page_bytes = 0x4_0000;
/** glibc's arenas, one for a few threads each, begin at multiples of this. */
const arena_bytes = 0x400_0000;
/** Below a thread's stack lies a guard that nobody may touch, of at most so many bytes. */
const guard_bytes_max = 0x1_0000;

/** Mappings of /proc/self/smaps of one kind, together. */
interface MappedBytes {
  /** Memory files of this process. */
  memory_files: number;
  programs: number;
  model_files: number;
  /** malloc's arenas. */
  heap: number;
  scripts: number;
  stacks: number;
  /** Everything else that no file backs: large blocks of malloc. */
  anonymous: number;
}

/** Buffers that this thread's JavaScript holds outside its heap: graphs of engines, bodies of requests. */
export function scriptBufferBytes(): number {
  return getHeapStatistics().external_memory;
}

/**
 * @param script_bytes buffers of every thread's JavaScript; those never written to have no memory
 */
export async function reportMemory(script_bytes: number): Promise<MemoryReport> {
  const mapped = addUp(await readFile('/proc/self/smaps', 'utf8'));
  const buffers = Math.min(script_bytes, mapped.anonymous);
  return {
    pss_bytes: Object.values(mapped).reduce((sum: number, bytes: number) => sum + bytes, 0),
    parts: [
      { name: 'pool', bytes: mapped.memory_files },
      { name: 'model files', bytes: mapped.model_files },
      { name: 'programs and libraries', bytes: mapped.programs },
      { name: 'JavaScript', bytes: mapped.scripts },
      { name: 'its buffers', bytes: buffers },
      { name: 'native heap', bytes: mapped.heap },
      { name: 'stacks', bytes: mapped.stacks },
    ],
    unexplained_bytes: mapped.anonymous - buffers,
  };
}

function addUp(smaps: string): MappedBytes {
  const sums: MappedBytes = {
    memory_files: 0,
    programs: 0,
    model_files: 0,
    heap: 0,
    scripts: 0,
    stacks: 0,
    anonymous: 0,
  };
  let kind: keyof MappedBytes = 'anonymous';
  /** Where a guard ended, if the mapping before was one. */
  let guard_end: number | undefined;
  for (const line of smaps.split('\n')) {
    const mapping = /^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s*(.*)$/.exec(line);
    if (mapping) {
      const [begin, end] = [Number.parseInt(mapping[1]!, 16), Number.parseInt(mapping[2]!, 16)];
      kind = kindOf(mapping[4]!, begin, begin === guard_end);
      guard_end = mapping[3]!.startsWith('---') && end - begin <= guard_bytes_max ? end : undefined;
    } else if (line.startsWith('Pss:')) sums[kind] += 1024 * Number(/\d+/.exec(line)![0]);
  }
  return sums;
}

function kindOf(name: string, begin: number, guarded: boolean): keyof MappedBytes {
  if (name.startsWith('/memfd:')) return 'memory_files';
  if (name.endsWith('.gguf') || name.endsWith('.safetensors')) return 'model_files';
  if (name.startsWith('/') || name === '[vdso]' || name === '[vvar]') return 'programs';
  if (name === '[heap]') return 'heap';
  if (name.startsWith('[stack') || guarded) return 'stacks';
  if (begin % arena_bytes === 0) return 'heap';
  if (begin % script_page_bytes === 0) return 'scripts';
  return 'anonymous';
}
