/** Plain tables: columns as wide as their widest cell, two spaces between, no lines. */
import { printable } from './style.ts';
import { wrap } from './wrap.ts';

export interface Column {
  title: string;
  align?: 'left' | 'right';
  /** Its cells are our own words with our own colours; those of other columns are shown whatever they hold. */
  styled?: true;
}

/**
 * Rows as aligned lines under a line of titles. Widths count code points, which is right for the names,
 * numbers and Latin text that stand in our tables.
 */
export function formatTable(columns: readonly Column[], given: readonly (readonly string[])[]): string[] {
  const rows = given.map((row) => row.map((text, index) => (columns[index]?.styled ? text : cell(text))));
  const width = columns.map((column, index) =>
    Math.max(plainLength(column.title), ...rows.map((row) => plainLength(row[index] ?? ''))),
  );
  const line = (cells: readonly string[]): string =>
    cells
      .map((text, index) => {
        const space = ' '.repeat(Math.max(0, width[index]! - plainLength(text)));
        return columns[index]!.align === 'right' ? space + text : text + space;
      })
      .join('  ')
      .trimEnd();
  return [line(columns.map((column) => column.title)), ...rows.map(line)];
}

/**
 * The same where there is room for it; else each row as lines of `TITLE value`, folded, with an empty line after it.
 * @param width columns of the terminal; Infinity: there is room
 */
export function fittedTable(
  columns: readonly Column[],
  rows: readonly (readonly string[])[],
  width: number,
): string[] {
  const table = formatTable(columns, rows);
  if (table.every((line) => plainLength(line) <= width)) return table;
  const title_columns = Math.max(...columns.map(({ title }) => plainLength(title)));
  return rows.flatMap((row, at) => [
    ...(at > 0 ? [''] : []),
    ...row.flatMap((text, index) => {
      const { title, styled } = columns[index]!;
      const shown = styled ? text : cell(text);
      if (shown === '') return [];
      const label = title === '' ? '' : `${title.padEnd(title_columns)}  `;
      return styled ? [`${label}${shown}`] : wrap(`${label}${shown}`, width, 0, label.length);
    }),
  ]);
}

/** Made safe for a terminal, and for a line: names of others may hold line breaks, and marks that turn text around. */
function cell(text: string): string {
  return printable(text).replaceAll(
    /[\t\n\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Code points without escape sequences for colour. */
export function plainLength(text: string): number {
  return [...text.replaceAll(/\u001b\[[0-9;]*m/g, '')].length;
}
