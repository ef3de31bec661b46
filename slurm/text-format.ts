/**
 * Slurm's stable text outputs. Columns are separated by the ASCII unit separator and rows end with the
 * record separator, so that no name, comment or reason can break a row apart. Commands run with TZ=UTC,
 * because Slurm prints local times without an offset.
 */
import { HpcserveError } from '../spec/errors/error.ts';

const unit_separator = '\u001f';
const record_separator = '\u001e';

/** In front of every command that tells times or jobs: times in UTC, ranges of array tasks at their full length. */
export const utcPrefix: readonly string[] = [
  'env',
  'TZ=UTC',
  'SLURM_TIME_FORMAT=standard',
  'SLURM_BITSTR_LEN=0',
];

/** The `--Format` argument of squeue and sinfo for these fields: full width, separators as above. */
export function longFormat(fields: readonly string[]): string {
  return fields
    .map((field, index) => `${field}:${index === fields.length - 1 ? record_separator : unit_separator}`)
    .join(',');
}

/**
 * Rows printed with `longFormat(fields)`, each as a record by field name.
 * @throws E_SLURM_ANSWER when a row has another number of columns.
 */
export function parseLongFormat<F extends string>(
  command: string,
  fields: readonly F[],
  output: string,
): Record<F, string>[] {
  return output
    .split(record_separator)
    .map((row) => row.replace(/^\n/, ''))
    .filter((row) => row.trim() !== '')
    .map((row) => toRecord(command, fields, row.split(unit_separator)));
}

/** The `--delimiter` of sacct's parsable output. */
export const sacctDelimiter = unit_separator;

/** Rows of `sacct --parsable2 --delimiter`: one line each, no record separator. */
export function parseDelimited<F extends string>(
  command: string,
  fields: readonly F[],
  output: string,
): Record<F, string>[] {
  return output
    .split('\n')
    .filter((row) => row.includes(unit_separator))
    .map((row) => toRecord(command, fields, row.split(unit_separator)));
}

function toRecord<F extends string>(
  command: string,
  fields: readonly F[],
  columns: readonly string[],
): Record<F, string> {
  if (columns.length !== fields.length)
    throw new HpcserveError('E_SLURM_ANSWER', {
      what: `${command} printed ${columns.length} columns instead of ${fields.length}`,
      because: JSON.stringify(columns.join('|').slice(0, 300)),
    });
  return Object.fromEntries(fields.map((field, index) => [field, columns[index]!.trim()])) as Record<
    F,
    string
  >;
}

/** `name=value` pairs of `scontrol --oneliner`; values may hold spaces, and the first of a name counts. */
export function parseScontrolLine(line: string): Map<string, string> {
  const pairs = new Map<string, string>();
  const keys = [...line.matchAll(/(?:^|\s)([A-Za-z][\w/:.]*(?:\[\d+\])?)=/g)];
  for (const [index, key] of keys.entries()) {
    const start = key.index + key[0].length;
    const end = keys[index + 1]?.index ?? line.length;
    if (!pairs.has(key[1]!)) pairs.set(key[1]!, line.slice(start, end).trim());
  }
  return pairs;
}

/** A value, or undefined where Slurm prints one of its words for "nothing". */
export function present(value: string | undefined): string | undefined {
  if (value === undefined) return undefined;
  return ['', '(null)', 'N/A', 'n/a', 'None', 'NONE', 'Unknown', 'none', 'NOT_SET'].includes(value)
    ? undefined
    : value;
}

/** Milliseconds since 1970 of `2026-11-21T01:59:10` (UTC), or undefined for `N/A` and `Unknown`. */
export function parseUtcTime_ms(text: string | undefined): number | undefined {
  if (text === undefined || !/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$/.test(text)) return undefined;
  return Date.parse(`${text}Z`);
}
