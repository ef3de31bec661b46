import { parseArgs } from 'node:util';
import { type SlurmRelease, slurmRelease } from './cluster/slurm-folder.ts';

export interface TestArguments {
  /** Words of the paths of files to run; none: all. */
  filters: string[];
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
    },
    allowPositionals: true,
  });
  if (values.node !== undefined && !/^\d+$/.test(values.node))
    throw new Error(`--node takes a major version, such as 22; it was ${JSON.stringify(values.node)}`);
  const releases = (values.slurm ?? []).flatMap((text) => text.split(',')).map(slurmRelease);
  if (values.vulkan && (releases.length > 0 || values.node !== undefined))
    throw new Error('--vulkan is a run of its own: leave --slurm and --node out');
  return { filters: positionals, releases, node: values.node, vulkan: values.vulkan };
}
