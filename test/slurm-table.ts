/** The table in docs/slurm.md of which suites ran on which Slurm, written by `npm test -- --slurm`. */

/** What came of one run on one Slurm. */
export interface SlurmRun {
  /** As its controller says: `24.11.5`. */
  version: string;
  /** The Debian it is of. */
  suite: string;
  /** The end-to-end suites that ran, as paths; absent: all of them. */
  files?: readonly string[] | undefined;
  passed: number;
  failed: number;
  skipped: number;
  /** Day of it, `2026-11-22`. */
  date: string;
}

const begin = '<!-- written by npm test -- --slurm: begin -->';
const end = '<!-- written by npm test -- --slurm: end -->';
const head = [
  '| Slurm | of Debian | end-to-end suites | passed | failed | could not run | on |',
  '|---|---|---|---|---|---|---|',
];

/**
 * The page with a run in its table, in the place of an earlier one of the same suites on the same release.
 * @throws Error where the page has no place for the table
 */
export function withSlurmRun(page: string, run: SlurmRun): string {
  const from = page.indexOf(begin);
  const to = page.indexOf(end);
  if (from < 0 || to < from) throw new Error(`the page has no lines ${begin} and ${end}`);
  const rows = page
    .slice(from + begin.length, to)
    .split('\n')
    .filter((line) => /^\| \d/.test(line));
  const row = `| ${cells(run).join(' | ')} |`;
  const kept = rows.filter((other) => key(other) !== key(row));
  const table = [begin, ...head, ...[...kept, row].sort(), end].join('\n');
  return page.slice(0, from) + table + page.slice(to + end.length);
}

function cells({ version, suite, files, passed, failed, skipped, date }: SlurmRun): string[] {
  const names = files?.map((file) => `\`${file.replace(/^test\//, '').replace(/\.e2e\.test\.ts$/, '')}\``);
  const suites = names === undefined ? 'all' : names.sort().join(', ');
  return [version, suite, suites, String(passed), String(failed), String(skipped), date];
}

/** Release and suites; `22.05` of `22.05.8`. */
function key(row: string): string {
  const [, version = '', , suites = ''] = row.split('|').map((cell) => cell.trim());
  return `${version.split('.').slice(0, 2).join('.')} ${suites}`;
}
