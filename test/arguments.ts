import { parseArgs } from 'node:util';
import { type SlurmRelease, slurmRelease } from './cluster/slurm-folder.ts';
import { type Extent, turnCount } from './turns.ts';

export interface TestArguments {
  /** Words of the paths of files to run; none: as many as the extent says. */
  filters: string[];
  extent: Extent;
  /** Releases of Slurm that the end-to-end suites are to run on; none: a usual run, on that of this machine. */
  releases: SlurmRelease[];
  /** Major version of the Node that everything is to run on; absent: this one. */
  node: string | undefined;
  /** Whether suites of the native engine are to compute on a Vulkan device (`test/vulkan-suites.ts`). */
  vulkan: boolean;
}

/** What was typed behind `npm test --`. @throws Error in the words for a person */
export function parseTestArguments(argv: readonly string[]): TestArguments {
  const { values, positionals } = parseArgs({
    args: [...argv],
    options: {
      slurm: { type: 'string', multiple: true },
      node: { type: 'string' },
      vulkan: { type: 'boolean', default: false },
      turn: { type: 'string' },
      all: { type: 'boolean', default: false },
    },
    allowPositionals: true,
  });
  if (values.node !== undefined && !/^\d+$/.test(values.node))
    throw new Error(`--node takes a major version, such as 22; it was ${JSON.stringify(values.node)}`);
  const releases = (values.slurm ?? []).flatMap((text) => text.split(',')).map(slurmRelease);
  if (values.vulkan && (releases.length > 0 || values.node !== undefined))
    throw new Error('--vulkan is a run of its own: leave --slurm and --node out');
  if (
    (values.all || values.turn !== undefined) &&
    (positionals.length > 0 || releases.length > 0 || values.vulkan)
  )
    throw new Error('--all and --turn are for a run without names, --slurm and --vulkan: leave them out');
  const extent = extentOf(values.turn, values.all);
  return { filters: positionals, extent, releases, node: values.node, vulkan: values.vulkan };
}

function extentOf(turn: string | undefined, all: boolean): Extent {
  if (turn === undefined) return all ? 'all' : 'short';
  if (all) throw new Error('--all has every turn in it: leave --turn out');
  if (!/^\d+$/.test(turn) || Number(turn) < 1 || Number(turn) > turnCount)
    throw new Error(`--turn takes 1 to ${turnCount}; it was ${JSON.stringify(turn)}`);
  return { turn: Number(turn) };
}
