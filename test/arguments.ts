import { parseArgs } from 'node:util';
import { type SlurmRelease, slurmRelease } from './cluster/slurm-folder.ts';

export interface TestArguments {
  /** Words of the paths of files to run; none: all. */
  filters: string[];
  /** Releases of Slurm that the end-to-end suites are to run on; none: a usual run, on that of this machine. */
  releases: SlurmRelease[];
  /** Major version of the Node that everything is to run on; absent: this one. */
  node: string | undefined;
}

/** What was typed behind `npm test --`. @throws Error in the words for a person */
export function parseTestArguments(argv: readonly string[]): TestArguments {
  const { values, positionals } = parseArgs({
    args: [...argv],
    options: { slurm: { type: 'string', multiple: true }, node: { type: 'string' } },
    allowPositionals: true,
  });
  if (values.node !== undefined && !/^\d+$/.test(values.node))
    throw new Error(`--node takes a major version, such as 22; it was ${JSON.stringify(values.node)}`);
  const releases = (values.slurm ?? []).flatMap((text) => text.split(',')).map(slurmRelease);
  return { filters: positionals, releases, node: values.node };
}
