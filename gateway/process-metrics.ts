import { AggregatorRegistry, collectDefaultMetrics, Registry } from 'prom-client';
import type { MetricsJson } from './processes/messages.ts';

/**
 * How often Node looks how late its event loop is, which is a timer of its own. Lower: short delays are seen too;
 * higher: less is computed by a gateway that has nothing to do (every 10 ms, prom-client’s default, take 0.3% of a
 * core). Where nothing is late, the metrics show this time itself.
 */
const event_loop_ms = 500;
const prefix = 'hpcserve_gateway_';

/** What Node measures of a process of the gateway. */
export class ProcessMetrics {
  readonly #registry = new Registry();

  constructor() {
    collectDefaultMetrics({
      register: this.#registry,
      prefix,
      eventLoopMonitoringPrecision: event_loop_ms,
    });
    // Gauges with the names of counters, which say what those by type say, too.
    for (const what of ['handles', 'requests', 'resources'])
      this.#registry.removeSingleMetric(`${prefix}nodejs_active_${what}_total`);
  }

  json(): Promise<MetricsJson> {
    return this.#registry.getMetricsAsJSON();
  }

  /**
   * As Prometheus reads it, of several processes together: times and memory added up, delays of the event loop as
   * prom-client says of each (means, the least, the longest); when it began, of this process.
   */
  async render(others: readonly MetricsJson[]): Promise<string> {
    if (others.length === 0) return await this.#registry.metrics();
    const together = AggregatorRegistry.aggregate([await this.json(), ...others]);
    const began = await this.#registry.getSingleMetricAsString(`${prefix}process_start_time_seconds`);
    return `${await together.metrics()}${began}\n`;
  }
}
