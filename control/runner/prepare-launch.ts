/** A launch on its way to the runner: its folder, `launch.json`, and the script beside it. */
import { rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { makeFolders } from '../../host/make-folders.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type LaunchSpec, launchSchema } from '../../spec/launch.ts';
import { isOnIdleNodes, type PlannedLaunch, unitsOfJob } from '../../spec/plan.ts';
import { type SiteConfig, slurmSettings } from '../../spec/site.ts';
import { expandSitePath } from '../../spec/site-paths.ts';
import { arrayTaskFolder, launchFiles } from '../../spec/state-layout.ts';
import type { DelegatedLaunch } from '../state/delegations.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import { digestOf } from '../state/digest.ts';
import { isJoinedKind } from '../state/joined-nodes.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import { providerName } from '../state/provider-name.ts';
import type { JobArrays, JobRunner, PreparedArray, PreparedLaunch, RenderedScript } from './job-runner.ts';

/** What a launch takes from the person and place that submit it. */
export interface PrepareFacts {
  /** Who provides the devices: `user@site`. */
  user: string;
  environment: Readonly<Record<string, string | undefined>>;
}

/** Writes what the launch of this folder proves its provider with. */
type Delegate = (launch: DelegatedLaunch) => void;

/** The launch as it would be, without touching the disk. */
export function describeLaunch(
  deployment: string,
  launchId: string,
  planned: PlannedLaunch,
  site: SiteConfig,
  store: DeploymentStore,
  facts: PrepareFacts,
): PreparedLaunch {
  const launch_folder = store.launchFolder(deployment, launchId);
  const { devices_per_node: device } = planned;
  const library = site.native.library_dir;
  const isOnCpu = device.kind === 'cpu' || device.emulated !== undefined;
  // It is not renewed, and has to go in time.
  const onIdleNodes = isOnIdleNodes(planned);
  const signal_s = site.kind === 'slurm' ? slurmSettings(site).signal_s : 0;
  const launch: LaunchSpec = {
    format: 1,
    launch_id: launchId,
    deployment,
    site: site.name,
    provider: providerName(site, facts.user),
    region: site.region,
    tier: planned.tier,
    node_kind: planned.node_kind,
    node_count: planned.node_count,
    device_model: device.model,
    emulated: device.emulated,
    emulated_step_ms: device.emulated_step_ms,
    device_memory_bytes: device.memory_bytes > 0 ? device.memory_bytes : undefined,
    cpu_devices_per_node: cpuDevicesOf(planned),
    memory_bytes_per_node: isOnCpu
      ? planned.memory_bytes_per_node - (planned.page_cache_bytes ?? 0)
      : undefined,
    units: [...unitsOfJob(planned)],
    part: planned.part && {
      group: planned.part.group,
      node_index: planned.part.node_index,
      folder: store.pipelinesFolder(deployment),
    },
    mesh_folder: store.layout.mesh_folder,
    launch_folder,
    manifest_folder: store.manifestFolder(deployment),
    native_library_dir: library === undefined ? undefined : expandSitePath(library, facts.environment),
    ...networkOf(site),
    engine_prefix: enginePrefix(site, planned),
    sharing: Object.keys(site.sharing).length > 0 ? site.sharing : undefined,
    // On a joined node, too: its allocation is not ours to renew.
    leaves_when_warned: onIdleNodes || isJoinedKind(planned.node_kind) ? true : undefined,
    warned_before_s: onIdleNodes && signal_s > 0 ? signal_s : undefined,
    heartbeat_ms: 1000,
  };
  return {
    launch: launchSchema.parse(launch),
    planned,
    launch_folder,
    launch_file: join(launch_folder, launchFiles.launch),
  };
}

/**
 * CPU devices that the units count by; a job is given only the cores of those it uses. A joined node is there with all
 * of its sockets, whatever is used of it.
 */
function cpuDevicesOf(planned: PlannedLaunch): number | undefined {
  if (planned.devices_per_node.kind !== 'cpu' || isJoinedKind(planned.node_kind)) return undefined;
  const units = unitsOfJob(planned);
  return Math.max(1, ...units.map(({ first_device, device_count }) => first_device + device_count));
}

/** How agents are reached and by whom, and how they take part in the mesh. */
export function networkOf({
  network,
  mesh,
}: SiteConfig): Pick<
  LaunchSpec,
  | 'network'
  | 'port_range'
  | 'private_fabric'
  | 'fabrics'
  | 'engine_interfaces'
  | 'mesh'
  | 'users'
  | 'operators'
> {
  return {
    network: network.prefer,
    port_range: network.port_range,
    private_fabric: network.private_fabric || undefined,
    fabrics: network.fabrics,
    engine_interfaces: network.engine_interfaces,
    users: mesh.users,
    operators: mesh.operators,
    mesh: mesh.gossip ? { bootstrap: mesh.bootstrap, relay: mesh.relay } : undefined,
  };
}

/**
 * The words that start the wrapped engine of a launch where the site gives some. One launch has one prefix.
 * @throws E_CONFIG_CONFLICT where its engines would need different ones.
 */
function enginePrefix(site: SiteConfig, planned: PlannedLaunch): string[] {
  const prefixes = new Map<string, string[]>();
  for (const { engine } of planned.units) {
    if (engine === 'native' || engine === 'command') continue;
    const offer = site.runtime.engines?.[engine];
    const prefix = typeof offer === 'object' ? offer.prefix : [];
    prefixes.set(JSON.stringify(prefix), prefix);
  }
  const [first = [], ...others] = prefixes.values();
  const wrapped = planned.units.filter((unit) => unit.engine !== 'native');
  if (others.length > 0 || (first.length > 0 && wrapped.some((unit) => unit.engine === 'command')))
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `engines that start in different ways would share a job on ${planned.node_kind}`,
      because: `${[...new Set(wrapped.map((unit) => unit.engine))].join(', ')} have different prefixes in runtime.engines of ${site.name}`,
      try: 'put the models into deployments of their own, or on node kinds of their own (devices.node_kinds)',
    });
  return first;
}

/**
 * Writes the folder of a launch, with its script and what it proves its provider with. @throws E_STATE_FOLDER,
 * E_PROVIDER_KEY
 */
export function prepareLaunch(
  state: DeploymentState,
  record: LaunchRecord,
  site: SiteConfig,
  store: DeploymentStore,
  runner: JobRunner,
  facts: PrepareFacts,
  delegate: Delegate,
  drain_s?: number,
): { prepared: PreparedLaunch; script: RenderedScript } {
  const described = describeLaunch(state.name, record.launch_id, record.planned, site, store, facts);
  const prepared = withDrain(described, drain_s, runner.freeCores?.(record.planned));
  return written(prepared.launch_folder, () => {
    const script = runner.render(prepared);
    writeLaunchFile(prepared, delegate);
    writeFileAtomically(join(prepared.launch_folder, launchFiles.script), script.text, { mode: 0o700 });
    return { prepared, script };
  });
}

/** The array as it would be, without touching the disk. The same launches in the same order have the same id. */
export function describeArray(
  deployment: string,
  launches: readonly PreparedLaunch[],
  store: DeploymentStore,
): PreparedArray {
  const array_id = digestOf(launches.map(({ launch }) => launch.launch_id)).slice(0, 16);
  return { array_id, folder: store.launchFolder(deployment, array_id), launches };
}

/** Writes the folders of launches that are submitted together, and one with their script. @throws as `prepareLaunch` */
export function prepareArray(
  state: DeploymentState,
  records: readonly LaunchRecord[],
  site: SiteConfig,
  store: DeploymentStore,
  arrays: JobArrays,
  facts: PrepareFacts,
  delegate: Delegate,
  drain_s?: number,
): { array: PreparedArray; script: RenderedScript } {
  const array = describeArray(
    state.name,
    records.map(({ launch_id, planned }) =>
      withDrain(describeLaunch(state.name, launch_id, planned, site, store, facts), drain_s),
    ),
    store,
  );
  const { array_id, folder } = array;
  return written(folder, () => {
    const script = arrays.render(array);
    makeFolders(folder);
    writeFileAtomically(join(folder, launchFiles.script), script.text, { mode: 0o700 });
    for (const [task, prepared] of array.launches.entries()) {
      writeLaunchFile(prepared, delegate);
      // A task finds its launch by its number, and who looks into a launch finds the script that ran.
      link(join('..', prepared.launch.launch_id), join(folder, arrayTaskFolder(task)));
      link(join('..', array_id, launchFiles.script), join(prepared.launch_folder, launchFiles.script));
    }
    return { array, script };
  });
}

/** With what is known only as it is handed over. */
function withDrain(
  described: PreparedLaunch,
  drain_s: number | undefined,
  cores?: number[] | undefined,
): PreparedLaunch {
  return { ...described, launch: { ...described.launch, drain_s, cores } };
}

function writeLaunchFile(
  { launch, planned, launch_folder, launch_file }: PreparedLaunch,
  delegate: Delegate,
): void {
  makeFolders(launch_folder);
  // A container cannot be given a folder that is not there yet.
  if (launch.manifest_folder !== undefined) makeFolders(launch.manifest_folder);
  if (launch.part?.folder !== undefined) makeFolders(launch.part.folder);
  const { time_limit_s } = planned;
  delegate({ launch_id: launch.launch_id, launch_folder, time_limit_s });
  writeFileAtomically(launch_file, `${JSON.stringify(launch, null, 2)}\n`);
}

function link(target: string, path: string): void {
  rmSync(path, { force: true });
  symlinkSync(target, path);
}

function written<T>(folder: string, write: () => T): T {
  try {
    return write();
  } catch (error) {
    if (error instanceof HpcserveError) throw error;
    throw new HpcserveError('E_STATE_FOLDER', {
      what: `the folder of a launch cannot be written: ${folder}`,
      because: (error as Error).message,
      cause: error,
    });
  }
}
