/** Sentences folded to the width of the terminal, so that what belongs to a line stays indented under it. */
import type { CliContext } from '../context.ts';

/** Below this, folding makes nothing more readable. */
const narrowest = 40;

/** Columns to fold to; files and pipes get lines as long as they are, to be searched and cut by others. */
export function textWidth({ tty, columns }: Pick<CliContext, 'tty' | 'columns'>): number {
  return tty.stdout ? Math.max(narrowest, columns) : Number.POSITIVE_INFINITY;
}

/** Spaces where a line may end: not between a number and its unit. */
const breaks = / (?!(?:ms|s|min|%|W|[KMGT]?i?B)(?:[\s,;:)]|$))/;

/**
 * Lines of at most `columns` code points, broken at spaces; a longer word stands alone. Continuation lines begin
 * with `hang` spaces more than `indent`.
 */
export function wrap(text: string, columns: number, indent = 0, hang = 2): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(breaks)) {
    const margin = lines.length === 0 ? indent : indent + hang;
    const longer = line === '' ? word : `${line} ${word}`;
    if (line !== '' && margin + [...longer].length > columns) {
      lines.push(' '.repeat(margin) + line);
      line = word;
    } else line = longer;
  }
  lines.push(' '.repeat(lines.length === 0 ? indent : indent + hang) + line);
  return lines;
}
