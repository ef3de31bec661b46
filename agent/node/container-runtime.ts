/** Container runtimes that a prefix of the site config may begin with, as far as their options are known. */
import { basename } from 'node:path';

/** Words of a prefix, and where it names a runtime whose options are known. */
export interface ContainerRuntime {
  /** How it is told of a bind: by a variable, or by options behind its subcommand. */
  kind: 'apptainer' | 'podman' | 'enroot';
  /** Behind its subcommand. */
  options_at: number;
}

const subcommands: Record<ContainerRuntime['kind'], readonly string[]> = {
  apptainer: ['exec', 'run'],
  podman: ['run'],
  enroot: ['start'],
};
const programs: Readonly<Record<string, ContainerRuntime['kind']>> = {
  apptainer: 'apptainer',
  singularity: 'apptainer',
  podman: 'podman',
  'podman-hpc': 'podman',
  docker: 'podman',
  nerdctl: 'podman',
  enroot: 'enroot',
};

/** Undefined where the prefix names none that is known. */
export function containerRuntimeOf(prefix: readonly string[]): ContainerRuntime | undefined {
  const at = prefix.findIndex((word) => programs[basename(word)] !== undefined);
  if (at < 0) return undefined;
  const kind = programs[basename(prefix[at]!)]!;
  const subcommand = prefix.findIndex((word, index) => index > at && subcommands[kind].includes(word));
  return subcommand < 0 ? undefined : { kind, options_at: subcommand + 1 };
}
