import type { Command } from 'commander';
import { jobUsage } from '../../control/job-usage.ts';
import { ledgersOf } from '../../control/state/ledgers.ts';
import { jobUsageText } from '../../ledger/index.ts';
import {
  type JobDimension,
  type JobUsageAnswer,
  type JobUsageRow,
  jobDimensions,
  jobGroupBySchema,
} from '../../spec/job-usage.ts';
import type { CliContext } from '../context.ts';
import { formatDuration } from '../format/quantities.ts';
import { type Column, formatTable } from '../format/table.ts';
import { checkGroupBy } from '../group-by.ts';
import { openSession, openSite } from '../site-session.ts';

/** Those of `hpcserve usage` hold for its subcommands. */
interface JobsOptions {
  groupBy: string[];
  since?: number;
  until?: number;
  csv?: true;
  md?: true;
  ledger?: string[];
}

export function registerUsageJobs(usage: Command, context: CliContext): void {
  usage
    .command('jobs')
    .description('Device-hours that jobs had, how much of them was idle, and the tokens that came of it')
    .addHelpText(
      'after',
      `
With --group-by (${jobDimensions.join(', ')}; job by default), --since, --until, --csv, --md and
--ledger as of \`hpcserve usage\`. Slurm is asked for jobs that run, unless ledgers are named.

Examples:
  $ hpcserve usage jobs --since 7d
  $ hpcserve usage jobs --group-by account,deployment
  $ hpcserve usage jobs --group-by node_kind --since 2026-01-01 --until 2026-02-01 --csv > jobs.csv`,
    )
    .action(async (_options: unknown, command: Command) => {
      const options = command.optsWithGlobals<JobsOptions>();
      const asked = usage.getOptionValueSource('groupBy') === 'default' ? ['job'] : options.groupBy;
      await printJobs(context, options, checkGroupBy(asked, jobGroupBySchema, jobDimensions));
    });
}

async function printJobs(context: CliContext, options: JobsOptions, group_by: JobDimension[]): Promise<void> {
  const { since: since_ms, until: until_ms, ledger } = options;
  const query = { group_by, since_ms, until_ms, now_ms: context.now_ms() };
  const session = ledger ? undefined : openSession(context, { command: 'hpcserve usage jobs' });
  const ledgers = ledger ?? ledgersOf(openSite(context).layout);
  const site = session?.loaded.site.name;
  const { rows, problem } = await jobUsage(ledgers, site, session?.slurm_runner, query);
  if (problem !== undefined) context.note(problem);
  if (context.json) {
    const answer: JobUsageAnswer = { group_by, since_ms, until_ms, jobs: rows };
    context.out(JSON.stringify(answer));
  } else if (options.csv || options.md)
    context.write(jobUsageText(rows, group_by, options.csv ? 'csv' : 'md'));
  else if (rows.length === 0) context.note('no jobs in this time');
  else printTable(context, group_by, rows);
}

function printTable(
  context: CliContext,
  group_by: readonly JobDimension[],
  rows: readonly JobUsageRow[],
): void {
  const single = group_by.includes('job');
  const right = (title: string): Column => ({ title, align: 'right' });
  const columns: Column[] = [
    ...group_by.map((name) => ({ title: name.toUpperCase().replace('_', ' ') })),
    // Whose job it is, and how it stands, says more than its number.
    ...(single && !group_by.includes('account') ? [{ title: 'ACCOUNT' }] : []),
    ...(single ? [{ title: 'STATE' }, { title: 'DEVICES' }, right('WALLTIME')] : [right('JOBS')]),
    ...['DEVICE-HOURS', 'BUSY', 'IDLE', 'TOKENS', 'TOKENS/DEVICE-HOUR', 'KWH', 'KWH/MTOKEN'].map(right),
  ];
  for (const line of formatTable(
    columns,
    rows.map((row) => cellsOf(row, group_by, single)),
  ))
    context.out(line);
  if (rows.some(({ unknown_jobs }) => unknown_jobs > 0))
    context.note('- device-hours of jobs that nobody has a record of are not known, and count in no ratio');
  if (rows.some(({ end_seen }) => end_seen))
    context.note('≤ the scheduler did not say when such a job ended, and it was over when it was looked at');
  if (rows.some(({ energy_estimated_j }) => energy_estimated_j > 0))
    context.note('~ energy is an estimate, as far as nobody measured it: the catalog’s power × time');
}

function cellsOf(row: JobUsageRow, group_by: readonly JobDimension[], single: boolean): string[] {
  const { devices, device_model, allocated_device_s, idle_share, tokens_per_device_hour } = row;
  const atMost = row.end_seen ? '≤' : '';
  const about = row.energy_estimated_j > 0 ? '~' : '';
  const ofJob = [
    row.state ?? '-',
    devices === undefined ? '-' : `${devices}x ${device_model ?? 'device'}`,
    row.walltime_s === 0 ? '-' : atMost + formatDuration(row.walltime_s * 1000),
  ];
  const optional = (value: number | undefined, text: (value: number) => string): string =>
    value === undefined ? '-' : text(value);
  return [
    ...group_by.map((name) => row.group[name] ?? '-'),
    ...(single && !group_by.includes('account') ? [row.account ?? '-'] : []),
    ...(single ? ofJob : [String(row.jobs)]),
    optional(allocated_device_s, (s) => atMost + (s / 3600).toFixed(3)),
    (row.busy_device_s / 3600).toFixed(3),
    optional(idle_share, (share) => `${atMost}${(100 * share).toFixed(1)} %`),
    String(row.prompt_tokens + row.completion_tokens),
    optional(tokens_per_device_hour, (tokens) => String(Math.round(tokens))),
    row.energy_j === 0 ? '-' : `${about}${(row.energy_j / 3.6e6).toPrecision(3)}`,
    optional(row.kwh_per_million_tokens, (kwh) => `${about}${kwh.toPrecision(3)}`),
  ];
}
