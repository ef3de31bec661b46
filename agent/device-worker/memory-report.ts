/** Where the worker's memory is: what the kernel counts, mapping by mapping, and what each mapping is for. */
import { type Mapping, memory_page_bytes, OwnMemory, readOwnMappings } from '../../host/process-memory.ts';
import type { MemoryReport } from '../../spec/device-report.ts';

/** V8 takes memory in pages that begin at multiples of this. */
const script_page_bytes = 0x4_0000;
/** glibc's arenas, one for a few threads each, begin at multiples of this. */
const arena_bytes = 0x400_0000;
/** Below a thread's stack lies a guard that nobody may touch, of at most so many bytes. */
const guard_bytes_max = 0x1_0000;
/**
 * Abseil, which V8's mutexes are of from Node 24 on, has memory of its own: piece after piece, each with its size and
 * with this or its complement, exclusive or with its address (`LowLevelAlloc`).
 */
const abseil_magic = 0x4c83_3e95;
/** Head of what malloc gives: bytes of what lies before it, and its own, a multiple of 16, with bits of its kind. */
const head_bytes = 16;
/** A block that malloc mapped for itself. */
const mapped_block = 2;
/** The pieces of the first arena that follow one on another, in use or free: 1 says that the one before is in use. */
const arena_piece_bits = 1;
/** As much of an arena is read at once. */
const window_bytes = 0x4000;
/** Share of the whole that is looked at again where it has no name, and how often. */
const unexplained_share = 0.002;
const looks_max = 4;

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

/**
 * In about a millisecond. Other threads take and give memory meanwhile, and what is listed first and looked at later
 * may be something else by then: where much is left unexplained, the report with the least of it of a few.
 */
export function reportMemory(): MemoryReport {
  let best = lookOnce();
  for (
    let look = 1;
    look < looks_max && best.unexplained_bytes > best.pss_bytes * unexplained_share;
    look++
  ) {
    const next = lookOnce();
    if (next.unexplained_bytes < best.unexplained_bytes) best = next;
  }
  return best;
}

function lookOnce(): MemoryReport {
  const mappings = readOwnMappings();
  const sums = new Map<Part, number>();
  const add = (part: Part, bytes: number): void => void sums.set(part, (sums.get(part) ?? 0) + bytes);
  let unexplained_bytes = 0;
  let pss_bytes = 0;
  const own = new MallocMemory();
  try {
    for (const [index, mapping] of mappings.entries()) {
      if (mapping.pss_bytes === 0) continue;
      pss_bytes += mapping.pss_bytes;
      const part = partOf(mapping, mappings, index);
      // malloc's memory may begin at any page, also where V8's would.
      if (part !== undefined && !(part === 'scripts' && own.beginsAsMallocs(mapping)))
        add(part, mapping.pss_bytes);
      else {
        const { arena_bytes, other_bytes } = own.outsideBlocks(mapping);
        add('heap', arena_bytes);
        add('blocks', mapping.pss_bytes - arena_bytes - other_bytes);
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

/** What a mapping is for, as far as its name, its place and its neighbours tell. */
function partOf(mapping: Mapping, all: readonly Mapping[], index: number): Part | undefined {
  const { name, begin, access } = mapping;
  if (name.startsWith('/memfd:')) return 'memory_files';
  if (name.endsWith('.gguf') || name.endsWith('.safetensors')) return 'model_files';
  // With them libuv's rings, which it shares with the kernel.
  if (name.startsWith('/') || name.startsWith('[v') || name === 'anon_inode:[io_uring]') return 'programs';
  if (name === '[heap]') return 'heap';
  if (name.startsWith('[stack')) return 'stacks';
  const before = all[index - 1];
  const adjoins = before?.end === begin;
  // Variables of a library that begin as zeros: the file before them has none of their bytes.
  if (adjoins && before.name.startsWith('/') && !before.name.startsWith('/memfd:')) return 'programs';
  // Compiled JavaScript, and the heads of its pages, lie in a range of V8's own.
  if (access.includes('x') || all[index + 2]?.access === 'rwxp') return 'scripts';
  if (adjoins && isGuard(before) && access.startsWith('rw')) return 'stacks';
  // Tables of V8 begin with entries that nobody may change.
  if (adjoins && before.name === '' && isTableHead(before)) return 'scripts';
  if (begin % arena_bytes === 0 && all[index + 1]?.begin === mapping.end)
    return isTableHead(mapping) ? 'scripts' : 'heap';
  if (begin % script_page_bytes === 0) return 'scripts';
  return undefined;
}

function isGuard({ access, begin, end }: Mapping): boolean {
  return access.startsWith('---') && end - begin <= guard_bytes_max;
}

function isTableHead({ access, begin }: Mapping): boolean {
  return access === 'r--p' && begin % arena_bytes === 0;
}

/** What malloc and abseil have written into this process's memory about their blocks and pieces. */
class MallocMemory {
  readonly #memory = new OwnMemory();
  readonly #head = Buffer.alloc(head_bytes);
  readonly #window = Buffer.alloc(window_bytes);

  close(): void {
    this.#memory.close();
  }

  beginsAsMallocs({ begin, end }: Mapping): boolean {
    return (
      this.#memory.isPresent(begin) && (this.#block_bytes(begin, end) || this.#pieces_bytes(begin, end)) > 0
    );
  }

  /**
   * Of a mapping's memory, what lies in no block that malloc mapped: each of those says at its head how long it is.
   * Where something else lies behind the heap, malloc's first arena goes on in mappings of 1 MiB and more: piece after
   * piece.
   */
  outsideBlocks({ begin, end, pss_bytes }: Mapping): { arena_bytes: number; other_bytes: number } {
    let arena_bytes = 0;
    let other_bytes = 0;
    for (let at = begin; at < end && arena_bytes + other_bytes < pss_bytes; ) {
      // Heads are written, and a look at what nobody wrote to would put pages of zeros there.
      const there = this.#memory.isPresent(at);
      const block_bytes = there ? this.#block_bytes(at, end) : 0;
      const pieces_bytes =
        there && block_bytes === 0 ? this.#pieces_bytes(at, end) || this.#abseil_bytes(at, end) : 0;
      const next = at + (block_bytes || pieces_bytes || memory_page_bytes);
      if (pieces_bytes > 0) arena_bytes += this.#present_bytes(at, next);
      else if (there && block_bytes === 0) other_bytes += memory_page_bytes;
      at = next;
    }
    arena_bytes = Math.min(arena_bytes, pss_bytes);
    return { arena_bytes, other_bytes: Math.min(other_bytes, pss_bytes - arena_bytes) };
  }

  #block_bytes(at: number, end: number): number {
    const head = this.#memory.read(this.#head, at);
    const size = head && sizeOf(head, 0);
    if (size === undefined || size % 16 !== mapped_block) return 0;
    const bytes = size - mapped_block;
    return bytes % memory_page_bytes === 0 && at + bytes <= end ? bytes : 0;
  }

  /** From here to the last end of a page at which pieces of the arena end too; 0 where there are none. */
  #pieces_bytes(begin: number, end: number): number {
    let window: Buffer = Buffer.alloc(0);
    let window_at = begin;
    let pages_end = begin;
    for (let at = begin; at < end; ) {
      if (at + head_bytes > window_at + window.length) {
        // A page tells whether it is an arena at all.
        const pages_max = at === begin ? 1 : this.#window.length / memory_page_bytes;
        const bytes = this.#presentFrom_bytes(at, pages_max);
        const more = bytes === 0 ? undefined : this.#memory.read(this.#window.subarray(0, bytes), at);
        if (!more) break;
        window = more;
        window_at = at;
      }
      const size = sizeOf(window, at - window_at);
      if (size === undefined || ((size % 16) & ~arena_piece_bits) !== 0) break;
      const bytes = size - (size % 16);
      if (bytes === 0 || at + bytes > end) break;
      at += bytes;
      if (at % memory_page_bytes === 0) pages_end = at;
    }
    return pages_end - begin;
  }

  /** From here to the end of the last piece of abseil's; 0 where there are none. */
  #abseil_bytes(begin: number, end: number): number {
    let at = begin;
    while (at < end && this.#memory.isPresent(at)) {
      const head = this.#memory.read(this.#head, at);
      if (!head) break;
      const magic = (head.readUInt32LE(8) ^ at) >>> 0;
      const bytes = head.readUInt32LE(0);
      const isHead = magic === abseil_magic || magic === ~abseil_magic >>> 0;
      if (!isHead || bytes === 0 || at + bytes > end) break;
      at += bytes;
    }
    return Math.ceil((at - begin) / memory_page_bytes) * memory_page_bytes;
  }

  #present_bytes(begin: number, end: number): number {
    let bytes = 0;
    for (let at = begin; at < end; at += memory_page_bytes)
      if (this.#memory.isPresent(at)) bytes += memory_page_bytes;
    return bytes;
  }

  /** From here to the end of the last of so many pages that follow one on another and are in memory. */
  #presentFrom_bytes(at: number, pages_max: number): number {
    const first = at - (at % memory_page_bytes);
    let page = first;
    while (page < first + pages_max * memory_page_bytes && this.#memory.isPresent(page))
      page += memory_page_bytes;
    return Math.max(0, page - at);
  }
}

/** The second word of a head; undefined where it is not there or no size of anything here. */
function sizeOf(window: Buffer, at: number): number | undefined {
  if (at + head_bytes > window.length) return undefined;
  const high = window.readUInt32LE(at + 12);
  return high < 2 ** 16 ? high * 2 ** 32 + window.readUInt32LE(at + 8) : undefined;
}
