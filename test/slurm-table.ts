/**
 * The table in docs/slurm.md of which suites ran on which Slurm, written by `npm test -- --slurm`: a row for each
 * suite, a column for each release, and in a cell what came of the last run of that suite on that release.
 */

/** What came of one suite. */
export interface SuiteResult {
  passed: number;
  failed: number;
  skipped: number;
}

/** What came of one run on one Slurm. */
export interface SlurmRun {
  /** As its controller says: `24.11.5`. */
  version: string;
  /** The Debian it is of. */
  debian: string;
  /** By path of the suite that ran. */
  suites: ReadonlyMap<string, SuiteResult>;
  /** Day of it, `2026-11-22`. */
  date: string;
}

const begin = '<!-- written by npm test -- --slurm: begin -->';
const end = '<!-- written by npm test -- --slurm: end -->';
const no_run = '–';

/** Cells by suite and column, both as the page names them. */
interface Table {
  columns: string[];
  rows: Map<string, Map<string, string>>;
}

/**
 * The page with a run in its table, in the place of earlier ones of the same suites on the same release.
 * @param isThere whether there still is a suite of this path; rows of others go
 * @throws Error where the page has no place for the table
 */
export function withSlurmRun(page: string, run: SlurmRun, isThere: (suite: string) => boolean): string {
  const from = page.indexOf(begin);
  const to = page.indexOf(end);
  if (from < 0 || to < from) throw new Error(`the page has no lines ${begin} and ${end}`);
  const table = readTable(page.slice(from + begin.length, to));
  const column = `${run.version} (${run.debian})`;
  renameColumn(table, column);
  for (const [suite, result] of run.suites) {
    const row = table.rows.get(nameOf(suite)) ?? new Map<string, string>();
    table.rows.set(nameOf(suite), row.set(column, cellOf(result, run.date)));
  }
  for (const name of [...table.rows.keys()]) if (!isThere(pathOf(name))) table.rows.delete(name);
  const lines = [begin, ...linesOf(table), end];
  return page.slice(0, from) + lines.join('\n') + page.slice(to + end.length);
}

function readTable(text: string): Table {
  const [head = [], , ...body] = text
    .split('\n')
    .filter((line) => line.startsWith('|'))
    .map(cellsOf);
  const columns = head.slice(1);
  const rows = body.map(([name = '', ...cells]): [string, Map<string, string>] => [
    name,
    new Map(columns.map((column, at): [string, string] => [column, cells[at] ?? no_run])),
  ]);
  return { columns, rows: new Map(rows) };
}

function cellsOf(line: string): string[] {
  return line
    .split('|')
    .slice(1, -1)
    .map((cell) => cell.trim());
}

/** The column of that release, which may have been of an earlier patch of it. */
function renameColumn(table: Table, column: string): void {
  const before = table.columns.find((each) => releaseOf(each) === releaseOf(column));
  table.columns = [...table.columns.filter((each) => each !== before), column].sort();
  if (before === undefined || before === column) return;
  for (const row of table.rows.values()) {
    row.set(column, row.get(before) ?? no_run);
    row.delete(before);
  }
}

function linesOf({ columns, rows }: Table): string[] {
  const names = [...rows.keys()].sort();
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
  return [
    line(['end-to-end suite', ...columns]),
    `|${'---|'.repeat(columns.length + 1)}`,
    ...names.map((name) => line([name, ...columns.map((column) => rows.get(name)!.get(column) ?? no_run)])),
  ];
}

/** `12 passed, **1 failed**, 2 could not run; 2026-11-22`. */
function cellOf({ passed, failed, skipped }: SuiteResult, date: string): string {
  const parts = [`${passed} passed`];
  if (failed > 0) parts.push(`**${failed} failed**`);
  if (skipped > 0) parts.push(`${skipped} could not run`);
  return `${parts.join(', ')}; ${date}`;
}

/** `24.11` of `24.11.5 (trixie)`. */
function releaseOf(column: string): string {
  return column.split('.').slice(0, 2).join('.');
}

/** `slurm/client`, as code, of `test/slurm/client.e2e.test.ts`; of what is no such path, the text. */
function nameOf(path: string): string {
  return `\`${path.replace(/^test\//, '').replace(/\.e2e\.test\.ts$/, '')}\``;
}

function pathOf(name: string): string {
  return `test/${name.replaceAll('`', '')}.e2e.test.ts`;
}
