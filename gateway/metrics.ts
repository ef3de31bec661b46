import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { RequestRecord } from '../ledger/index.ts';
import type { MeasuredWorkload } from '../spec/workload.ts';
import type { MeshStatus } from './gateway-gossip.ts';
import { registerMeshMetrics } from './mesh-metrics.ts';

/** Upper bounds of the time buckets, seconds: from an instant answer to a long generation. */
const timeBuckets_s = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];

/**
 * How often Node looks how late its event loop is, which is a timer of its own. Lower: short delays are seen too;
 * higher: less is computed by a gateway that has nothing to do (every 10 ms, prom-client's default, take 0.3% of a
 * core). Where nothing is late, the metrics show this time itself.
 */
const event_loop_ms = 100;

/** Sums of one model at one endpoint. Plain numbers, since labels cost more than the whole count of a request. */
interface Cell {
  model: string;
  endpoint: string;
  /** Requests by status. */
  statuses: Map<number, number>;
  prompt_tokens: number;
  completion_tokens: number;
  duration: Distribution;
  ttft: Distribution;
}

interface Distribution {
  /** One count a bucket, and one for what is beyond the last. Not cumulative. */
  counts: Float64Array;
  sum_s: number;
}

export interface MetricsSource {
  sessions(): { reachable: number; unreachable: number };
  replicas(): { model: string; running: number; waiting: number; max_sequences: number }[];
  /** What this gateway measured of the load. */
  workloads(): MeasuredWorkload[];
  /** What the folder and the gossip of the mesh brought and refused. */
  mesh(): MeshStatus;
  /** 1 while requests are refused because the ledger cannot be written. */
  ledgerFailing(): boolean;
}

/**
 * What Prometheus asks. The number of series is bounded: labels come from the models that sessions serve (every
 * other name counts as `other`), from four endpoints, and from the statuses that occur.
 */
export class GatewayMetrics {
  readonly #registry = new Registry();
  readonly #cells = new Map<string, Map<string, Cell>>();
  readonly #retries: Counter;
  readonly #continuations: Counter;
  readonly #refusals: Counter;

  constructor(source: MetricsSource) {
    const registers = [this.#registry];
    collectDefaultMetrics({
      register: this.#registry,
      prefix: 'hpcserve_gateway_',
      eventLoopMonitoringPrecision: event_loop_ms,
    });
    this.#retries = new Counter({
      name: 'hpcserve_retries_total',
      help: 'Requests sent to another replica after one failed',
      labelNames: ['model'],
      registers,
    });
    this.#continuations = new Counter({
      name: 'hpcserve_continuations_total',
      help: 'Streams that another replica went on with after one failed',
      labelNames: ['model'],
      registers,
    });
    this.#refusals = new Counter({
      name: 'hpcserve_refused_total',
      help: 'Requests with a valid key that were refused for what they are, or for the limits of their key',
      labelNames: ['code'],
      registers,
    });
    registerAnswers(this.#registry, () => this.#all());
    registerReplicas(this.#registry, source);
    registerWorkloads(this.#registry, source);
    registerMeshMetrics(this.#registry, () => source.mesh());
    new Gauge({
      name: 'hpcserve_ledger_failing',
      help: '1 while the ledger cannot be written and requests are refused',
      registers,
      collect() {
        this.set(source.ledgerFailing() ? 1 : 0);
      },
    });
  }

  answered(record: RequestRecord): void {
    const cell = this.#cell(record.served_model ?? 'other', record.endpoint);
    cell.statuses.set(record.status, (cell.statuses.get(record.status) ?? 0) + 1);
    cell.prompt_tokens += record.prompt_tokens ?? 0;
    cell.completion_tokens += record.completion_tokens ?? 0;
    observe(cell.duration, record.duration_ms / 1000);
    if (record.ttft_ms !== undefined) observe(cell.ttft, record.ttft_ms / 1000);
  }

  retried(model: string): void {
    this.#retries.inc({ model });
  }

  continued(model: string): void {
    this.#continuations.inc({ model });
  }

  /** By the gateway itself, before any replica was looked for. */
  refused(code: string): void {
    this.#refusals.inc({ code });
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  render(): Promise<string> {
    return this.#registry.metrics();
  }

  *#all(): Iterable<Cell> {
    for (const byEndpoint of this.#cells.values()) yield* byEndpoint.values();
  }

  #cell(model: string, endpoint: string): Cell {
    let byEndpoint = this.#cells.get(model);
    if (!byEndpoint) {
      byEndpoint = new Map();
      this.#cells.set(model, byEndpoint);
    }
    let cell = byEndpoint.get(endpoint);
    if (!cell) {
      cell = {
        model,
        endpoint,
        statuses: new Map(),
        prompt_tokens: 0,
        completion_tokens: 0,
        duration: { counts: new Float64Array(timeBuckets_s.length + 1), sum_s: 0 },
        ttft: { counts: new Float64Array(timeBuckets_s.length + 1), sum_s: 0 },
      };
      byEndpoint.set(endpoint, cell);
    }
    return cell;
  }
}

/** Sums over answered requests. */
function registerAnswers(registry: Registry, cells: () => Iterable<Cell>): void {
  const registers = [registry];
  new Counter({
    name: 'hpcserve_requests_total',
    help: 'Answered requests',
    labelNames: ['model', 'endpoint', 'status'],
    registers,
    collect() {
      this.reset();
      for (const { model, endpoint, statuses } of cells()) {
        for (const [status, count] of statuses) this.inc({ model, endpoint, status }, count);
      }
    },
  });
  new Counter({
    name: 'hpcserve_tokens_total',
    help: 'Tokens of answered requests as the replicas counted them',
    labelNames: ['model', 'endpoint', 'kind'],
    registers,
    collect() {
      this.reset();
      for (const { model, endpoint, prompt_tokens, completion_tokens } of cells()) {
        this.inc({ model, endpoint, kind: 'prompt' }, prompt_tokens);
        this.inc({ model, endpoint, kind: 'completion' }, completion_tokens);
      }
    },
  });
  for (const [name, help, which] of [
    [
      'hpcserve_request_duration_seconds',
      'From the arrival of a request to the end of its answer',
      'duration',
    ],
    [
      'hpcserve_time_to_first_byte_seconds',
      'From the arrival of a request to the first byte of its answer',
      'ttft',
    ],
  ] as const) {
    registry.registerMetric(new CellHistogram(name, help, cells, which));
  }
}

/** What sessions are there, and how full they are. */
function registerReplicas(registry: Registry, source: MetricsSource): void {
  const registers = [registry];
  new Gauge({
    name: 'hpcserve_sessions',
    help: 'Sessions that serve models, by whether this gateway reaches them',
    labelNames: ['state'],
    registers,
    collect() {
      const { reachable, unreachable } = source.sessions();
      this.set({ state: 'reachable' }, reachable);
      this.set({ state: 'unreachable' }, unreachable);
    },
  });
  new Gauge({
    name: 'hpcserve_sequences',
    help: 'Load of all reachable replicas of a model, as they report it',
    labelNames: ['model', 'kind'],
    registers,
    collect() {
      this.reset();
      for (const { model, running, waiting, max_sequences } of source.replicas()) {
        this.inc({ model, kind: 'running' }, running);
        this.inc({ model, kind: 'waiting' }, waiting);
        this.inc({ model, kind: 'capacity' }, max_sequences);
      }
    },
  });
}

/** What was measured of the load. */
function registerWorkloads(registry: Registry, source: MetricsSource): void {
  const registers = [registry];
  new Gauge({
    name: 'hpcserve_workload_requests_per_second',
    help: 'Requests that arrive for a model, exponentially weighted',
    labelNames: ['model', 'kind'],
    registers,
    collect() {
      this.reset();
      for (const { model, rate_per_s, refused_per_s } of source.workloads()) {
        this.set({ model, kind: 'arrived' }, rate_per_s);
        this.set({ model, kind: 'refused' }, refused_per_s);
      }
    },
  });
  new Gauge({
    name: 'hpcserve_workload_tokens',
    help: 'Lengths of requests of a model: mean, and coefficient of variation',
    labelNames: ['model', 'kind', 'statistic'],
    registers,
    collect() {
      this.reset();
      for (const { model, input_tokens, output_tokens, input_cv, output_cv } of source.workloads()) {
        this.set({ model, kind: 'input', statistic: 'mean' }, input_tokens);
        this.set({ model, kind: 'input', statistic: 'cv' }, input_cv);
        this.set({ model, kind: 'output', statistic: 'mean' }, output_tokens);
        this.set({ model, kind: 'output', statistic: 'cv' }, output_cv);
      }
    },
  });
}

function observe(distribution: Distribution, value_s: number): void {
  let bucket = 0;
  while (bucket < timeBuckets_s.length && value_s > timeBuckets_s[bucket]!) bucket++;
  distribution.counts[bucket]!++;
  distribution.sum_s += value_s;
}

/** A histogram that is filled from the cells when it is asked, in the shape prom-client prints. */
class CellHistogram extends Histogram<'model' | 'endpoint' | 'le'> {
  readonly #name: string;
  readonly #help: string;
  readonly #cells: () => Iterable<Cell>;
  readonly #which: 'duration' | 'ttft';
  /** Says how an export looks; never observes anything. */
  readonly #empty: Histogram<'model' | 'endpoint' | 'le'>;

  constructor(name: string, help: string, cells: () => Iterable<Cell>, which: 'duration' | 'ttft') {
    super({ name, help, labelNames: ['model', 'endpoint'], registers: [] });
    this.#empty = new Histogram({ name, help, labelNames: ['model', 'endpoint'], registers: [] });
    this.#name = name;
    this.#help = help;
    this.#cells = cells;
    this.#which = which;
  }

  override async get(): ReturnType<Histogram<'model' | 'endpoint' | 'le'>['get']> {
    const name = this.#name;
    const base = await this.#empty.get();
    const values: typeof base.values = [];
    for (const cell of this.#cells()) {
      const { counts, sum_s } = cell[this.#which];
      const labels = { model: cell.model, endpoint: cell.endpoint };
      let total = 0;
      counts.forEach((count, bucket) => {
        total += count;
        const le = timeBuckets_s[bucket] ?? '+Inf';
        values.push({ labels: { ...labels, le }, value: total, metricName: `${name}_bucket` });
      });
      values.push({ labels, value: sum_s, metricName: `${name}_sum` });
      values.push({ labels, value: total, metricName: `${name}_count` });
    }
    return { ...base, name, help: this.#help, values };
  }

  /** What the registry prints by, where a metric has it (it does not join labels first); absent from the types. */
  getForPromString(): ReturnType<Histogram<'model' | 'endpoint' | 'le'>['get']> {
    return this.get();
  }
}
