/** Streams through one or several systems at once, and a loss in the middle of them. */
import { type Endpoint, LiveStream } from './live-stream.ts';
import { type Answer, type Loss, type Tally, tallyOf } from './outcome.ts';

export interface System {
  name: string;
  endpoint: Endpoint;
}

/** What the systems of a trial have their engines by, two of them. */
export interface Engines {
  /** How many of the streams of a system that have just begun are on the engine that can be lost. */
  onLost(streams: readonly LiveStream[]): Promise<number>;
  /** Resolves once it is done to that engine. */
  lose(loss: Loss): Promise<void>;
  /** Both serve again, as before. */
  restore(loss: Loss): Promise<void>;
}

export interface Load {
  prompts: readonly string[];
  /** Of each answer. Lower: it may be over before the loss. */
  tokens: number;
  /** Events that every stream has before the loss. */
  events_before: number;
}

interface Seen {
  system: string;
  on_lost: number;
  answers: Answer[];
}

async function stream(
  systems: readonly System[],
  { prompts, tokens, events_before }: Load,
  engines: Engines,
  loss: Loss,
): Promise<Seen[]> {
  const begun: { system: string; on_lost: number; streams: LiveStream[] }[] = [];
  for (const { name, endpoint } of systems) {
    const streams = prompts.map((prompt) => new LiveStream(endpoint, prompt, tokens));
    await Promise.all(streams.map((each) => each.until(1)));
    begun.push({ system: name, on_lost: await engines.onLost(streams), streams });
  }
  await Promise.all(begun.flatMap(({ streams }) => streams.map((each) => each.until(events_before))));
  await engines.lose(loss);
  return Promise.all(
    begun.map(async ({ streams, ...rest }) => ({
      ...rest,
      answers: await Promise.all(streams.map(({ answer }) => answer)),
    })),
  );
}

/** What each system answers when nothing happens. @throws Error where an answer is not whole */
export async function undisturbed(
  systems: readonly System[],
  load: Load,
  engines: Engines,
): Promise<Map<string, string[]>> {
  const seen = await stream(systems, load, engines, 'nothing');
  for (const { system, answers } of seen)
    for (const { error, finished } of answers)
      if (error !== undefined || !finished)
        throw new Error(
          `undisturbed, an answer through ${system} is not whole: ${error ?? 'it did not finish'}`,
        );
  return new Map(seen.map(({ system, answers }) => [system, answers.map(({ text }) => text)]));
}

/**
 * One loss, under the streams of all systems.
 * @throws Error where a system has no stream on the engine that is lost: its figures would say nothing
 */
export async function runLoss(
  systems: readonly System[],
  load: Load,
  engines: Engines,
  loss: Loss,
  expected: ReadonlyMap<string, readonly string[]>,
): Promise<Tally[]> {
  const seen = await stream(systems, load, engines, loss);
  const without = seen.find(({ on_lost }) => on_lost === 0);
  if (without) throw new Error(`no stream of ${without.system} was on the engine that was lost (${loss})`);
  return seen.map(({ system, on_lost, answers }) =>
    tallyOf({ system, loss, on_lost }, answers, expected.get(system)!),
  );
}
