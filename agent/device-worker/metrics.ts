import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { ModelLoad } from '../../spec/agent-state.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import type { FromCompute } from './compute/messages.ts';
import { MoveMetrics } from './moving/move-metrics.ts';
import type { ServedModel } from './served-model.ts';

/** Upper bounds of one iteration's duration, s: from a small model's decode to a long prefill chunk. */
const step_buckets_s = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5];

/** Prometheus metrics of one device worker. */
export class WorkerMetrics {
  readonly #registry = new Registry();
  readonly #prompt: Counter<'model'>;
  readonly #generated: Counter<'model'>;
  readonly #duration: Histogram<'model'>;
  readonly #answered: Counter<'path' | 'status'>;
  readonly #weights: Gauge<'model' | 'layout'>;
  readonly #moves: MoveMetrics;
  readonly #gauges: { gauge: Gauge<'model'>; read: (load: ModelLoad) => number }[];

  constructor(device: string) {
    this.#registry.setDefaultLabels({ device });
    const registers = [this.#registry];
    const counter = <T extends string>(name: string, help: string, labelNames: T[]) =>
      new Counter({ name, help, labelNames, registers });
    this.#prompt = counter('hpcserve_prompt_tokens_total', 'Prompt tokens computed.', ['model']);
    this.#generated = counter('hpcserve_generated_tokens_total', 'Tokens generated.', ['model']);
    this.#answered = counter('hpcserve_worker_requests_total', 'Requests answered.', ['path', 'status']);
    this.#duration = new Histogram({
      name: 'hpcserve_step_seconds',
      help: 'Duration of one iteration of an engine.',
      labelNames: ['model'],
      buckets: step_buckets_s,
      registers,
    });
    this.#weights = new Gauge({
      name: 'hpcserve_weight_bytes',
      help: 'Weights by the layout they lie in, which says whose kernels multiply (PACKED_*: our own).',
      labelNames: ['model', 'layout'],
      registers,
    });
    const gauge = (name: string, help: string, read: (load: ModelLoad) => number) => ({
      gauge: new Gauge({ name, help, labelNames: ['model'], registers }),
      read,
    });
    this.#moves = new MoveMetrics(this.#registry);
    this.#gauges = [
      gauge('hpcserve_sequences_running', 'Sequences in the batch.', ({ running }) => running),
      gauge('hpcserve_sequences_waiting', 'Sequences waiting for a place.', ({ waiting }) => waiting),
      gauge('hpcserve_kv_tokens_total', 'KV cache size in tokens.', (load) => load.kv_tokens_total),
      gauge('hpcserve_kv_tokens_used', 'KV cache tokens in use.', (load) => load.kv_tokens_used),
    ];
  }

  /** What moved with its keys and values, as it is told to the agent. */
  moves(report: MovesReport): void {
    this.#moves.set(report);
  }

  step({ name, prefill_tokens, outputs, elapsed_us }: FromCompute & { type: 'step' }): void {
    const generated = outputs.reduce((sum, { token }) => sum + (token ? 1 : 0), 0);
    this.#prompt.inc({ model: name }, prefill_tokens);
    this.#generated.inc({ model: name }, generated);
    if (elapsed_us > 0) this.#duration.observe({ model: name }, elapsed_us / 1e6);
  }

  request(path: string, status: number): void {
    this.#answered.inc({ path, status: String(status) });
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  async text(models: readonly ServedModel[]): Promise<string> {
    for (const { gauge, read } of this.#gauges) {
      gauge.reset();
      for (const { load } of models) gauge.set({ model: load.name }, read(load));
    }
    this.#weights.reset();
    for (const { config, stats } of models)
      for (const [layout, bytes] of Object.entries(stats?.layouts ?? {}))
        this.#weights.set({ model: config.name, layout }, bytes);
    return this.#registry.metrics();
  }
}
