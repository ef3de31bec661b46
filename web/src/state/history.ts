/**
 * What the live page draws: one point for each answer of `/metrics` and `/mesh/table`. The gateway keeps no history, so
 * it begins when the page is opened.
 */
import {
  type Buckets,
  bucketsOf,
  bucketsSince,
  quantile,
  readMetrics,
  type Sample,
} from '../api/prometheus.ts';
import type { MeshTable } from '../api/rows.ts';
import { live_ms } from './questions.ts';

/** Half an hour. */
const points_max = (30 * 60 * 1000) / live_ms;

/** Null: nothing was measured then. Times in seconds, shares from 0 to 1, rates per second. */
export interface Point {
  at_s: number;
  prompt_rate: number | null;
  answer_rate: number | null;
  request_rate: number | null;
  client_error_rate: number | null;
  server_error_rate: number | null;
  ttft_p50_s: number | null;
  ttft_p95_s: number | null;
  tpot_s: number | null;
  running: number | null;
  waiting: number | null;
  places: number | null;
  kv_share: number | null;
}

const ttft = 'hpcserve_time_to_first_token_seconds';
const tpot = 'hpcserve_request_time_per_output_token_seconds';
const names = new Set([
  'hpcserve_requests_total',
  'hpcserve_prompt_tokens_total',
  'hpcserve_generation_tokens_total',
  `${ttft}_bucket`,
  `${tpot}_sum`,
  `${tpot}_count`,
]);

/** Sums at one moment, since the gateway began. */
interface Totals {
  at_ms: number;
  prompt_tokens: number;
  answer_tokens: number;
  requests: number;
  client_errors: number;
  server_errors: number;
  ttft: Buckets;
  /** Of requests whose time between tokens is known: the sum of these times, and how many there are. */
  tpot_s: number;
  tpots: number;
}

/** Every name's sums, so that one model can be looked at later too. */
export class LiveHistory {
  readonly #points = new Map<string, Point[]>();
  readonly #before = new Map<string, Totals>();

  /** @param text absent where the metrics may not be seen */
  add(at_ms: number, table: MeshTable, text: string | undefined): void {
    const samples = text === undefined ? undefined : readMetrics(text, (name) => names.has(name));
    const models = new Set(table.sessions.flatMap((session) => session.models.map(({ name }) => name)));
    for (const sample of samples ?? []) if (sample.labels.model_name) models.add(sample.labels.model_name);
    for (const model of ['', ...models]) {
      const points = this.#points.get(model) ?? [];
      this.#points.set(model, points);
      points.push({ at_s: at_ms / 1000, ...this.#rates(model, at_ms, samples), ...loadOf(table, model) });
      if (points.length > points_max) points.shift();
    }
  }

  /** @param model empty: of all */
  of(model: string): readonly Point[] {
    return this.#points.get(model) ?? [];
  }

  get models(): string[] {
    return [...this.#points.keys()].filter(Boolean).sort();
  }

  clear(): void {
    this.#points.clear();
    this.#before.clear();
  }

  #rates(model: string, at_ms: number, samples: Sample[] | undefined): Rates {
    if (!samples) return noRates;
    const now = totalsOf(samples, model, at_ms);
    const before = this.#before.get(model);
    this.#before.set(model, now);
    // After a restart of the gateway its counters begin again.
    if (!before || now.requests < before.requests || at_ms <= before.at_ms) return noRates;
    const passed_s = (at_ms - before.at_ms) / 1000;
    const rate = (
      field: 'prompt_tokens' | 'answer_tokens' | 'requests' | 'client_errors' | 'server_errors',
    ) => (now[field] - before[field]) / passed_s;
    const first = bucketsSince(now.ttft, before.ttft);
    const tpots = now.tpots - before.tpots;
    return {
      prompt_rate: rate('prompt_tokens'),
      answer_rate: rate('answer_tokens'),
      request_rate: rate('requests'),
      client_error_rate: rate('client_errors'),
      server_error_rate: rate('server_errors'),
      ttft_p50_s: quantile(first, 0.5),
      ttft_p95_s: quantile(first, 0.95),
      tpot_s: tpots > 0 ? (now.tpot_s - before.tpot_s) / tpots : null,
    };
  }
}

type Load = Pick<Point, 'running' | 'waiting' | 'places' | 'kv_share'>;
type Rates = Omit<Point, 'at_s' | keyof Load>;
const noRates: Rates = {
  prompt_rate: null,
  answer_rate: null,
  request_rate: null,
  client_error_rate: null,
  server_error_rate: null,
  ttft_p50_s: null,
  ttft_p95_s: null,
  tpot_s: null,
};

function loadOf({ sessions }: MeshTable, model: string): Load {
  const replicas = sessions
    .filter(({ reachable }) => reachable)
    .flatMap(({ models }) => models.filter(({ name }) => model === '' || name === model));
  const sum = (
    field: 'running' | 'waiting' | 'max_sequences' | 'kv_tokens_used' | 'kv_tokens_total',
  ): number => replicas.reduce((total, replica) => total + (replica[field] || 0), 0);
  const kv_total = sum('kv_tokens_total');
  return {
    running: sum('running'),
    waiting: sum('waiting'),
    places: sum('max_sequences'),
    kv_share: kv_total > 0 ? sum('kv_tokens_used') / kv_total : null,
  };
}

function totalsOf(samples: readonly Sample[], model: string, at_ms: number): Totals {
  const own = samples.filter(({ labels }) => model === '' || labels.model_name === model);
  const sum = (name: string, passes: (sample: Sample) => boolean = () => true): number =>
    own.reduce((total, sample) => (sample.name === name && passes(sample) ? total + sample.value : total), 0);
  const status = (digit: string) => (sample: Sample) => sample.labels.status?.startsWith(digit) ?? false;
  return {
    at_ms,
    prompt_tokens: sum('hpcserve_prompt_tokens_total'),
    answer_tokens: sum('hpcserve_generation_tokens_total'),
    requests: sum('hpcserve_requests_total'),
    client_errors: sum('hpcserve_requests_total', status('4')),
    server_errors: sum('hpcserve_requests_total', status('5')),
    ttft: bucketsOf(own, ({ name }) => name === `${ttft}_bucket`),
    tpot_s: sum(`${tpot}_sum`),
    tpots: sum(`${tpot}_count`),
  };
}
