/** What gateways were asked for over the last while, by model: what `scale` decides on. */
import type { DemandSample } from '../../solver/scaling/scale.ts';
import { type DemandFile, type ModelDemand, readDemand } from '../../spec/demand.ts';

interface Watched {
  samples: DemandSample[];
  asked_ms?: number;
  ttft_ms?: number;
}

/** A gateway that has written nothing for so long has ended, or nobody asks it: what it had in flight is over, ms. */
const silent_ms = 15_000;

export class DemandWatch {
  readonly #root: string;
  readonly #files = new Map<number, DemandFile>();
  readonly #models = new Map<string, Watched>();

  /** @param root `StateLayout.root` of the site */
  constructor(root: string) {
    this.#root = root;
  }

  /** Reads what gateways say now. Models that were watched before get a sample each, also where nobody asked. */
  look(now_ms: number, window_ms: number): void {
    const concurrency = new Map<string, number>();
    for (const [number, file] of readDemand(this.#root)) {
      const before = this.#files.get(number);
      this.#files.set(number, file);
      for (const demand of file.models) {
        const mean = meanOf(demand, file, before, now_ms);
        concurrency.set(demand.model, (concurrency.get(demand.model) ?? 0) + mean);
        const watched = this.#of(demand.model);
        watched.asked_ms = Math.max(watched.asked_ms ?? 0, demand.asked_ms);
        if (demand.ttft_ms !== undefined) watched.ttft_ms = demand.ttft_ms;
      }
    }
    for (const [model, { samples }] of this.#models) {
      samples.push({ at_ms: now_ms, concurrency: concurrency.get(model) ?? 0 });
      // One older than the window stays: it shows that somebody looked for all of it.
      while (samples.length > 1 && samples[1]!.at_ms < now_ms - window_ms) samples.shift();
    }
  }

  /** Of a model under all its names, from the first time on that it is asked for here. */
  demandOf(names: readonly string[]): Watched {
    const all = names.map((name) => this.#of(name));
    const [first = [], ...others] = all.map(({ samples }) => samples);
    const asked = all.flatMap(({ asked_ms }) => (asked_ms === undefined ? [] : [asked_ms]));
    const ttft_ms = all.find((each) => each.ttft_ms !== undefined)?.ttft_ms;
    return {
      samples: first.map(({ at_ms, concurrency }) => ({
        at_ms,
        concurrency: others.reduce(
          (sum, samples) => sum + (samples.find((each) => each.at_ms === at_ms)?.concurrency ?? 0),
          concurrency,
        ),
      })),
      ...(asked.length > 0 ? { asked_ms: Math.max(...asked) } : {}),
      ...(ttft_ms === undefined ? {} : { ttft_ms }),
    };
  }

  #of(model: string): Watched {
    const known = this.#models.get(model);
    if (known) return known;
    const watched: Watched = { samples: [] };
    this.#models.set(model, watched);
    return watched;
  }
}

/** Requests at once, on average since the file before. */
function meanOf(
  demand: ModelDemand,
  file: DemandFile,
  before: DemandFile | undefined,
  now_ms: number,
): number {
  const old = before?.models.find(({ model }) => model === demand.model);
  const span_s = before === undefined ? 0 : (file.measured_ms - before.measured_ms) / 1000;
  const same = before?.started_ms === file.started_ms && old !== undefined;
  if (same && span_s > 0) return (demand.request_s - old.request_s) / span_s;
  return now_ms - file.measured_ms < silent_ms ? demand.in_flight : 0;
}
