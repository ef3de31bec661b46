/** Where the worker's memory is: what the kernel counts, mapping by mapping, laid against what the worker knows it holds. */
import { readFile } from 'node:fs/promises';
import { getHeapStatistics } from 'node:v8';
import type { MemoryReport } from '../../spec/device-report.ts';

/** Mappings of /proc/self/smaps of one kind, together. */
interface MappedBytes {
  /** Memory files of this process. */
  memory_files: number;
  programs: number;
  model_files: number;
  /** malloc's first arena. */
  heap: number;
  stacks: number;
  /** Everything else that no file backs: buffers of engines, heaps of JavaScript, further arenas of malloc. */
  anonymous: number;
}

/** What one thread's JavaScript holds: its heap, and the buffers behind it. */
export interface ScriptBytes {
  heap_bytes: number;
  external_bytes: number;
}

export function scriptBytes(): ScriptBytes {
  const { total_physical_size, external_memory, malloced_memory } = getHeapStatistics();
  return { heap_bytes: total_physical_size + malloced_memory, external_bytes: external_memory };
}

/**
 * @param scripts of every thread
 * @param engine_bytes buffers that engines hold outside memory files, as far as they are touched
 */
export async function reportMemory(
  scripts: readonly ScriptBytes[],
  engine_bytes: number,
): Promise<MemoryReport> {
  return explainMemory(await readFile('/proc/self/smaps', 'utf8'), scripts, engine_bytes);
}

/** From the text of a smaps file. */
function explainMemory(smaps: string, scripts: readonly ScriptBytes[], engine_bytes: number): MemoryReport {
  const mapped = addUp(smaps);
  const pss_bytes = Object.values(mapped).reduce((sum: number, bytes: number) => sum + bytes, 0);
  const script_bytes = scripts.reduce(
    (sum, { heap_bytes, external_bytes }) => sum + heap_bytes + external_bytes,
    0,
  );
  // Buffers are counted whole by those who allocate them, and by the kernel once they are written.
  const explained_engines = Math.max(0, Math.min(engine_bytes, mapped.anonymous - script_bytes));
  return {
    pss_bytes,
    parts: [
      { name: 'pool', bytes: mapped.memory_files },
      { name: 'engine buffers', bytes: explained_engines },
      { name: 'model files', bytes: mapped.model_files },
      { name: 'programs and libraries', bytes: mapped.programs },
      { name: 'JavaScript', bytes: script_bytes },
      { name: 'native heap', bytes: mapped.heap },
      { name: 'stacks', bytes: mapped.stacks },
    ],
    unexplained_bytes: mapped.anonymous - script_bytes - explained_engines,
  };
}

function addUp(smaps: string): MappedBytes {
  const sums: MappedBytes = {
    memory_files: 0,
    programs: 0,
    model_files: 0,
    heap: 0,
    stacks: 0,
    anonymous: 0,
  };
  let kind: keyof MappedBytes = 'anonymous';
  for (const line of smaps.split('\n')) {
    const mapping = /^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)$/.exec(line);
    if (mapping) kind = kindOf(mapping[1]!);
    else if (line.startsWith('Pss:')) sums[kind] += 1024 * Number(/\d+/.exec(line)![0]);
  }
  return sums;
}

function kindOf(name: string): keyof MappedBytes {
  if (name.startsWith('/memfd:')) return 'memory_files';
  if (name.endsWith('.gguf') || name.endsWith('.safetensors')) return 'model_files';
  if (name.startsWith('/') || name === '[vdso]' || name === '[vvar]') return 'programs';
  if (name === '[heap]') return 'heap';
  if (name.startsWith('[stack')) return 'stacks';
  return 'anonymous';
}
