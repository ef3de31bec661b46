import { type Command, InvalidArgumentError, Option } from 'commander';
import { jobFoldersOf } from '../../control/job-usage.ts';
import { ledgersOf, namedUsage } from '../../control/state/ledgers.ts';
import { askSql, csvField, readJobRecords, usageText } from '../../ledger/index.ts';
import { jobDimensions } from '../../spec/job-usage.ts';
import {
  groupBySchema,
  type UsageAnswer,
  type UsageDimension,
  type UsageQuery,
  type UsageRow,
  usageDimensions,
} from '../../spec/usage.ts';
import type { CliContext } from '../context.ts';
import { formatDuration } from '../format/quantities.ts';
import { fittedTable } from '../format/table.ts';
import { textWidth, wrap } from '../format/wrap.ts';
import { checkGroupBy, parseGroupBy } from '../group-by.ts';
import { parseSeconds } from '../parse-seconds.ts';
import { parseSince } from '../parse-since.ts';
import { openSite } from '../site-session.ts';
import { registerUsageJobs } from './usage-jobs.ts';

interface UsageOptions {
  groupBy: string[];
  since?: number;
  until?: number;
  csv?: true;
  md?: true;
  ledger?: string[];
}

interface SqlCommandOptions extends Pick<UsageOptions, 'csv' | 'ledger'> {
  timeLimit: number;
  rows: number;
}

/** Of requests, and of jobs: both are asked for by the same option. */
const dimensions = [...new Set([...usageDimensions, ...jobDimensions])];

export function registerUsage(command: Command, context: CliContext): void {
  addTimes(command, context)
    .addOption(
      new Option('--by, --group-by <dimensions>', 'what to sum by, with commas between')
        .choices(dimensions)
        .argParser((text) => parseGroupBy(text, dimensions))
        .default(['model'], 'model'),
    )
    .option('--csv', 'comma-separated values on stdout')
    .option('--md', 'a Markdown table on stdout')
    .option(
      '--ledger <files...>',
      'ledgers to read, of any sites; those of all gateways of the site by default',
    )
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve usage
  $ hpcserve usage --group-by user,model --since 7d
  $ hpcserve usage --group-by day,account --since 2026-01-01 --until 2026-02-01 --csv > usage.csv
  $ hpcserve usage --group-by device,tier --md`,
    )
    .action(async (options: UsageOptions) => {
      const { layout } = openSite(context);
      const query = queryOf(options);
      const usage = await namedUsage(options.ledger ?? ledgersOf(layout), query, layout.keys_folder);
      printUsage(context, options, query, usage);
    });
  registerUsageJobs(command, context);
  registerSql(command, context);
}

function registerSql(usage: Command, context: CliContext): void {
  usage
    .command('sql <question>')
    .description('Ask the ledgers in SQL, by the views of docs/usage.md; nothing can be written')
    .option('--time-limit <time>', 'how long it may take', parseSeconds, 10)
    .option('--rows <n>', 'rows that are shown', parseRows, 10_000)
    .addHelpText(
      'after',
      `
With --csv and --ledger as of \`hpcserve usage\`. Views: requests, usage_by_hour, sessions, jobs, gaps, audit.

Examples:
  $ hpcserve usage sql 'SELECT status, count(*) FROM requests GROUP BY 1'
  $ hpcserve usage sql 'SELECT user, sum(device_s) / 3600 AS hours FROM usage_by_hour GROUP BY 1 ORDER BY 2 DESC'`,
    )
    .action(async (question: string, _options: SqlCommandOptions, command: Command) => {
      const { timeLimit, rows: rows_max, csv, ledger } = command.optsWithGlobals<SqlCommandOptions>();
      const ledgers = ledger ?? ledgersOf(openSite(context).layout);
      const jobs = await readJobRecords(jobFoldersOf(ledgers));
      const { columns, rows, cut } = await askSql(ledgers, question, {
        limit_ms: 1000 * timeLimit,
        rows_max,
        jobs,
      });
      if (context.json) context.out(JSON.stringify({ columns, rows, cut }));
      else if (csv)
        for (const row of [columns, ...rows])
          context.out(row.map((value) => csvField(value ?? undefined)).join(','));
      else {
        const texts = rows.map((row) => row.map((value) => (value === null ? '-' : String(value))));
        for (const line of fittedTable(
          columns.map((title) => ({ title })),
          texts,
          textWidth(context),
        ))
          context.out(line);
      }
      if (cut) context.note(`there are more than ${rows_max} rows; --rows shows more`);
    });
}

function parseRows(text: string): number {
  const rows = Number(text);
  if (Number.isSafeInteger(rows) && rows >= 1) return rows;
  throw new InvalidArgumentError('a whole number of at least 1.');
}

/** `--since` and `--until`. */
export function addTimes(command: Command, context: CliContext): Command {
  const parse = (text: string): number => parseSince(text, context.now_ms());
  return command
    .option('--since <when>', 'how far back (7d, 24h) or from which day (2026-01-31)', parse)
    .option('--until <when>', 'up to when, in the same words', parse);
}

function queryOf({ groupBy, since, until }: UsageOptions): UsageQuery {
  const group_by = checkGroupBy(groupBy, groupBySchema, usageDimensions);
  return { group_by, since_ms: since, until_ms: until };
}

function printUsage(
  context: CliContext,
  { csv, md }: UsageOptions,
  { group_by, since_ms, until_ms }: UsageQuery,
  usage: UsageRow[],
): void {
  if (context.json) {
    const answer: UsageAnswer = { group_by: [...group_by], since_ms, until_ms, usage };
    context.out(JSON.stringify(answer));
    return;
  }
  if (csv || md) {
    context.write(usageText(usage, group_by, csv ? 'csv' : 'md'));
    return;
  }
  if (usage.length === 0) {
    context.note('no requests in this time');
    return;
  }
  const numbers = [
    'REQUESTS',
    'ERRORS',
    'PROMPT TOKENS',
    'ANSWER TOKENS',
    'TIME',
    'TTFT',
    'DEVICE-HOURS',
    'KWH',
  ];
  for (const line of fittedTable(
    [
      ...group_by.map((name) => ({ title: name.toUpperCase() })),
      ...numbers.map((title) => ({ title, align: 'right' as const })),
    ],
    usage.map((row) => [...group_by.map((name) => groupText(row, name)), ...numbersOf(row)]),
    textWidth(context),
  ))
    context.out(line);
  if (usage.some(({ energy_estimated_j }) => energy_estimated_j > 0)) {
    const why = '~ energy is an estimate, as far as nobody measured it: the catalog’s power × time';
    for (const line of wrap(why, textWidth(context))) context.note(line);
  }
}

function groupText({ group, key_name }: UsageRow, name: UsageDimension): string {
  const value = group[name] ?? '-';
  return name === 'key' && key_name !== undefined ? `${key_name} (${value})` : value;
}

function numbersOf(row: UsageRow): string[] {
  const kwh = row.energy_j / 3.6e6;
  return [
    String(row.requests),
    String(row.errors),
    String(row.prompt_tokens),
    String(row.completion_tokens),
    formatDuration(row.duration_ms),
    row.ttft_requests > 0 ? `${Math.round(row.ttft_ms / row.ttft_requests)} ms` : '-',
    (row.device_s / 3600).toFixed(2),
    row.energy_j === 0 ? '-' : `${row.energy_estimated_j > 0 ? '~' : ''}${kwh.toPrecision(3)}`,
  ];
}
