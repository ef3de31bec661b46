import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { type Command, InvalidArgumentError, Option } from 'commander';
import {
  addUsage,
  KeyStore,
  openLedgerReader,
  type UsageDimension,
  type UsageRow,
  usageDimensions,
} from '../../ledger/index.ts';
import { listGatewayFolders } from '../../spec/gateway-folders.ts';
import { gatewayFiles, type StateLayout } from '../../spec/state-layout.ts';
import type { CliContext } from '../context.ts';
import { formatDuration } from '../format/quantities.ts';
import { formatTable } from '../format/table.ts';
import { parseSeconds } from '../parse-seconds.ts';
import { openSite } from '../site-session.ts';

interface UsageOptions {
  by: UsageDimension;
  since?: number;
  csv?: true;
}

const columns = [
  'group',
  'name',
  'requests',
  'errors',
  'prompt_tokens',
  'completion_tokens',
  'cached_tokens',
  'reasoning_tokens',
  'duration_ms',
  'first_ms',
  'last_ms',
] as const satisfies (keyof NamedRow)[];

/** Sums of a key have its name beside its id. */
type NamedRow = UsageRow & { name?: string };

export function registerUsage(command: Command, context: CliContext): void {
  command
    .addOption(
      new Option('--by <dimension>', 'what to sum by').choices([...usageDimensions]).default('model'),
    )
    .option('--since <when>', 'how far back (7d, 24h) or from which day (2026-01-31)', (text) =>
      parseSince(text, context.now_ms()),
    )
    .option('--csv', 'comma-separated values on stdout')
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve usage
  $ hpcserve usage --by key --since 7d
  $ hpcserve usage --by day --since 2026-01-01 --csv > usage.csv`,
    )
    .action(async (options: UsageOptions) => {
      const { layout } = openSite(context);
      const usage = await readUsage(layout, options);
      if (context.json) return context.out(JSON.stringify({ by: options.by, usage }));
      if (options.csv) {
        context.out(columns.join(','));
        for (const row of usage) context.out(columns.map((column) => csvField(row[column])).join(','));
        return;
      }
      if (usage.length === 0) return context.note('no requests in this time');
      const numbers = ['REQUESTS', 'ERRORS', 'PROMPT TOKENS', 'ANSWER TOKENS', 'TIME'];
      for (const line of formatTable(
        [
          { title: options.by.toUpperCase() },
          ...numbers.map((title) => ({ title, align: 'right' as const })),
        ],
        usage.map((row) => [
          row.name === undefined ? row.group : `${row.name} (${row.group})`,
          String(row.requests),
          String(row.errors),
          String(row.prompt_tokens),
          String(row.completion_tokens),
          formatDuration(row.duration_ms),
        ]),
      ))
        context.out(line);
    });
}

/** @throws E_LEDGER_MISSING where no gateway has run yet */
async function readUsage(layout: StateLayout, { by, since }: UsageOptions): Promise<NamedRow[]> {
  const ledgers = listGatewayFolders(layout.root)
    .map(({ folder }) => join(folder, gatewayFiles.ledger))
    .filter((path) => existsSync(path));
  // With none, opening the first says so in the words of the registry.
  if (ledgers.length === 0) ledgers.push(join(layout.gateway_folder, gatewayFiles.ledger));
  const usage = addUsage(
    ledgers.map((path) => {
      const reader = openLedgerReader(path);
      try {
        return reader.usage({ by, since_ms: since });
      } finally {
        reader.close();
      }
    }),
  );
  if (by !== 'key') return usage;
  const names = new Map((await KeyStore.read(layout.keys_folder)).map(({ id, name }) => [id, name]));
  return usage.map((row) => {
    const name = names.get(row.group);
    return name === undefined ? row : { ...row, name };
  });
}

/** RFC 4180, and no cell that a spreadsheet would run as a formula. */
export function csvField(value: string | number | undefined): string {
  const text = value === undefined ? '' : String(value);
  const safe = typeof value === 'string' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Unix ms of `7d`, `24h` before now, or of a day or time in ISO 8601. */
export function parseSince(text: string, now_ms: number): number {
  const date = /^\d{4}-\d{2}-\d{2}/.test(text) ? Date.parse(text) : Number.NaN;
  if (Number.isFinite(date)) return date;
  try {
    return now_ms - parseSeconds(text) * 1000;
  } catch {
    throw new InvalidArgumentError('a time span such as 7d or 24h, or a day such as 2026-01-31.');
  }
}
