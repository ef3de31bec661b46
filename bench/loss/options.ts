/** What is typed behind `npm run bench -- loss`. */
import { parseArgs } from 'node:util';
import { routerReleases } from '../../test/engines/environments.ts';
import { type Loss, losses } from './outcome.ts';

/** What the bench calls our side. */
export const ours = 'hpcserve';

export interface LossOptions {
  /** Without the control. */
  losses: readonly Exclude<Loss, 'nothing'>[];
  streams: number;
  tokens: number;
  /** Systems that are lost an engine; without ours, there is nothing to judge. */
  behind: readonly string[];
}

/** Of the model, less what a prompt may take. */
const tokens_max = 1900;
const streams_max = 8;

/** @throws Error: an option that is not there, or a number that is none or out of bounds */
export function readLossOptions(args: readonly string[]): LossOptions {
  const { values } = parseArgs({
    args: [...args],
    options: {
      loss: { type: 'string', multiple: true },
      behind: { type: 'string', multiple: true },
      streams: { type: 'string', default: '6' },
      tokens: { type: 'string', default: '1500' },
    },
  });
  const all = losses.filter((loss) => loss !== 'nothing');
  const unknown = values.loss?.find((name) => !all.some((loss) => loss === name));
  if (unknown !== undefined) throw new Error(`unknown loss ${unknown}; there are ${all.join(', ')}`);
  const systems = [ours, ...Object.keys(routerReleases)];
  const stranger = values.behind?.find((name) => !systems.includes(name));
  if (stranger !== undefined) throw new Error(`unknown system ${stranger}; there are ${systems.join(', ')}`);
  const number = (name: 'streams' | 'tokens', most: number): number => {
    const value = Number(values[name]);
    if (!Number.isInteger(value) || value < 2 || value > most)
      throw new Error(`--${name} is a whole number from 2 to ${most}, not ${values[name]}`);
    return value;
  };
  return {
    losses: all.filter((loss) => values.loss?.includes(loss) ?? true),
    streams: number('streams', streams_max),
    tokens: number('tokens', tokens_max),
    behind: systems.filter((name) => values.behind?.includes(name) ?? true),
  };
}
