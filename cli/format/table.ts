/** Plain tables: columns as wide as their widest cell, two spaces between, no lines. */

export interface Column {
  title: string;
  align?: 'left' | 'right';
}

/**
 * Rows as aligned lines under a line of titles. Widths count code points, which is right for the names,
 * numbers and Latin text that stand in our tables.
 */
export function formatTable(columns: readonly Column[], rows: readonly (readonly string[])[]): string[] {
  const width = columns.map((column, index) =>
    Math.max(plainLength(column.title), ...rows.map((row) => plainLength(row[index] ?? ''))),
  );
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, index) => {
        const space = ' '.repeat(Math.max(0, width[index]! - plainLength(cell)));
        return columns[index]!.align === 'right' ? space + cell : cell + space;
      })
      .join('  ')
      .trimEnd();
  return [line(columns.map((column) => column.title)), ...rows.map(line)];
}

/** Code points without escape sequences for colour. */
export function plainLength(text: string): number {
  return [...text.replaceAll(/\u001b\[[0-9;]*m/g, '')].length;
}
