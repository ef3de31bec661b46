/** A server that somebody starts in an allocation of their own, as a launch of one unit on this node. */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { makeFolders } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type LaunchSpec, launchSchema, type UnitSpec } from '../../spec/launch.ts';
import { modelSchema } from '../../spec/model-yaml.ts';
import { launchFiles, runFolder } from '../../spec/state-layout.ts';
import { networkOf, type PrepareFacts } from '../runner/prepare-launch.ts';
import { Delegations } from '../state/delegations.ts';
import { providerName } from '../state/provider-name.ts';
import type { LoadedSite } from '../state/site-files.ts';

export interface RunRequest {
  /** Name under which the model is served. */
  model: string;
  /** With exactly one of {socket} and {port}. */
  command: readonly string[];
  context_tokens: number;
  max_sequences: number;
  /** GPUs of this node that the server takes; 0: it computes on the CPU. */
  gpus: number;
}

/** GPUs that the environment of a job step says it may use; undefined where it says nothing. */
export function visibleGpus(environment: Readonly<Record<string, string | undefined>>): number | undefined {
  const listed = environment.CUDA_VISIBLE_DEVICES ?? environment.ROCR_VISIBLE_DEVICES;
  if (listed !== undefined)
    return listed.split(',').filter((each) => /\w/.test(each) && each !== '-1').length;
  const counted = environment.SLURM_GPUS_ON_NODE;
  return counted !== undefined && /^\d+$/.test(counted) ? Number(counted) : undefined;
}

export interface PreparedRun {
  launch: LaunchSpec;
  launch_file: string;
}

/**
 * Writes the launch of a server of one's own that a node agent on this node is to run.
 * @throws E_USAGE where the command has no place to listen at, E_MESH_FOLDER where no gateway has made one yet
 */
export function prepareRun(request: RunRequest, loaded: LoadedSite, facts: PrepareFacts): PreparedRun {
  requireMesh(loaded);
  const named = ['{socket}', '{port}'].filter((name) => request.command.some((word) => word.includes(name)));
  if (named.length !== 1)
    throw new HpcserveError('E_USAGE', {
      what: `the command names ${named.length === 0 ? 'neither {socket} nor {port}' : 'both {socket} and {port}'}`,
      because: 'the server must be told where to listen, and where that is must be known',
      try: 'hpcserve run --model NAME -- SERVER … {socket}',
    });
  const model = modelSchema.parse({
    name: request.model,
    source: request.command[0],
    engine: 'command',
    command: [...request.command],
    context_tokens: request.context_tokens,
    max_sequences: request.max_sequences,
  });
  const count = Math.max(1, request.gpus);
  // Whoever has the allocation ends it when they like.
  return writeRun(loaded, facts, 'scavenger', (launch_folder) => [
    {
      unit: `${request.model.replace(/[^A-Za-z0-9.-]/g, '-')}-0`,
      node_index: 0,
      engine: 'command',
      // Its command says what it reads.
      model_path: launch_folder,
      model,
      device_kind: request.gpus > 0 ? 'gpu' : 'cpu',
      device_count: count,
      tensor: count,
      pipeline: 1,
      first_device: 0,
      threads: 1,
      context_tokens: request.context_tokens,
      kv_tokens: request.context_tokens * request.max_sequences,
      weight_bytes: 0,
    },
  ]);
}

/**
 * Writes the launch of a node agent that serves nothing and stands in the mesh with what its node has.
 * @throws E_MESH_FOLDER where no gateway has made one yet
 */
export function prepareJoin(loaded: LoadedSite, facts: PrepareFacts, tier: LaunchSpec['tier']): PreparedRun {
  requireMesh(loaded);
  return writeRun(loaded, facts, tier, () => []);
}

function requireMesh({ layout }: LoadedSite): void {
  if (existsSync(layout.mesh_folder)) return;
  throw new HpcserveError('E_MESH_FOLDER', {
    what: `there is nothing to join: ${layout.mesh_folder} does not exist`,
    because: 'no gateway of this site has run yet, or its state folder is not mounted here',
    try: 'hpcserve gateway start',
  });
}

function writeRun(
  { site, layout }: LoadedSite,
  { user, environment }: PrepareFacts,
  tier: LaunchSpec['tier'],
  units: (launchFolder: string) => UnitSpec[],
): PreparedRun {
  const launch_id = randomBytes(8).toString('hex');
  const launch_folder = runFolder(layout, launch_id);
  const launch = launchSchema.parse({
    format: 1,
    launch_id,
    deployment: 'run',
    site: site.name,
    provider: providerName(site, user),
    region: site.region,
    tier,
    node_kind: 'run',
    node_count: 1,
    units: units(launch_folder),
    mesh_folder: layout.mesh_folder,
    launch_folder,
    ...networkOf(site),
    leaves_when_warned: true,
  });
  makeFolders(launch_folder);
  const launch_file = join(launch_folder, launchFiles.launch);
  const end_s = Number(environment.SLURM_JOB_END_TIME);
  const now_ms = Date.now();
  const time_limit_s = end_s > 0 ? Math.max(0, Math.ceil(end_s - now_ms / 1000)) : undefined;
  new Delegations(layout, site, user).write({ launch_id, launch_folder, time_limit_s }, now_ms);
  writeFileAtomically(launch_file, `${JSON.stringify(launch, null, 2)}\n`);
  return { launch, launch_file };
}
