/** Usage as tables of text: for spreadsheets, and for reports. */
import type { JobDimension, JobUsageRow } from '../spec/job-usage.ts';
import { summedUsage, type UsageDimension, type UsageRow, type UsageSums } from '../spec/usage.ts';

const sumColumns = [...summedUsage, 'first_ms', 'last_ms'] as const satisfies (keyof UsageSums)[];

export function usageText(
  usage: readonly UsageRow[],
  group_by: readonly UsageDimension[],
  format: 'csv' | 'md',
): string {
  const named = group_by.includes('key');
  const head = [...group_by, ...(named ? ['key_name'] : []), ...sumColumns];
  const rows = usage.map((row) => [
    ...group_by.map((name) => row.group[name]),
    ...(named ? [row.key_name] : []),
    ...sumColumns.map((name) => row[name]),
  ]);
  return tableText(head, rows, format);
}

const jobColumns = [
  'jobs',
  'unknown_jobs',
  'account',
  'state',
  'devices',
  'device_model',
  'walltime_s',
  'allocated_device_s',
  'busy_device_s',
  'idle_share',
  'requests',
  'prompt_tokens',
  'completion_tokens',
  'tokens_per_device_hour',
  'energy_j',
  'energy_estimated_j',
  'kwh_per_million_tokens',
] as const satisfies (keyof JobUsageRow)[];

export function jobUsageText(
  jobs: readonly JobUsageRow[],
  group_by: readonly JobDimension[],
  format: 'csv' | 'md',
): string {
  const rows = jobs.map((row) => [
    ...group_by.map((name) => row.group[name]),
    ...jobColumns.map((name) => row[name]),
  ]);
  return tableText([...group_by, ...jobColumns], rows, format);
}

function tableText(
  head: readonly string[],
  rows: readonly (readonly (string | number | undefined)[])[],
  format: 'csv' | 'md',
): string {
  const lines =
    format === 'csv'
      ? [head, ...rows].map((row) => row.map(csvField).join(','))
      : [head, head.map(() => '---'), ...rows].map((row) => `| ${row.map(markdownField).join(' | ')} |`);
  return `${lines.join('\n')}\n`;
}

/** RFC 4180, and no cell that a spreadsheet would run as a formula. */
export function csvField(value: string | number | undefined): string {
  const text = value === undefined ? '' : String(value);
  const safe = typeof value === 'string' && /^[=+\-@\t\r]/.test(text) && text !== '-' ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** One cell: nothing in it ends the cell, or is taken for Markdown or HTML. */
export function markdownField(value: string | number | undefined): string {
  const text = value === undefined ? '' : String(value);
  if (typeof value === 'number' || text === '---') return text;
  return text
    .replaceAll(/[\r\n]+/g, ' ')
    .replaceAll(/[\\|`*_[\]<>&]/g, (sign) => `&#${sign.codePointAt(0)};`);
}
