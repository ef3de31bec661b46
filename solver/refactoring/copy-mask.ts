/** Rows of one block of KV: a row is what one token has in the layers that move. */
export interface BlockRows {
  block: number;
  begin: number;
  end: number;
  /** Which contents of the block this is of: it changes when a row is written again. */
  content: number;
}

interface Entry {
  content: number;
  /** Rows that are written at the source. */
  filled: number;
  /** Rows that the target has. */
  valid: number;
}

/**
 * Which rows of a pipeline's KV a target has by now: M_valid of FlexPipe's Eq. 10, block by block, for one transfer.
 * While rows are copied, others are written and blocks go from one sequence to another; a row counts as valid only if
 * its block still has the contents that it had when the copy was asked for.
 */
export class CopyMask {
  readonly #blocks = new Map<number, Entry>();
  #contents = 0;

  /** @param filled rows of each block that holds something, when the copying begins */
  constructor(filled: Iterable<readonly [block: number, rows: number]> = []) {
    for (const [block, rows] of filled) this.wrote(block, 0, rows);
  }

  /** Rows [begin, end) of a block are written at the source by what was submitted so far. */
  wrote(block: number, begin: number, end: number): void {
    const entry = this.#blocks.get(block);
    if (!entry || begin === 0) {
      this.#blocks.set(block, { content: ++this.#contents, filled: end, valid: 0 });
      return;
    }
    if (begin < entry.filled) {
      // The same place holds something else now, and a copy under way may have either.
      entry.content = ++this.#contents;
      entry.valid = Math.min(entry.valid, begin);
    }
    entry.filled = Math.max(entry.filled, end);
  }

  /** Nothing needs the block any more. */
  freed(block: number): void {
    this.#blocks.delete(block);
  }

  /** What the target lacks. */
  missing(): BlockRows[] {
    const rows: BlockRows[] = [];
    for (const [block, { content, filled, valid }] of this.#blocks)
      if (valid < filled) rows.push({ block, begin: valid, end: filled, content });
    return rows;
  }

  /** The target has these rows, in the contents that the blocks had when they were asked for. */
  copied(rows: readonly BlockRows[]): void {
    for (const { block, begin, end, content } of rows) {
      const entry = this.#blocks.get(block);
      if (entry?.content === content && entry.valid >= begin) entry.valid = Math.max(entry.valid, end);
    }
  }

  /** Rows of the block, from its first, that the target has. */
  validRows(block: number): number {
    return this.#blocks.get(block)?.valid ?? 0;
  }
}
