/** What is typed behind `npm run bench -- routers`. */
import { parseArgs } from 'node:util';

export const partNames = ['events', 'requests', 'latency', 'memory', 'start'] as const;
export type PartName = (typeof partNames)[number];

export interface RoutersOptions {
  /** In the order of `partNames`: latency goes by the requests of each. */
  parts: readonly PartName[];
  /** In each of which every router is measured once. */
  rounds: number;
  /** A checkout of OpenTela; absent: it is not measured. */
  opentela?: string;
}

/** @throws Error: an option or a part that is not there, or no number of rounds */
export function readRoutersOptions(
  args: readonly string[],
  environment: NodeJS.ProcessEnv = process.env,
): RoutersOptions {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: { rounds: { type: 'string', default: '5' }, opentela: { type: 'string' } },
  });
  const unknown = positionals.find((name) => !partNames.some((part) => part === name));
  if (unknown !== undefined) throw new Error(`unknown part ${unknown}; there are ${partNames.join(', ')}`);
  const rounds = Number(values.rounds);
  if (!Number.isInteger(rounds) || rounds < 1)
    throw new Error(`--rounds is a whole number from 1, not ${values.rounds}`);
  const asked = partNames.filter((part) => positionals.length === 0 || positionals.includes(part));
  const options: RoutersOptions = { parts: asked, rounds };
  const opentela = values.opentela ?? environment.HPCSERVE_OPENTELA;
  if (opentela !== undefined) options.opentela = opentela;
  return options;
}
