import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { nativeFolderVariable } from '../native/libraries.ts';
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
  /** Whether suites of the native engine are to compute on a Vulkan device (`test/device-run.ts`). */
  vulkan: boolean;
  /** The device that they are to compute on, by ggml's name, with a folder of libraries that know it. */
  device: { name: string; library_dir: string } | undefined;
}

/** What was typed behind `npm test --`. @throws Error in the words for a person */
export function parseTestArguments(argv: readonly string[]): TestArguments {
  const { values, positionals } = parseArgs({
    args: [...argv],
    options: {
      slurm: { type: 'string', multiple: true },
      node: { type: 'string' },
      vulkan: { type: 'boolean', default: false },
      device: { type: 'string' },
      libraries: { type: 'string', default: process.env[nativeFolderVariable] },
      turn: { type: 'string' },
      all: { type: 'boolean', default: false },
    },
    allowPositionals: true,
  });
  if (values.node !== undefined && !/^\d+$/.test(values.node))
    throw new Error(`--node takes a major version, such as 22; it was ${JSON.stringify(values.node)}`);
  const releases = (values.slurm ?? []).flatMap((text) => text.split(',')).map(slurmRelease);
  const { vulkan } = values;
  const device = deviceOf(values.device, values.libraries);
  const onDevice = vulkan || device !== undefined;
  if (vulkan && device) throw new Error('--vulkan names a device, and so does --device: leave one out');
  if (onDevice && (releases.length > 0 || values.node !== undefined))
    throw new Error('--vulkan and --device are runs of their own: leave --slurm and --node out');
  if (
    (values.all || values.turn !== undefined) &&
    (positionals.length > 0 || releases.length > 0 || onDevice)
  )
    throw new Error(
      '--all and --turn are for a run without names, --slurm, --vulkan and --device: leave them out',
    );
  const extent = extentOf(values.turn, values.all);
  return { filters: positionals, extent, releases, node: values.node, vulkan, device };
}

function deviceOf(name: string | undefined, library_dir: string | undefined): TestArguments['device'] {
  if (name === undefined) return undefined;
  if (library_dir === undefined || !existsSync(library_dir))
    throw new Error(
      '--device needs --libraries FOLDER, with the libraries of ggml that know it (`hpcserve native add` makes one)',
    );
  return { name, library_dir: resolve(library_dir) };
}

function extentOf(turn: string | undefined, all: boolean): Extent {
  if (turn === undefined) return all ? 'all' : 'short';
  if (all) throw new Error('--all has every turn in it: leave --turn out');
  if (!/^\d+$/.test(turn) || Number(turn) < 1 || Number(turn) > turnCount)
    throw new Error(`--turn takes 1 to ${turnCount}; it was ${JSON.stringify(turn)}`);
  return { turn: Number(turn) };
}
