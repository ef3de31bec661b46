/** Asks for usage, of gateways that sum by several dimensions and of those that know one at a time. */
import { GatewayError } from '../api/client.ts';
import type { UsageRow } from '../api/rows.ts';
import { request } from './poll.ts';

export const dimensions = [
  'model',
  'key',
  'user',
  'project',
  'account',
  'deployment',
  'job',
  'node',
  'device',
  'engine',
  'provider',
  'hour',
  'month',
  'tier',
  'day',
] as const;
export type Dimension = (typeof dimensions)[number];

/** Only what has these values. */
export type UsageFilter = Readonly<Partial<Record<Dimension, string>>>;

export interface UsageQuestion {
  group_by: Dimension;
  filter: UsageFilter;
  since_ms?: number | undefined;
  until_ms?: number | undefined;
}

export async function askUsage(question: UsageQuestion): Promise<UsageRow[]> {
  try {
    return (await request<{ usage: UsageRow[] }>(`hpcserve/v1/usage?${parameters(question)}`)).usage;
  } catch (error) {
    const filtered = Object.keys(question.filter).length > 0;
    if (filtered || !(error instanceof GatewayError && error.status === 400)) throw error;
    const { usage } = await request<{ usage: UsageRow[] }>(`hpcserve/v1/usage?${singleParameters(question)}`);
    return usage;
  }
}

function parameters({ group_by, filter, since_ms, until_ms }: UsageQuestion): URLSearchParams {
  const query = new URLSearchParams({ ...filter, group_by, format: 'json' });
  if (since_ms !== undefined) query.set('since', new Date(since_ms).toISOString());
  if (until_ms !== undefined) query.set('until', new Date(until_ms).toISOString());
  return query;
}

function singleParameters({ group_by, since_ms, until_ms }: UsageQuestion): URLSearchParams {
  const query = new URLSearchParams({ by: group_by });
  if (since_ms !== undefined) query.set('since_ms', String(since_ms));
  if (until_ms !== undefined) query.set('until_ms', String(until_ms));
  return query;
}

const times: readonly Dimension[] = ['hour', 'day', 'month'];

/** The value that a row can be looked into by; undefined where it is a time, or the gateway knows no filters. */
export function groupValue({ group }: UsageRow, by: Dimension): string | undefined {
  return typeof group === 'string' || times.includes(by) ? undefined : group[by];
}

/** What is asked next of one value: the first of these that is not chosen yet. */
export function nextDimension(filter: UsageFilter): Dimension {
  return (['model', 'user', 'device', 'day'] as const).find((name) => filter[name] === undefined) ?? 'day';
}

/** What a row is of, for people. */
export function groupName({ group, key_name, name = key_name }: UsageRow): string {
  const value = typeof group === 'string' ? group : Object.values(group).join(' · ');
  return name === undefined ? value : `${name} (${value})`;
}

export interface Column {
  field:
    | 'requests'
    | 'errors'
    | 'prompt_tokens'
    | 'completion_tokens'
    | 'cached_tokens'
    | 'device_s'
    | 'energy_j';
  title: string;
}

const columns: readonly Column[] = [
  { field: 'requests', title: 'Requests' },
  { field: 'errors', title: 'Errors' },
  { field: 'prompt_tokens', title: 'Prompt tokens' },
  { field: 'cached_tokens', title: 'Cached' },
  { field: 'completion_tokens', title: 'Answer tokens' },
  { field: 'device_s', title: 'Device hours' },
  { field: 'energy_j', title: 'Energy, kWh' },
];

/** Those that this gateway counts. */
export function columnsOf(rows: readonly UsageRow[]): Column[] {
  return columns.filter(({ field }) => rows.some((row) => row[field] !== undefined));
}

/** As it is exported: numbers as they are, in the units of their names. */
export function usageCsv(rows: readonly UsageRow[], by: Dimension): string {
  const fields = columnsOf(rows).map(({ field }) => field);
  const lines = rows.map((row) => [groupName(row), ...fields.map((field) => String(row[field] ?? ''))]);
  return [[by, ...fields], ...lines].map((line) => `${line.map(csvField).join(',')}\r\n`).join('');
}

/** Names come from strangers: a spreadsheet is not to take them for formulas. */
function csvField(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) && !/^-?[\d.]+$/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
