import type { ModelLoad } from '../../spec/agent-state.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import type { FromWorker } from '../device-worker/messages.ts';

/** A link that gives so much more or less is told. Lower: plans know sooner; higher: fewer writes of the state file. */
const news_share = 0.25;

/** What a device worker says of its models beside their state, by name. Of one that is gone nothing is known. */
export class ModelReports {
  /** Bytes of the weights by layout; see `EngineStats`. */
  layouts: Readonly<Record<string, Readonly<Record<string, number>>>> = {};
  streamed: Readonly<Record<string, StreamedWeights>> = {};

  /** A model came to a state. */
  take({ name, state, layouts, streamed }: FromWorker & { type: 'model' }): void {
    if (state === 'unloaded' || state === 'failed') {
      this.layouts = without(this.layouts, name);
      this.streamed = without(this.streamed, name);
      return;
    }
    if (layouts !== undefined) this.layouts = { ...this.layouts, [name]: layouts };
    if (streamed !== undefined) this.streamed = { ...this.streamed, [name]: streamed };
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
  const { link_bytes_per_s: before = 0, ...others } = told;
  const { link_bytes_per_s: rate = 0, ...same } = now;
  // What a reason says of rates changes with them.
  const facts = ({ because, ...rest }: typeof others): string => JSON.stringify([rest, because?.length]);
  return facts(others) !== facts(same) || Math.abs(rate - before) > news_share * before;
}

function without<T>(all: Readonly<Record<string, T>>, name: string): Readonly<Record<string, T>> {
  return Object.fromEntries(Object.entries(all).filter(([other]) => other !== name));
}
