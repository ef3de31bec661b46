/** What came of an answer whose engine was lost, as its client can tell, and what came of all of them. */
import type { BenchResult } from '../result.ts';

export interface Answer {
  text: string;
  /** It said why it ended, as a whole answer does. */
  finished: boolean;
  /** Why it did not end in order; absent: it did, as far as the client can tell. */
  error?: string;
  /** Longest time without a token, to the end of the answer. */
  pause_ms: number;
}

/**
 * `broken`: the client was told, or waited in vain. `falsely complete`: it ended in order, too early. `different`: it
 * ended in order, and says something else.
 */
export type Outcome = 'whole' | 'broken' | 'falsely complete' | 'different';

/** @param expected the text of an undisturbed run */
export function outcomeOf({ text, finished, error }: Answer, expected: string): Outcome {
  if (error !== undefined) return 'broken';
  if (text === expected && finished) return 'whole';
  return expected.startsWith(text) ? 'falsely complete' : 'different';
}

/** What is done to the engine; the control does nothing. */
export const losses = ['nothing', 'SIGSTOP', 'network cut', 'SIGKILL', 'scancel'] as const;
export type Loss = (typeof losses)[number];

/** All streams of one system in one loss. */
export interface Tally {
  system: string;
  loss: Loss;
  streams: number;
  /** Of them, those on the engine that was lost. */
  on_lost: number;
  broken: number;
  falsely_complete: number;
  different: number;
  pause_ms_max: number;
  /** Words for what went wrong first. */
  why?: string;
}

export function tallyOf(
  { system, loss, on_lost }: Pick<Tally, 'system' | 'loss' | 'on_lost'>,
  answers: readonly Answer[],
  expected: readonly string[],
): Tally {
  const outcomes = answers.map((answer, at) => outcomeOf(answer, expected[at]!));
  const count = (outcome: Outcome): number => outcomes.filter((each) => each === outcome).length;
  const tally: Tally = {
    system,
    loss,
    streams: answers.length,
    on_lost,
    broken: count('broken'),
    falsely_complete: count('falsely complete'),
    different: count('different'),
    pause_ms_max: Math.max(...answers.map(({ pause_ms }) => pause_ms)),
  };
  const why = answers.find(({ error }) => error !== undefined)?.error;
  if (why !== undefined) tally.why = why;
  return tally;
}

const notWhole = ({ broken, falsely_complete, different }: Tally): number =>
  broken + falsely_complete + different;

/** Rows of ours, each of which is to be 0, and of each router beside ours in the same loss. */
export function lossRows(tallies: readonly Tally[], ours: string): BenchResult[] {
  return tallies
    .filter(({ system }) => system === ours)
    .flatMap((own) => {
      const how = own.loss === 'nothing' ? 'undisturbed' : `after ${own.loss}`;
      const zero = (what: string, count: number): BenchResult => ({
        what: `answers ${what} ${how}, of ${own.streams} (${own.on_lost} there)`,
        unit: '',
        ours: count,
        peer: '',
        theirs: null,
        ratio: null,
        bar: '0',
        holds: count === 0,
      });
      const others = tallies.filter(({ system, loss }) => loss === own.loss && system !== ours);
      return [
        zero('broken', own.broken),
        zero('falsely complete', own.falsely_complete),
        zero('different', own.different),
        ...others.flatMap((other) => [
          beside(
            `answers not whole ${how}, of ${other.streams} (${other.on_lost} there)`,
            '',
            own,
            other,
            notWhole,
          ),
          beside(`longest pause ${how}`, 's', own, other, ({ pause_ms_max }) => pause_ms_max / 1000),
        ]),
      ];
    });
}

function beside(
  what: string,
  unit: string,
  own: Tally,
  other: Tally,
  figure: (tally: Tally) => number,
): BenchResult {
  const [ours, theirs] = [figure(own), figure(other)];
  return { what, unit, ours, peer: other.system, theirs, ratio: null, bar: '', holds: null };
}

/** For people, in Markdown. */
export function lossTable(tallies: readonly Tally[]): string[] {
  const line = (cells: readonly (string | number)[]): string => `| ${cells.join(' | ')} |`;
  return [
    line([
      'what happens',
      'behind',
      'streams (there)',
      'broken',
      'falsely complete',
      'different',
      'longest pause',
    ]),
    line(['---', '---', '---:', '---:', '---:', '---:', '---:']),
    ...tallies.map((tally) =>
      line([
        tally.loss,
        tally.system,
        `${tally.streams} (${tally.on_lost})`,
        tally.broken,
        tally.falsely_complete,
        tally.different,
        `${(tally.pause_ms_max / 1000).toFixed(1)} s`,
      ]),
    ),
  ];
}
