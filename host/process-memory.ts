/** The memory of this process, as the kernel counts it and shows it. */
import { closeSync, openSync, readFileSync, readSync, statSync } from 'node:fs';

export const memory_page_bytes = 4096;
/** Pages that are asked about at once. */
const entries_pages = 512;
/** Of the last byte of a page's entry in /proc/PID/pagemap: it is in memory. */
const present = 1 << 7;

/** One mapping of /proc/PID/smaps. */
export interface Mapping {
  begin: number;
  end: number;
  /** `rw-p` */
  access: string;
  name: string;
  pss_bytes: number;
}

export function readOwnMappings(): Mapping[] {
  return parseMappings(readFileSync('/proc/self/smaps', 'utf8'));
}

/** Shared libraries that this process has loaded, each with its size and when it was changed: another driver shows. */
export function loadedLibraries(): string[] {
  const names = readFileSync('/proc/self/maps', 'utf8').match(/\/\S+\.so(\.\S+)?$/gm) ?? [];
  return [...new Set(names)].sort().map((name) => {
    const { size, mtimeMs } = statSync(name, { throwIfNoEntry: false }) ?? { size: 0, mtimeMs: 0 };
    return `${name}:${size}:${mtimeMs}`;
  });
}

/**
 * PSS, memory files included. Mapped files of the page cache are not, where the kernel tells them apart (Linux 5.3): it
 * takes them back as it needs memory.
 */
export function ownMemory_bytes(): number {
  const rollup = readFileSync('/proc/self/smaps_rollup', 'utf8');
  const kib = (of: string): number => Number(new RegExp(`^${of}:\\s+(\\d+) kB$`, 'm').exec(rollup)?.[1] ?? 0);
  return 1024 * (kib('Pss_Anon') + kib('Pss_Shmem') || kib('Pss'));
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

/** What is written in this process's memory, and which pages of it are there at all. */
export class OwnMemory {
  readonly #contents = openSync('/proc/self/mem', 'r');
  readonly #pages: number;
  /** Of pagemap, from the page of that number on. */
  readonly #entries = Buffer.alloc(8 * entries_pages);
  #entries_from = Number.NEGATIVE_INFINITY;

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

  /** @returns undefined where another thread has given the mapping back since it was listed */
  read(into: Buffer, at: number): Buffer | undefined {
    try {
      return into.subarray(0, readSync(this.#contents, into, 0, into.length, at));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EIO') return undefined;
      throw error;
    }
  }

  isPresent(at: number): boolean {
    const page = Math.floor(at / memory_page_bytes);
    const within = page - this.#entries_from;
    if (within < 0 || within >= entries_pages) {
      this.#entries_from = page;
      this.#entries.fill(0);
      readSync(this.#pages, this.#entries, 0, this.#entries.length, 8 * page);
    }
    return (this.#entries[8 * (page - this.#entries_from) + 7]! & present) !== 0;
  }
}
