import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { RequestRecord } from '../ledger/index.ts';
import type { LinkUse } from '../solver/streaming/request-load.ts';
import type { PrefixCacheCounts } from '../spec/prefix-cache.ts';
import type { MeasuredWorkload } from '../spec/workload.ts';
import type { MeshStatus } from './gateway-gossip.ts';
import { registerMeshMetrics } from './mesh-metrics.ts';
import { ProcessMetrics } from './process-metrics.ts';
import type { MetricsJson } from './processes/messages.ts';

/** Upper bounds of the time buckets, seconds: from an instant answer to a long generation. */
const timeBuckets_s = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];

/** Buckets of the time per output token, seconds: from a small model on a GPU to a large one on CPUs. */
const tokenBuckets_s = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5];
/** Beyond so many combinations of model, endpoint and node, nodes count as `other`. */
const cells_max = 2000;

/** Sums of one model at one endpoint, by one node. Numbers: labels cost more than the whole count of a request. */
interface Cell {
  model: string;
  endpoint: string;
  node: string;
  /** Requests by status, and those that succeeded by why they ended. */
  statuses: Map<number, number>;
  finished: Map<string, number>;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  duration: Distribution;
  ttft: Distribution;
  tpot: Distribution;
}

interface Distribution {
  /** One count a bucket, and one for what is beyond the last. Not cumulative. */
  counts: Float64Array;
  sum_s: number;
}

export interface MetricsSource {
  sessions(): { reachable: number; unreachable: number };
  replicas(): {
    model: string;
    session: { facts: { node: string } };
    running: number;
    waiting: number;
    max_sequences: number;
    kv_tokens_total: number;
    kv_tokens_used: number;
    prefix_cache?: PrefixCacheCounts | undefined;
  }[];
  /** Of each link that weights are streamed over. */
  links(): { node: string; link: string; use: LinkUse }[];
  /** What this gateway measured of the load. */
  workloads(): MeasuredWorkload[];
  /** What the folder and the gossip of the mesh brought and refused. */
  mesh(): MeshStatus;
  /** Processes that relay requests. */
  relays(): number;
  /** What other processes of this gateway measure of themselves. */
  workers(): Promise<MetricsJson[]>;
  /** 1 while requests are refused because the ledger cannot be written. */
  ledgerFailing(): boolean;
}

/**
 * What Prometheus asks. The number of series is bounded: labels come from the models that sessions serve (every
 * other name counts as `other`), from four endpoints, and from the statuses that occur.
 */
export class GatewayMetrics {
  readonly #registry = new Registry();
  readonly #process = new ProcessMetrics();
  readonly #source: MetricsSource;
  readonly #cells = new Map<string, Map<string, Cell>>();
  #cellCount = 0;
  readonly #retries: Counter;
  readonly #continuations: Counter;
  readonly #refusals: Counter;

  constructor(source: MetricsSource) {
    const registers = [this.#registry];
    this.#source = source;
    this.#retries = new Counter({
      name: 'hpcserve_retries_total',
      help: 'Requests sent to another replica after one failed',
      labelNames: ['model'],
      registers,
    });
    this.#continuations = new Counter({
      name: 'hpcserve_continuations_total',
      help: 'Answers that another replica went on with after one failed or gave them away',
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
    registerLinks(this.#registry, source);
    registerWorkloads(this.#registry, source);
    registerMeshMetrics(this.#registry, () => source.mesh());
    new Gauge({
      name: 'hpcserve_gateway_relays',
      help: 'Processes of the gateway that relay requests now',
      registers,
      collect() {
        this.set(source.relays());
      },
    });
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
    const { served_model = 'other', endpoint, session, ttft_ms, duration_ms, completion_tokens = 0 } = record;
    const cell = this.#cell(served_model, endpoint, session?.node ?? '');
    cell.statuses.set(record.status, (cell.statuses.get(record.status) ?? 0) + 1);
    cell.prompt_tokens += record.prompt_tokens ?? 0;
    cell.completion_tokens += completion_tokens;
    cell.cached_tokens += record.cached_tokens ?? 0;
    if (record.error_code === undefined) {
      const reason = finishReasons.has(record.finish_reason ?? '') ? record.finish_reason! : 'other';
      cell.finished.set(reason, (cell.finished.get(reason) ?? 0) + 1);
    }
    observe(cell.duration, timeBuckets_s, duration_ms / 1000);
    if (ttft_ms === undefined) return;
    observe(cell.ttft, timeBuckets_s, ttft_ms / 1000);
    if (completion_tokens > 1)
      observe(cell.tpot, tokenBuckets_s, (duration_ms - ttft_ms) / 1000 / (completion_tokens - 1));
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

  async render(): Promise<string> {
    const ofProcesses = await this.#process.render(await this.#source.workers());
    return `${await this.#registry.metrics()}\n${ofProcesses}`;
  }

  *#all(): Iterable<Cell> {
    for (const byEndpoint of this.#cells.values()) yield* byEndpoint.values();
  }

  #cell(model: string, endpoint: string, node: string): Cell {
    let byEndpoint = this.#cells.get(model);
    if (!byEndpoint) {
      byEndpoint = new Map();
      this.#cells.set(model, byEndpoint);
    }
    const place = `${endpoint}\0${node}`;
    let cell = byEndpoint.get(place);
    if (!cell) {
      if (this.#cellCount >= cells_max && node !== 'other') return this.#cell(model, endpoint, 'other');
      this.#cellCount++;
      cell = {
        model,
        endpoint,
        node,
        statuses: new Map(),
        finished: new Map(),
        prompt_tokens: 0,
        completion_tokens: 0,
        cached_tokens: 0,
        duration: { counts: new Float64Array(timeBuckets_s.length + 1), sum_s: 0 },
        ttft: { counts: new Float64Array(timeBuckets_s.length + 1), sum_s: 0 },
        tpot: { counts: new Float64Array(tokenBuckets_s.length + 1), sum_s: 0 },
      };
      byEndpoint.set(place, cell);
    }
    return cell;
  }
}

/** What OpenAI's API has as reasons; an engine's own would be a label that nobody bounds. */
const finishReasons = new Set(['stop', 'length', 'tool_calls', 'content_filter', 'function_call']);
const cellLabels = ['model_name', 'endpoint', 'node'] as const;
type CellLabel = (typeof cellLabels)[number];

const labelsOf = ({ model, endpoint, node }: Cell): Record<CellLabel, string> => ({
  model_name: model,
  endpoint,
  node,
});

/** Sums over answered requests: vLLM's names behind `hpcserve_`, and its label `model_name`. */
function registerAnswers(registry: Registry, cells: () => Iterable<Cell>): void {
  const registers = [registry];
  for (const [name, help, label, countsOf] of [
    ['hpcserve_requests_total', 'Answered requests, by HTTP status', 'status', (cell: Cell) => cell.statuses],
    [
      'hpcserve_request_success_total',
      'Requests that were answered without an error, by why the answer ended',
      'finished_reason',
      (cell: Cell) => cell.finished,
    ],
  ] as const)
    new Counter({
      name,
      help,
      labelNames: [...cellLabels, label],
      registers,
      collect() {
        this.reset();
        for (const cell of cells())
          for (const [value, count] of countsOf(cell)) this.inc({ ...labelsOf(cell), [label]: value }, count);
      },
    });
  for (const [name, help, field] of [
    ['hpcserve_prompt_tokens_total', 'Tokens of prompts, as the replicas counted them', 'prompt_tokens'],
    [
      'hpcserve_generation_tokens_total',
      'Tokens of answers, as the replicas counted them',
      'completion_tokens',
    ],
    [
      'hpcserve_prompt_tokens_cached_total',
      'Tokens of prompts that replicas took from a cache',
      'cached_tokens',
    ],
  ] as const)
    new Counter({
      name,
      help,
      labelNames: cellLabels,
      registers,
      collect() {
        this.reset();
        for (const cell of cells()) this.inc(labelsOf(cell), cell[field]);
      },
    });
  for (const [name, help, which, buckets_s] of [
    [
      'hpcserve_e2e_request_latency_seconds',
      'From the arrival of a request to the end of its answer',
      'duration',
      timeBuckets_s,
    ],
    [
      'hpcserve_time_to_first_token_seconds',
      'From the arrival of a request to the first byte of its answer',
      'ttft',
      timeBuckets_s,
    ],
    [
      'hpcserve_request_time_per_output_token_seconds',
      'Mean time of a request between tokens of its answer, behind the first',
      'tpot',
      tokenBuckets_s,
    ],
  ] as const)
    registry.registerMetric(new CellHistogram(name, help, cells, which, buckets_s));
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
  for (const [name, help, read] of [
    [
      'hpcserve_num_requests_running',
      'Requests that replicas compute now, as they report it',
      (r) => r.running,
    ],
    ['hpcserve_num_requests_waiting', 'Requests that wait at replicas, as they report it', (r) => r.waiting],
    [
      'hpcserve_num_requests_capacity',
      'Requests that replicas can compute at a time',
      (r) => r.max_sequences,
    ],
    ['hpcserve_kv_cache_tokens', 'Tokens that the KV caches of replicas hold', (r) => r.kv_tokens_used],
    ['hpcserve_kv_cache_capacity_tokens', 'Tokens that fit into them', (r) => r.kv_tokens_total],
    [
      'hpcserve_prefix_cache_queried_tokens',
      'Prompt tokens that engines looked for in their caches since they started, as they report it',
      (r) => r.prefix_cache?.queried_tokens ?? 0,
    ],
    [
      'hpcserve_prefix_cache_found_tokens',
      'Of these, tokens that were there',
      (r) => r.prefix_cache?.found_tokens ?? 0,
    ],
  ] as const satisfies readonly (readonly [string, string, (replica: Load) => number])[])
    new Gauge({
      name,
      help,
      labelNames: ['model_name', 'node'],
      registers,
      collect() {
        this.reset();
        for (const replica of source.replicas()) {
          const labels = { model_name: replica.model, node: replica.session.facts.node };
          this.inc(labels, read(replica));
        }
      },
    });
}

type Load = ReturnType<MetricsSource['replicas']>[number];

/** What is taken of the links to host memory. */
function registerLinks(registry: Registry, source: MetricsSource): void {
  for (const [name, help, read] of [
    [
      'hpcserve_host_link_due_bytes_per_second',
      'Bytes that requests of streamed models must have over a link to host memory, for tokens to come in time',
      (use) => use.due_bytes_per_s,
    ],
    [
      'hpcserve_host_link_capacity_bytes_per_second',
      'What the link gives to all of its devices, as measured or assumed; absent where nobody knows',
      (use) => use.capacity_bytes_per_s,
    ],
    [
      'hpcserve_host_link_readers',
      'Devices that have requests of models which they stream over it',
      (use) => use.reading,
    ],
  ] as const satisfies readonly (readonly [string, string, (use: LinkUse) => number | undefined])[])
    new Gauge({
      name,
      help,
      labelNames: ['node', 'link'],
      registers: [registry],
      collect() {
        this.reset();
        for (const { node, link, use } of source.links()) {
          const value = read(use);
          if (value !== undefined) this.set({ node, link }, value);
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

function observe(distribution: Distribution, buckets_s: readonly number[], value_s: number): void {
  let bucket = 0;
  while (bucket < buckets_s.length && value_s > buckets_s[bucket]!) bucket++;
  distribution.counts[bucket]!++;
  distribution.sum_s += value_s;
}

/** A histogram that is filled from the cells when it is asked, in the shape prom-client prints. */
class CellHistogram extends Histogram<CellLabel | 'le'> {
  readonly #name: string;
  readonly #help: string;
  readonly #cells: () => Iterable<Cell>;
  readonly #which: 'duration' | 'ttft' | 'tpot';
  readonly #buckets_s: readonly number[];
  /** Says how an export looks; never observes anything. */
  readonly #empty: Histogram<CellLabel | 'le'>;

  constructor(
    name: string,
    help: string,
    cells: () => Iterable<Cell>,
    which: 'duration' | 'ttft' | 'tpot',
    buckets_s: readonly number[],
  ) {
    super({ name, help, labelNames: cellLabels, registers: [] });
    this.#empty = new Histogram({ name, help, labelNames: cellLabels, registers: [] });
    this.#buckets_s = buckets_s;
    this.#name = name;
    this.#help = help;
    this.#cells = cells;
    this.#which = which;
  }

  override async get(): ReturnType<Histogram<CellLabel | 'le'>['get']> {
    const name = this.#name;
    const base = await this.#empty.get();
    const values: typeof base.values = [];
    for (const cell of this.#cells()) {
      const { counts, sum_s } = cell[this.#which];
      const labels = labelsOf(cell);
      let total = 0;
      counts.forEach((count, bucket) => {
        total += count;
        const le = this.#buckets_s[bucket] ?? '+Inf';
        values.push({ labels: { ...labels, le }, value: total, metricName: `${name}_bucket` });
      });
      values.push({ labels, value: sum_s, metricName: `${name}_sum` });
      values.push({ labels, value: total, metricName: `${name}_count` });
    }
    return { ...base, name, help: this.#help, values };
  }

  /** What the registry prints by, where a metric has it (it does not join labels first); absent from the types. */
  getForPromString(): ReturnType<Histogram<CellLabel | 'le'>['get']> {
    return this.get();
  }
}
