/** Where the worker's memory is: what the kernel counts, mapping by mapping, and what each mapping is for. */
import { closeSync, openSync, readFileSync, readSync } from 'node:fs';
import type { MemoryReport } from '../../spec/device-report.ts';

/** V8 takes memory in pages that begin at multiples of this. */
const script_page_bytes = 0x4_0000;
/** glibc's arenas, one for a few threads each, begin at multiples of this. */
const arena_bytes = 0x400_0000;
/** Below a thread's stack lies a guard that nobody may touch, of at most so many bytes. */
const guard_bytes_max = 0x1_0000;
const memory_page_bytes = 4096;
/** Head of a block that malloc mapped for itself: no block before it, and its size with this bit. */
const head_bytes = 16;
const mapped_block = 2n;
/** Of a page's entry in /proc/PID/pagemap: it is in memory. */
const present = 1n << 63n;

const parts = {
  memory_files: 'pool',
  model_files: 'model files',
  programs: 'programs and libraries',
  scripts: 'JavaScript',
  heap: 'native heap',
  blocks: 'large blocks of it',
  stacks: 'stacks',
} as const;
type Part = keyof typeof parts;

/** One mapping of /proc/PID/smaps. */
interface Mapping {
  begin: number;
  end: number;
  /** `rw-p` */
  access: string;
  name: string;
  pss_bytes: number;
}

/**
 * All at once, in about a millisecond: other threads take and give memory meanwhile, and what is listed first and looked
 * at later may be something else by then.
 */
export function reportMemory(): MemoryReport {
  const mappings = parseMappings(readFileSync('/proc/self/smaps', 'utf8'));
  const sums = new Map<Part, number>();
  const add = (part: Part, bytes: number): void => void sums.set(part, (sums.get(part) ?? 0) + bytes);
  let unexplained_bytes = 0;
  let pss_bytes = 0;
  const own = new OwnMemory();
  try {
    for (const [index, mapping] of mappings.entries()) {
      if (mapping.pss_bytes === 0) continue;
      pss_bytes += mapping.pss_bytes;
      const part = partOf(mapping, mappings, index);
      if (part !== undefined) add(part, mapping.pss_bytes);
      else {
        const other_bytes = Math.min(mapping.pss_bytes, own.outsideBlocks_bytes(mapping));
        add('blocks', mapping.pss_bytes - other_bytes);
        unexplained_bytes += other_bytes;
      }
    }
  } finally {
    own.close();
  }
  return {
    pss_bytes,
    parts: (Object.keys(parts) as Part[]).map((part) => ({ name: parts[part], bytes: sums.get(part) ?? 0 })),
    unexplained_bytes,
  };
}

function parseMappings(smaps: string): Mapping[] {
  const mappings: Mapping[] = [];
  for (const line of smaps.split('\n')) {
    const head = /^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s*(.*)$/.exec(line);
    if (head)
      mappings.push({
        begin: Number.parseInt(head[1]!, 16),
        end: Number.parseInt(head[2]!, 16),
        access: head[3]!,
        name: head[4]!,
        pss_bytes: 0,
      });
    else if (line.startsWith('Pss:')) mappings.at(-1)!.pss_bytes = 1024 * Number(/\d+/.exec(line)![0]);
  }
  return mappings;
}

/** What a mapping is for, as far as its name, its place and its neighbours tell. */
function partOf(mapping: Mapping, all: readonly Mapping[], index: number): Part | undefined {
  const { name, begin, access } = mapping;
  if (name.startsWith('/memfd:')) return 'memory_files';
  if (name.endsWith('.gguf') || name.endsWith('.safetensors')) return 'model_files';
  if (name.startsWith('/') || name.startsWith('[v')) return 'programs';
  if (name === '[heap]') return 'heap';
  if (name.startsWith('[stack')) return 'stacks';
  const before = all[index - 1];
  const adjoins = before?.end === begin;
  // Variables of a library that begin as zeros: the file before them has none of their bytes.
  if (adjoins && before.name.startsWith('/') && !before.name.startsWith('/memfd:')) return 'programs';
  // Compiled JavaScript, and the heads of its pages, lie in a range of V8's own.
  if (access.includes('x') || all[index + 2]?.access === 'rwxp') return 'scripts';
  if (adjoins && isGuard(before) && access.startsWith('rw')) return 'stacks';
  if (begin % arena_bytes === 0 && all[index + 1]?.begin === mapping.end) return 'heap';
  if (begin % script_page_bytes === 0) return 'scripts';
  return undefined;
}

function isGuard({ access, begin, end }: Mapping): boolean {
  return access.startsWith('---') && end - begin <= guard_bytes_max;
}

/** This process's memory as the kernel shows it: what is written there, and which pages are there at all. */
class OwnMemory {
  readonly #contents = openSync('/proc/self/mem', 'r');
  readonly #pages: number;

  constructor() {
    try {
      this.#pages = openSync('/proc/self/pagemap', 'r');
    } catch (error) {
      closeSync(this.#contents);
      throw error;
    }
  }

  close(): void {
    closeSync(this.#contents);
    closeSync(this.#pages);
  }

  /** Of a mapping's memory, what lies in no block that malloc mapped: each of those says at its head how long it is. */
  outsideBlocks_bytes({ begin, end, pss_bytes }: Mapping): number {
    let outside_bytes = 0;
    for (let at = begin; at < end; ) {
      const block_bytes = this.#block_bytes(at, end);
      if (block_bytes === 0 && this.#isPresent(at)) outside_bytes += memory_page_bytes;
      if (outside_bytes >= pss_bytes) return pss_bytes;
      at += block_bytes || memory_page_bytes;
    }
    return outside_bytes;
  }

  #block_bytes(at: number, end: number): number {
    const head = Buffer.alloc(head_bytes);
    let bytesRead: number;
    try {
      bytesRead = readSync(this.#contents, head, 0, head_bytes, at);
    } catch (error) {
      // Another thread has given the mapping back since it was listed.
      if ((error as NodeJS.ErrnoException).code === 'EIO') return 0;
      throw error;
    }
    const size = head.readBigUInt64LE(8);
    if (bytesRead < head_bytes || (size & 15n) !== mapped_block) return 0;
    const bytes = Number(size - mapped_block);
    return bytes % memory_page_bytes === 0 && at + bytes <= end ? bytes : 0;
  }

  #isPresent(at: number): boolean {
    const entry = Buffer.alloc(8);
    readSync(this.#pages, entry, 0, 8, (at / memory_page_bytes) * 8);
    return (entry.readBigUInt64LE(0) & present) !== 0n;
  }
}
