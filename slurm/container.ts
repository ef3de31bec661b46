/** How a command is put into a container, for each runtime a site may have. */
import { HpcserveError } from '../spec/errors/error.ts';
import type { ContainerConfig } from '../spec/site-runtime.ts';

export interface ContainerLaunch {
  /** Further arguments of srun. */
  srun_args: string[];
  /** Words in front of the command. */
  prefix: string[];
}

export interface ContainerInput {
  container: ContainerConfig;
  /** Folders that must be visible inside besides the site's binds: hpcserve itself, state, models. */
  folders: readonly string[];
  /** Names of environment variables that must reach the command. */
  environment_names: readonly string[];
}

/** Variables that Slurm sets for a step and that an agent needs; patterns in podman's form. */
const stepVariables = [
  'SLURM_*',
  'SLURMD_NODENAME',
  'CUDA_VISIBLE_DEVICES',
  'ROCR_VISIBLE_DEVICES',
  'HIP_VISIBLE_DEVICES',
  'ZE_AFFINITY_MASK',
  // Of Slurm's switch/hpe_slingshot: without the VNIs of its job nothing speaks over the fabric.
  'SLINGSHOT_*',
  'TMPDIR',
];

/**
 * @throws E_SLURM_SCRIPT when a bind cannot be written for the runtime.
 * @throws E_CONFIG_CONFLICT when the runtime takes no binds.
 */
export function containerLaunch(input: ContainerInput): ContainerLaunch {
  const { container } = input;
  if (container.runtime === 'none') return { srun_args: [], prefix: [] };
  const image = container.image;
  if (image === undefined)
    throw new HpcserveError('E_CONFIG_MISSING', {
      what: `container runtime ${container.runtime} needs an image`,
      try: 'set runtime.container.image in the site config',
    });
  const binds = allBinds(container.binds, input.folders);
  switch (container.runtime) {
    case 'apptainer':
      return {
        srun_args: [],
        prefix: [
          container.command ?? 'apptainer',
          'exec',
          ...binds.map((bind) => `--bind=${bind}`),
          ...container.flags,
          image,
        ],
      };
    case 'podman':
      return {
        srun_args: [],
        prefix: [
          'bash',
          '-c',
          podmanTask,
          'hpcserve-podman',
          container.command ?? 'podman',
          '--network=host',
          ...binds.map((bind) => `--volume=${bind}`),
          // podman passes no environment by itself; a name without a value takes the caller's value.
          ...[...stepVariables, ...input.environment_names].map((name) => `--env=${name}`),
          ...container.flags,
          image,
        ],
      };
    case 'enroot-pyxis':
      return {
        srun_args: [
          `--container-image=${image}`,
          ...(binds.length === 0 ? [] : [`--container-mounts=${binds.join(',')}`]),
          ...container.flags,
        ],
        prefix: [],
      };
    case 'edf':
      if (container.binds.length > 0)
        throw new HpcserveError('E_CONFIG_CONFLICT', {
          what: 'runtime.container.binds has no effect with runtime edf',
          because: 'srun --environment takes its mounts from the EDF file',
          try: `write the mounts into ${image}, and remove runtime.container.binds`,
        });
      return { srun_args: [`--environment=${image}`, ...container.flags], prefix: [] };
  }
}

/**
 * A container is no child of `podman run`: Slurm's signals do not reach it. podman hands signals on by processes that
 * Slurm signals too, and so kills, and a client that is killed leaves its container behind. Here it is detached,
 * signals are handed on a moment later, and its end is that of the task. Its output comes at the end; the agent's log
 * has it at once.
 */
const podmanTask = `
podman=$1; shift
name=hpcserve-\${SLURM_JOB_ID:-0}-$$
pass() { for _ in 1 2 3; do sleep 0.2; "$podman" kill --signal "$1" "$name" >/dev/null && return; done; }
trap "pass TERM" TERM
trap "pass USR1" USR1
if ! "$podman" run --detach --log-driver=k8s-file --name "$name" "$@" >/dev/null; then
  "$podman" rm --force "$name" >/dev/null 2>&1
  exit 125
fi
until "$podman" wait "$name" >/dev/null & wait $!; do "$podman" container exists "$name" || exit 125; done
trap "" TERM USR1
"$podman" logs "$name"
status=$("$podman" inspect --format "{{.State.ExitCode}}" "$name")
"$podman" rm "$name" >/dev/null
exit "\${status:-125}"`.trim();

/** SOURCE:TARGET[:OPTIONS] of the site's binds and of our folders, each target once. */
function allBinds(binds: readonly string[], folders: readonly string[]): string[] {
  const byTarget = new Map<string, string>();
  for (const bind of [...binds, ...folders.map((folder) => folder.replace(/\/+$/, ''))]) {
    if (bind.includes(',') || (folders.includes(bind) && bind.includes(':')))
      throw new HpcserveError('E_SLURM_SCRIPT', {
        what: `the folder ${JSON.stringify(bind)} cannot be made visible in a container: its name holds "," or ":"`,
        try: 'use a folder without "," and ":" in its path',
      });
    const [source = '', target = source, ...options] = bind.split(':');
    if (!byTarget.has(target)) byTarget.set(target, [source, target, ...options].join(':'));
  }
  return [...byTarget.values()];
}
