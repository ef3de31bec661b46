import { useState } from 'preact/hooks';
import { duration, number, percent } from '../format.ts';
import { Loading, PageHead, Trouble } from '../parts/basics.tsx';
import { Chart, type ChartProps } from '../parts/chart.tsx';
import type { Point } from '../state/history.ts';
import { usePoll } from '../state/poll.ts';
import { meshTable, metricsText } from '../state/questions.ts';
import { history, recorded } from '../state/record.ts';
import { useStore } from '../state/store.ts';

const spans = { '2 min': 120, '10 min': 600, '30 min': 1800 } as const;
type Span = keyof typeof spans;

export function Live() {
  const table = usePoll(meshTable);
  const metrics = usePoll(metricsText);
  useStore(recorded);
  const [model, setModel] = useState('');
  const [span, setSpan] = useState<Span>('2 min');
  const points = history.of(model);
  return (
    <>
      <PageHead
        title="Live"
        note="Measured every 2 s since this page was opened; over all replicas that this key may see"
      >
        <label class="inline-field">
          <span class="visually-hidden">Model</span>
          <select data-slash value={model} onChange={(event) => setModel(event.currentTarget.value)}>
            <option value="">All models</option>
            {history.models.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <div class="segments" role="group" aria-label="Time shown">
          {(Object.keys(spans) as Span[]).map((name) => (
            <button type="button" key={name} aria-pressed={name === span} onClick={() => setSpan(name)}>
              {name}
            </button>
          ))}
        </div>
      </PageHead>
      {!table.data && !table.error && <Loading rows={6} what="Asking for the load" />}
      {!table.data && table.error && <Trouble error={table.error} what="The load cannot be shown." />}
      {metrics.error && table.data && (
        <p class="banner warn">
          Rates, times and errors are not available to this key: metrics are of all models. Load and KV cache
          are shown.
        </p>
      )}
      {table.data && <Charts points={points} span_s={spans[span]} />}
    </>
  );
}

type Field = Exclude<keyof Point, 'at_s'>;
interface Measure extends Pick<ChartProps, 'title' | 'unit' | 'format' | 'top'> {
  lines: readonly { label: string; color: string; field: Field; fill?: true }[];
}

const time = (value: number): string => (value === 0 ? '0' : duration(1000 * value));

const measures: readonly Measure[] = [
  {
    title: 'Throughput',
    unit: 'tokens/s',
    format: number,
    top: 10,
    lines: [
      { label: 'answers', color: '--chart-1', field: 'answer_rate', fill: true },
      { label: 'prompts', color: '--chart-2', field: 'prompt_rate' },
    ],
  },
  {
    title: 'Requests',
    unit: 'answered/s',
    format: number,
    lines: [{ label: 'requests', color: '--chart-1', field: 'request_rate', fill: true }],
  },
  {
    title: 'Time to first token',
    unit: 'p50 and p95',
    format: time,
    top: 0.1,
    lines: [
      { label: 'p50', color: '--chart-1', field: 'ttft_p50_s' },
      { label: 'p95', color: '--chart-3', field: 'ttft_p95_s' },
    ],
  },
  {
    title: 'Time per output token',
    unit: 'mean',
    format: time,
    top: 0.01,
    lines: [{ label: 'TPOT', color: '--chart-1', field: 'tpot_s' }],
  },
  {
    title: 'Queue',
    unit: 'sequences',
    format: number,
    top: 4,
    lines: [
      { label: 'running', color: '--chart-1', field: 'running', fill: true },
      { label: 'waiting', color: '--chart-3', field: 'waiting' },
      { label: 'places', color: '--chart-4', field: 'places' },
    ],
  },
  {
    title: 'KV cache',
    unit: 'in use',
    format: percent,
    top: 1,
    lines: [{ label: 'used', color: '--chart-2', field: 'kv_share', fill: true }],
  },
  {
    title: 'Errors',
    unit: 'answers/s',
    format: number,
    lines: [
      { label: '4xx', color: '--chart-3', field: 'client_error_rate' },
      { label: '5xx', color: '--chart-5', field: 'server_error_rate', fill: true },
    ],
  },
];

function Charts({ points, span_s }: { points: readonly Point[]; span_s: number }) {
  const times_s = points.map(({ at_s }) => at_s);
  return (
    <div class="charts">
      {measures.map(({ lines, ...measure }) => (
        <Chart
          {...measure}
          key={measure.title}
          times_s={times_s}
          span_s={span_s}
          series={lines.map(({ field, ...line }) => ({
            ...line,
            values: points.map((point) => point[field]),
          }))}
        />
      ))}
    </div>
  );
}
