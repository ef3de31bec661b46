import type { ModelLoad } from '../../spec/agent-state.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import type { WeightSources } from '../../spec/weight-sources.ts';
import type { FromWorker } from '../device-worker/messages.ts';

/** What is so much more or less is told. Lower: plans know sooner; higher: fewer writes of the state file. */
const news_share = 0.25;

/** What a device worker says of its models beside their state, by name. Of one that is gone nothing is known. */
export class ModelReports {
  /** Bytes of the weights by layout; see `EngineStats`. */
  layouts: Readonly<Record<string, Readonly<Record<string, number>>>> = {};
  streamed: Readonly<Record<string, StreamedWeights>> = {};
  /** How they were loaded last, those of stages included. */
  loaded: Readonly<Record<string, WeightSources>> = {};

  /** A model came to a state. */
  take({ name, state, layouts, streamed }: FromWorker & { type: 'model' }): void {
    if (state === 'unloaded' || state === 'failed') {
      this.layouts = without(this.layouts, name);
      this.streamed = without(this.streamed, name);
      this.loaded = without(this.loaded, name);
      return;
    }
    if (layouts !== undefined) this.layouts = { ...this.layouts, [name]: layouts };
    if (streamed !== undefined) this.streamed = { ...this.streamed, [name]: streamed };
  }

  /** The weights of a model are there. */
  takeLoaded({ name, loaded }: FromWorker & { type: 'weights_loaded' }): void {
    this.loaded = { ...this.loaded, [name]: loaded };
  }

  /** @returns whether what is measured now is worth a write of the agent's state */
  measured(loads: readonly ModelLoad[]): boolean {
    let news = false;
    for (const { name, streamed } of loads) {
      const told = this.streamed[name];
      if (told === undefined || streamed === undefined || !areNews(told, streamed)) continue;
      this.streamed = { ...this.streamed, [name]: streamed };
      news = true;
    }
    return news;
  }
}

function areNews(told: StreamedWeights, now: StreamedWeights): boolean {
  const [before, after] = [measuredOf(told), measuredOf(now)];
  return (
    before.facts !== after.facts ||
    after.values.some(
      (value, index) => Math.abs(value - before.values[index]!) > news_share * before.values[index]!,
    )
  );
}

/** What changes from step to step, and what does not. */
function measuredOf({
  link_bytes_per_s = 0,
  link_bytes_per_s_max = 0,
  experts_at_hand,
  because,
  ...rest
}: StreamedWeights): {
  values: readonly number[];
  facts: string;
} {
  const rates = [link_bytes_per_s, link_bytes_per_s_max];
  // What a reason says of rates changes with them.
  if (experts_at_hand === undefined) return { values: rates, facts: JSON.stringify([rest, because?.length]) };
  const { step_bytes, ...facts } = rest;
  return {
    values: [...rates, step_bytes, experts_at_hand],
    facts: JSON.stringify([facts, because?.length]),
  };
}

function without<T>(all: Readonly<Record<string, T>>, name: string): Readonly<Record<string, T>> {
  return Object.fromEntries(Object.entries(all).filter(([other]) => other !== name));
}
