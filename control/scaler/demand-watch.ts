import { join } from 'node:path';
import { z } from 'zod';
import { makeFolders } from '../../host/make-folders.ts';
import { readJsonIfThere, writeFileAtomically } from '../../host/whole-file.ts';
import type { DemandSample } from '../../solver/scaling/scale.ts';
import { type DemandFile, demandFileSchema, type MeasuredDemand, readDemand } from '../../spec/demand.ts';
import { keeperFiles, type StateLayout } from '../../spec/state-layout.ts';

interface Watched {
  samples: DemandSample[];
  asked_ms?: number;
  ttft_ms?: number;
}

/** A gateway that has written nothing for so long has ended, or nobody asks it: what it had in flight is over, ms. */
const silent_ms = 15_000;

const sampleSchema = z.object({ at_ms: z.number(), concurrency: z.number() });
const keptSchema = z.object({
  format: z.literal(1),
  files: z.array(z.tuple([z.number(), demandFileSchema])),
  models: z.array(z.tuple([z.string(), z.object({ samples: z.array(sampleSchema) })])),
});

/** Between two writes of what is kept, ms: what a keeper that is killed forgets. */
const keep_ms = 10_000;

/**
 * What gateways were asked for over the last while, by model: what `scale` decides on. Kept in a file beside, so that a
 * keeper that is started again, or one that looks once from cron, knows what came before.
 */
export class DemandWatch {
  readonly #layout: StateLayout;
  readonly #files: Map<number, DemandFile>;
  readonly #models: Map<string, Watched>;
  #kept_ms = Number.NEGATIVE_INFINITY;

  constructor(layout: StateLayout) {
    this.#layout = layout;
    const kept = readKept(layout);
    this.#files = new Map(kept?.files);
    this.#models = new Map(kept?.models);
  }

  /** Reads what gateways say now. Models that were watched before get a sample each, also where nobody asked. */
  read(now_ms: number, window_ms: number): void {
    const concurrency = new Map<string, number>();
    for (const [number, file] of readDemand(this.#layout.root)) {
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
    if (now_ms - this.#kept_ms >= keep_ms) this.#keep(now_ms);
  }

  #keep(now_ms: number): void {
    this.#kept_ms = now_ms;
    const kept: z.infer<typeof keptSchema> = {
      format: 1,
      files: [...this.#files],
      models: [...this.#models].map(([model, { samples }]) => [model, { samples }]),
    };
    makeFolders(this.#layout.keeper_folder);
    writeFileAtomically(keptPath(this.#layout), `${JSON.stringify(kept)}\n`);
  }

  /** Of a model under all its names, from the first time on that it is asked for here. */
  demandOf(names: readonly string[]): Watched {
    const all = names.map((name) => this.#of(name));
    const [first = [], ...others] = all.map(({ samples }) => samples);
    const asked = all.flatMap(({ asked_ms }) => (asked_ms === undefined ? [] : [asked_ms]));
    const ttft_ms = all.find((each) => each.ttft_ms !== undefined)?.ttft_ms;
    const watched: Watched = {
      samples: first.map(({ at_ms, concurrency }) => ({
        at_ms,
        concurrency: others.reduce(
          (sum, samples) => sum + (samples.find((each) => each.at_ms === at_ms)?.concurrency ?? 0),
          concurrency,
        ),
      })),
    };
    if (asked.length > 0) watched.asked_ms = Math.max(...asked);
    if (ttft_ms !== undefined) watched.ttft_ms = ttft_ms;
    return watched;
  }

  #of(model: string): Watched {
    const known = this.#models.get(model);
    if (known) return known;
    const watched: Watched = { samples: [] };
    this.#models.set(model, watched);
    return watched;
  }
}

const keptPath = ({ keeper_folder }: StateLayout): string => join(keeper_folder, keeperFiles.demand);

/** A damaged file is as none: then a whole window passes before anything is taken away. */
function readKept(layout: StateLayout): z.infer<typeof keptSchema> | undefined {
  try {
    return keptSchema.safeParse(readJsonIfThere(keptPath(layout))).data;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** Requests at once, on average since the file before. */
function meanOf(
  demand: MeasuredDemand,
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
