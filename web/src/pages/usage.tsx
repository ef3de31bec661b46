import { useCallback, useEffect, useMemo, useState } from 'preact/hooks';
import type { UsageRow } from '../api/rows.ts';
import { count, nothing, number, plural } from '../format.ts';
import { Button, Empty, Loading, PageHead, Trouble } from '../parts/basics.tsx';
import { download } from '../parts/download.ts';
import { Icon } from '../parts/icon.tsx';
import { OperatorOnly } from '../parts/operator-only.tsx';
import { seesAccounts, signIn } from '../state/sign-in.ts';
import { useStore } from '../state/store.ts';
import {
  askUsage,
  type Column,
  columnsOf,
  type Dimension,
  dimensions,
  groupName,
  groupValue,
  nextDimension,
  type UsageFilter,
  usageCsv,
} from '../state/usage-query.ts';

const hour_ms = 3_600_000;
const day_ms = 24 * hour_ms;
const ranges = {
  '24 hours': day_ms,
  '7 days': 7 * day_ms,
  '30 days': 30 * day_ms,
  Everything: undefined,
} as const;
type Range = keyof typeof ranges | 'Dates';

interface Filters {
  group_by: Dimension;
  range: Range;
  filter: UsageFilter;
  /** `YYYY-MM-DD`, both days included. */
  from: string;
  to: string;
}

/** As one left it. */
let filtersLeft: Filters = { group_by: 'model', range: '7 days', filter: {}, from: '', to: '' };

export function Usage() {
  if (!seesAccounts(useStore(signIn))) return <OperatorOnly title="Usage" command="hpcserve usage" />;
  return <UsageOfAll />;
}

function UsageOfAll() {
  const { role, user } = useStore(signIn) ?? {};
  const whose = role === 'operator' ? 'all keys' : role === 'provider' ? 'your devices' : user;
  const [filters, setFilters] = useState(filtersLeft);
  const { rows, error, asking, again } = useUsage(filters);
  const change = (changes: Partial<Filters>): void => {
    filtersLeft = { ...filters, ...changes };
    setFilters(filtersLeft);
  };
  const look = (value: string): void => {
    const filter = { ...filters.filter, [filters.group_by]: value };
    change({ filter, group_by: nextDimension(filter) });
  };
  const name = `hpcserve-usage-by-${filters.group_by}`;
  const has = rows !== undefined && rows.length > 0;
  return (
    <>
      <PageHead
        title="Usage"
        note={`Of ${whose}, by this gateway’s ledger; a request stands in it before its answer ends`}
      >
        <Button
          icon="down"
          disabled={!has}
          onClick={() => download(`${name}.csv`, 'text/csv', usageCsv(rows!, filters.group_by))}
        >
          CSV
        </Button>
        <Button
          icon="down"
          disabled={!has}
          onClick={() => download(`${name}.json`, 'application/json', `${JSON.stringify(rows, null, 2)}\n`)}
        >
          JSON
        </Button>
        <Button icon="again" label="Ask again" kind="plain" onClick={again} />
      </PageHead>
      <FilterBar filters={filters} change={change} />
      {error && <Trouble error={error} what="This usage is not available." />}
      {!rows && !error && <Loading rows={5} what="Asking the ledger" />}
      {rows && !error && !has && <Empty title="Nobody asked anything in this time." />}
      {has && !error && (
        <UsageTable key={filters.group_by} rows={rows} by={filters.group_by} stale={asking} look={look} />
      )}
    </>
  );
}

function FilterBar({ filters, change }: { filters: Filters; change: (changes: Partial<Filters>) => void }) {
  const { group_by, range, filter, from, to } = filters;
  return (
    <div class="filter-bar">
      <label class="inline-field">
        Sum by
        <select
          data-slash
          value={group_by}
          onChange={(event) => change({ group_by: event.currentTarget.value as Dimension })}
        >
          {dimensions.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      <div class="segments" role="group" aria-label="Time">
        {[...(Object.keys(ranges) as Range[]), 'Dates' as const].map((name) => (
          <button
            type="button"
            key={name}
            aria-pressed={name === range}
            onClick={() => change({ range: name })}
          >
            {name}
          </button>
        ))}
      </div>
      {(Object.entries(filter) as [Dimension, string][]).map(([name, value]) => (
        <button
          type="button"
          class="chip"
          key={name}
          aria-label={`Take the filter ${name} ${value} away`}
          onClick={() => change({ filter: without(filter, name), group_by: name })}
        >
          {name}: <b>{value}</b> <Icon name="close" />
        </button>
      ))}
      {range === 'Dates' && (
        <span class="dates">
          <input
            type="date"
            aria-label="First day (UTC)"
            value={from}
            max={to}
            onChange={(event) => change({ from: event.currentTarget.value })}
          />
          <span aria-hidden="true">to</span>
          <input
            type="date"
            aria-label="Last day (UTC)"
            value={to}
            min={from}
            onChange={(event) => change({ to: event.currentTarget.value })}
          />
        </span>
      )}
    </div>
  );
}

function without(filter: UsageFilter, name: Dimension): UsageFilter {
  return Object.fromEntries(Object.entries(filter).filter(([other]) => other !== name));
}

function boundsOf({ range, from, to }: Filters): {
  since_ms?: number | undefined;
  until_ms?: number | undefined;
} {
  if (range !== 'Dates') {
    const back_ms = ranges[range];
    return { since_ms: back_ms === undefined ? undefined : Date.now() - back_ms };
  }
  return {
    since_ms: from ? Date.parse(`${from}T00:00:00Z`) : undefined,
    until_ms: to ? Date.parse(`${to}T00:00:00Z`) + day_ms : undefined,
  };
}

function useUsage(filters: Filters) {
  const [answer, setAnswer] = useState<{ rows?: UsageRow[]; error?: Error; asking: boolean }>({
    asking: true,
  });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let current = true;
    setAnswer(({ rows }) => ({ rows, asking: true }) as typeof answer);
    askUsage({ group_by: filters.group_by, filter: filters.filter, ...boundsOf(filters) }).then(
      (rows) => current && setAnswer({ rows, asking: false }),
      (error: Error) => current && setAnswer({ error, asking: false }),
    );
    return () => {
      current = false;
    };
  }, [filters, turn]);
  const again = useCallback(() => setTurn((last) => last + 1), []);
  return { ...answer, again };
}

type SortField = Column['field'] | 'group';
interface Order {
  field: SortField;
  down: boolean;
}

function sortedBy(rows: readonly UsageRow[], { field, down }: Order): UsageRow[] {
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) =>
    field === 'group'
      ? sign * groupName(a).localeCompare(groupName(b), 'en', { numeric: true })
      : sign * ((a[field] ?? 0) - (b[field] ?? 0)),
  );
}

interface SortHeadProps {
  field: SortField;
  title: string;
  order: Order;
  setOrder: (order: Order) => void;
}

function SortHead({ field, title, order, setOrder }: SortHeadProps) {
  const chosen = order.field === field;
  return (
    <th
      class={field === 'group' ? undefined : 'number'}
      aria-sort={chosen ? (order.down ? 'descending' : 'ascending') : undefined}
    >
      <button
        type="button"
        class="sort"
        onClick={() => setOrder({ field, down: chosen ? !order.down : field !== 'group' })}
      >
        {title}
      </button>
    </th>
  );
}

interface UsageTableProps {
  rows: readonly UsageRow[];
  by: Dimension;
  /** The next answer is on its way. */
  stale: boolean;
  /** Shows one value of the dimension by another one. */
  look: (value: string) => void;
}

function GroupCell({ row, by, look }: Pick<UsageTableProps, 'by' | 'look'> & { row: UsageRow }) {
  const value = groupValue(row, by);
  if (value === undefined) return <span>{groupName(row)}</span>;
  return (
    <button type="button" class="look" title={`Only this ${by}`} onClick={() => look(value)}>
      {groupName(row)}
    </button>
  );
}

function UsageTable({ rows, by, stale, look }: UsageTableProps) {
  const columns = columnsOf(rows);
  const [order, setOrder] = useState<Order>(
    by === 'day' ? { field: 'group', down: true } : { field: 'completion_tokens', down: true },
  );
  const sorted = useMemo(() => sortedBy(rows, order), [rows, order]);
  const most = Math.max(
    1,
    ...rows.map(({ completion_tokens, prompt_tokens }) => completion_tokens + prompt_tokens),
  );
  const head = (field: SortField, title: string) => (
    <SortHead key={field} field={field} title={title} order={order} setOrder={setOrder} />
  );
  return (
    <div class={`table-scroll ${stale ? 'stale' : ''}`} tabIndex={0} role="region" aria-label="Usage">
      <table class="usage">
        <thead>
          <tr>
            {head('group', by[0]!.toUpperCase() + by.slice(1))}
            {columns.map(({ field, title }) => head(field, title))}
          </tr>
        </thead>
        <tbody>
          {sorted.map((row) => (
            <tr key={groupName(row)}>
              <td class="share-cell">
                <span
                  class="share"
                  aria-hidden="true"
                  style={{ width: `${(100 * (row.completion_tokens + row.prompt_tokens)) / most}%` }}
                />
                <GroupCell row={row} by={by} look={look} />
              </td>
              {columns.map(({ field }) => (
                <td class="number" key={field}>
                  {cell(row, field)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th scope="row">{plural(rows.length, 'row')}, together</th>
            {columns.map(({ field }) => (
              <td class="number" key={field}>
                {written(
                  field,
                  rows.reduce((sum, row) => sum + (row[field] ?? 0), 0),
                )}
              </td>
            ))}
          </tr>
        </tfoot>
      </table>
    </div>
  );
}

function cell(row: UsageRow, field: Column['field']): string {
  const value = row[field];
  if (value === undefined) return nothing;
  // A power that was measured is said without a mark.
  const estimated = field === 'energy_j' && (row.energy_estimated_j ?? 0) > 0;
  return `${estimated ? '≈ ' : ''}${written(field, value)}`;
}

function written(field: Column['field'], value: number): string {
  if (field === 'device_s') return number(value / 3600);
  if (field === 'energy_j') return number(value / 3.6e6);
  return count(value);
}
