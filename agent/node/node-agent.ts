import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { LocalSession, type Registry, RendezvousRegistry, SessionIdentity } from '../../mesh/index.ts';
import type { AgentPhase, AgentState } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type LaunchSpec, type UnitSpec, unitsOnNode } from '../../spec/launch.ts';
import type { DeviceDescription, SessionMetadata } from '../../spec/session-record.ts';
import { launchFiles } from '../../spec/state-layout.ts';
import type { MovesPlace } from '../device-worker/moving/moves-place.ts';
import { discoverDevices, type NodeDevices } from '../devices/discover.ts';
import { AgentGossip } from './agent-gossip.ts';
import { physicalCores } from './assign-cores.ts';
import { assignDevices, type DeviceAssignment, type UnitGroup } from './assign-devices.ts';
import { describeAgent, unitsFailed } from './describe-agent.ts';
import { endLeftContainers } from './detached-container.ts';
import { turnsOf } from './device-turns.ts';
import { areAllFailed, lostUnits } from './failed-units.ts';
import { LaunchProvider } from './launch-provider.ts';
import { type AgentLog, agentLog, LogFile } from './log.ts';
import { type AddressChoice, chooseAddresses, hostInterfaces, routedAddress } from './network-address.ts';
import { untilNodeLost } from './node-loss.ts';
import { OrphanGuard } from './orphan-guard.ts';
import { placeOf } from './rank-rendezvous.ts';
import { makeRuntimeFolder } from './runtime-folder.ts';
import { type AccessRules, accessRefusal } from './session-access.ts';
import { sessionRequestHandler } from './session-requests.ts';
import { SessionServer } from './session-server.ts';
import type { NodeIdentity } from './slurm-environment.ts';
import { adoptKeptLayouts, type StageLayout } from './stage-layout.ts';
import { StateFile } from './state-file.ts';
import { type SupervisorOptions, UnitSupervisor } from './unit-supervisor.ts';
import { walltimeLeft_ms } from './walltime.ts';
import { type GivenToPeers, WorkerPeers } from './worker-peers.ts';

/** Pause between attempts to reach a mesh folder that is away at the start. */
const mesh_retry_ms = 1000;
/** Slurm kills 30 s after SIGTERM (KillWait); draining must leave time to stop the engines and to say LEFT. */
const drain_s_default = 20;
const stop_grace_ms = 5000;
const final_write_ms = 5000;
/**
 * One request to stop comes by several ways within this time, ms: from the terminal, from Slurm, from who started it.
 */
const same_request_ms = 2000;

type UnitMetadata = Omit<SessionMetadata, 'role' | 'devices' | 'models'>;
/** What a supervisor is told of that is not the launch's. */
type UnitSurroundings = Pick<
  SupervisorOptions,
  'registry' | 'metadata' | 'peers_socket' | 'moves' | 'runtime_folder' | 'turns'
>;

const descriptionsOf = ({ cpu, gpu, mig }: NodeDevices): DeviceDescription[] =>
  [...cpu, ...gpu, ...mig].map(({ description }) => description);

/** One node of a job: finds devices, starts what serves on them, and stands for them in the mesh. */
export class NodeAgent {
  readonly #launch: LaunchSpec;
  readonly #identity: NodeIdentity;
  /** Among the nodes that units count: those of its job, or of all jobs of a pipeline. */
  readonly #node_index: number;
  readonly #environment: NodeJS.ProcessEnv;
  readonly #started_at_ms = Date.now();
  readonly #log_file: LogFile;
  readonly #log: AgentLog;
  readonly #state_file: StateFile;
  readonly #stop = new AbortController();
  readonly #hurry = new AbortController();
  readonly #notices = new Map<string, HpcserveError>();
  #phase: AgentPhase = 'starting';
  #exit_reason: string | undefined;
  #asked_at_ms: number | undefined;
  #error: HpcserveError | undefined;
  #walltime_warning_at_ms: number | undefined;
  #walltime_drain_ms: number | undefined;
  #devices: NodeDevices | undefined;
  #assignment: DeviceAssignment | undefined;
  #registry: RendezvousRegistry | undefined;
  #provider: LaunchProvider | undefined;
  #gossip: AgentGossip | undefined;
  #peers: WorkerPeers | undefined;
  #session: LocalSession | undefined;
  #server: SessionServer | undefined;
  #supervisors: UnitSupervisor[] = [];
  #guard: OrphanGuard | undefined;
  readonly #drains = new Set<Promise<void>>();

  constructor(launch: LaunchSpec, identity: NodeIdentity, environment: NodeJS.ProcessEnv) {
    this.#launch = launch;
    this.#identity = identity;
    this.#node_index = (launch.part?.node_index ?? 0) + identity.node_index;
    this.#environment = environment;
    const file = (name: string): string => join(launch.launch_folder, name);
    this.#log_file = new LogFile(file(launchFiles.agentLog(identity.node)), (error) =>
      this.#noticeFile('log', error),
    );
    this.#log = agentLog(this.#log_file, { node: identity.node, launch: launch.launch_id });
    this.#state_file = new StateFile(
      file(launchFiles.agentState(identity.node)),
      () => this.state(),
      (error) => this.#noticeFile('state', error),
    );
  }

  /** Serves until it is told to stop or nothing is left to serve; the exit code of the process. */
  async run(): Promise<number> {
    try {
      await this.#start();
      await this.#untilOver();
    } catch (error) {
      if (!this.#stop.signal.aborted) this.#error = HpcserveError.from(error);
    }
    await this.#shutDown();
    return this.#error?.exit_code ?? 0;
  }

  /**
   * Ends in order: no new requests, the running ones finish, LEFT. Asked again, and not in the same breath: at once.
   */
  stop(reason: string): void {
    this.#log.info({ reason }, 'asked to stop');
    const now_ms = performance.now();
    const isSame = this.#asked_at_ms !== undefined && now_ms - this.#asked_at_ms < same_request_ms;
    this.#asked_at_ms ??= now_ms;
    if (!this.#stop.signal.aborted) this.#end(reason);
    else if (!isSame) this.#hurry.abort();
  }

  #end(reason: string): void {
    this.#exit_reason = reason;
    this.#stop.abort();
  }

  /** A defect: ends in order where that is still possible, so that state and mesh say what happened. */
  fail(error: HpcserveError): void {
    if (this.#stop.signal.aborted) {
      process.stderr.write(`${error.toText()}\n`);
      process.exit(error.exit_code);
    }
    this.#error = error;
    this.#stop.abort();
  }

  /** The time limit of the job comes near. */
  warnOfWalltime(): void {
    this.#walltime_warning_at_ms ??= Date.now();
    this.#log.warn('the time limit of the job comes near');
    this.#changed();
    if (this.#launch.leaves_when_warned !== true || this.#stop.signal.aborted) return;
    // Nobody takes its place: running answers get all the time there is, new ones go elsewhere from now on.
    const { job_end_time_ms } = this.#identity;
    const { warned_before_s } = this.#launch;
    const left_ms = walltimeLeft_ms({ job_end_time_ms, warned_before_s, now_ms: Date.now() });
    this.#walltime_drain_ms = Math.max(this.#drain_ms(), left_ms - stop_grace_ms);
    this.#end('the time limit of the job comes near');
  }

  /** The process goes on after Slurm had stopped it, or is about to be preempted: what others see of it is of then. */
  resumed(): void {
    this.#log.info('SIGCONT');
    this.#changed();
  }

  state(): AgentState {
    const ended = this.#phase === 'stopped' || this.#phase === 'failed';
    const ofProcesses = ended ? [] : this.#supervisors.flatMap((supervisor) => supervisor.notices);
    return describeAgent({
      launch: this.#launch,
      identity: this.#identity,
      phase: this.#phase,
      started_at_ms: this.#started_at_ms,
      devices: this.#devices ? descriptionsOf(this.#devices) : [],
      session_id: this.#session?.id,
      units: this.#supervisors.map((supervisor) => supervisor.state()),
      failed: this.#assignment?.failed ?? [],
      error: this.#error,
      exit_reason: this.#exit_reason,
      notices: [...this.#notices.values(), ...ofProcesses],
      walltime_warning_at_ms: this.#walltime_warning_at_ms,
    });
  }

  async #start(): Promise<void> {
    this.#changed();
    this.#log.info({ pid: process.pid, job: this.#identity.job_id }, 'node agent started');
    const launch = this.#launch;
    const { units, devices, assignment, layouts } = this.#assign();
    const { folder: runtime_folder, guard } = makeRuntimeFolder(
      launch.runtime_folder,
      this.#environment,
      (folder) => new OrphanGuard(folder, this.#environment),
    );
    this.#guard = guard;
    await endLeftContainers(launch.engine_prefix, this.#environment, this.#log);
    // Asked to stop meanwhile, it begins nothing more: a job that is preempted while it starts leaves at once.
    const asked = this.#stop.signal;
    this.#provider = await LaunchProvider.open({
      launch,
      onRenewed: () => this.#publishAgain(),
      onTrouble: (error) => this.#notice('provider', error),
    });
    const registry = await this.#joinMesh();
    await this.#retirePredecessors(registry);
    asked.throwIfAborted();
    const { choice, port } = await this.#listen(registry);
    const metadata = this.#metadata(choice, port);
    this.#session = await LocalSession.join(
      registry,
      this.#ownMetadata(metadata, devices),
      (previous) => this.#renewed(previous),
      () => this.#provider?.delegation,
    );
    asked.throwIfAborted();
    await this.#session.update({ lifecycle: 'SERVING' });
    this.#peers = await this.#openPeers({
      registry,
      own: () => this.#session!.identity,
      units,
      layouts,
      runtime_folder,
    });
    asked.throwIfAborted();
    const turns = turnsOf(assignment.groups, this.#log);
    this.#supervisors = assignment.groups.map((group, index) =>
      this.#supervisorOf(group, {
        turns: turns.get(group),
        registry,
        metadata,
        peers_socket: this.#peers!.weights_socket,
        moves: this.#movesFrom(choice.announced[0]!),
        runtime_folder: join(runtime_folder, `u${index}`),
        address: choice.announced[0]!,
      }),
    );
    this.#phase = 'loading';
    const started = Promise.all(this.#supervisors.map((supervisor) => supervisor.start()));
    this.#gossip = new AgentGossip({
      registry,
      launch,
      choice,
      port,
      begin: started,
      signal: asked,
      isOwn: (sessionId) => this.#sessionById(sessionId) !== undefined,
      supervisors: () => this.#supervisors,
      log: this.#log,
    });
    this.#changed();
  }

  #renewed(previous: string): void {
    const at = { previous, session: this.#session?.id };
    this.#log.warn(at, 'took another session: the others had taken it for gone');
    this.#changed();
  }

  #openPeers(given: GivenToPeers): Promise<WorkerPeers> {
    return WorkerPeers.open({
      ...given,
      launch: this.#launch,
      node: this.#identity,
      node_index: this.#node_index,
      provider: () => this.#provider?.delegation?.provider_id,
      supervisors: () => this.#supervisors,
      leaving: this.#stop.signal,
      log: this.#log,
    });
  }

  /** Finds the devices of the node, and gives them to the units that are for it. */
  #assign(): {
    units: UnitSpec[];
    devices: NodeDevices;
    assignment: DeviceAssignment;
    layouts: Map<string, StageLayout>;
  } {
    const devices = discoverDevices(this.#launch, this.#identity.node_index, this.#environment);
    const units = unitsOnNode(this.#launch.units, this.#node_index);
    const assignment = assignDevices(units, devices, this.#node_index);
    const layouts = adoptKeptLayouts(this.#launch, this.#node_index, assignment.groups, this.#log);
    this.#devices = devices;
    this.#assignment = assignment;
    this.#noticeDevices(devices, assignment);
    this.#changed();
    return { units, devices, assignment, layouts };
  }

  #ownMetadata(metadata: UnitMetadata, devices: NodeDevices): SessionMetadata {
    const own: SessionMetadata = {
      ...metadata,
      role: 'node-agent',
      devices: descriptionsOf(devices),
      models: [],
      node_index: this.#node_index,
    };
    // By it the agents of the other jobs find this one's stages.
    if (this.#launch.part) own.pipeline_group = this.#launch.part.group;
    return own;
  }

  get #place(): Pick<NodeIdentity, 'node' | 'node_index'> {
    return { node: this.#identity.node, node_index: this.#node_index };
  }

  /** What the records of all its sessions say. */
  #metadata(choice: AddressChoice, port: number): UnitMetadata {
    const launch = this.#launch;
    const { job_id, job_end_time_ms, node, hostname } = this.#identity;
    const metadata: UnitMetadata = {
      deployment: launch.deployment,
      launch_id: launch.launch_id,
      node,
      hostname,
      site: launch.site,
      provider: launch.provider,
      tier: launch.tier,
      addresses: choice.announced.map((host) => ({ host, port })),
    };
    if (job_id !== undefined) metadata.job_id = job_id;
    if (launch.region !== undefined) metadata.region = launch.region;
    if (job_end_time_ms !== undefined) metadata.job_end_time_ms = job_end_time_ms;
    return metadata;
  }

  #supervisorOf(
    group: UnitGroup,
    { address, ...around }: UnitSurroundings & { address: string },
  ): UnitSupervisor {
    const launch = this.#launch;
    const file = (name: string): string => join(launch.launch_folder, name);
    return new UnitSupervisor({
      ...around,
      group,
      place: placeOf(launch, group, this.#place, address, this.#environment, (node, signal) =>
        untilNodeLost(around.registry, { launch_id: launch.launch_id, node }, signal),
      ),
      failure_file: file(launchFiles.unitFailure(this.#identity.node, group.name)),
      delegation: () => this.#provider?.delegation,
      log_file: file(launchFiles.unitLog(this.#identity.node, group.name)),
      library_dir: launch.native_library_dir,
      heartbeat_ms: launch.heartbeat_ms,
      drain_ms: this.#drain_ms(),
      step_ms_min: launch.emulated_step_ms,
      sharing: launch.sharing,
      manifest_folder: launch.manifest_folder,
      memory_limit_bytes: this.#devices?.host.memory_limit_bytes,
      planned_memory_bytes: launch.memory_bytes_per_node,
      engine_prefix: launch.engine_prefix,
      engine_interfaces: launch.engine_interfaces,
      physical_cores: (cores) => physicalCores(cores, this.#devices?.host ?? {}),
      guard: this.#guard!,
      log: this.#log,
      environment: this.#environment,
      onChange: () => this.#changed(),
      lostUnits: () => lostUnits(this.#supervisors),
      onDeviceFailed: (error) => this.#deviceFailed(group, error),
    });
  }

  /** How answers of its workers may move to others. @param host where those reach this node */
  #movesFrom(host: string): MovesPlace | undefined {
    const { port_range, private_fabric, fabrics } = this.#launch;
    const socket = this.#peers?.kv_socket;
    if (socket === undefined) return undefined;
    return { socket, host, port_range, private_fabric: private_fabric === true, fabrics };
  }

  /** The mesh's registry; waits for a folder that is not there (yet), and says so meanwhile. */
  async #joinMesh(): Promise<RendezvousRegistry> {
    for (;;) {
      this.#stop.signal.throwIfAborted();
      try {
        this.#registry = await RendezvousRegistry.open(this.#launch.mesh_folder, {
          create: false,
          poll_ms: Math.max(1000, this.#launch.heartbeat_ms),
        });
        break;
      } catch (error) {
        if (!(error instanceof HpcserveError)) throw error;
        this.#notice('mesh', error);
        await delay(mesh_retry_ms, undefined, { signal: this.#stop.signal });
      }
    }
    this.#notice('mesh', undefined);
    this.#registry.onStatus((status) => {
      this.#notice(
        'mesh',
        status.state === 'ok'
          ? undefined
          : new HpcserveError('E_MESH_FOLDER', {
              what: `the mesh folder ${this.#launch.mesh_folder} is ${status.state === 'foreign_key' ? 'of another mesh now' : 'unreachable'}`,
              because: status.reason ?? status.state,
            }),
      );
      const rejected = status.recent_rejections.at(-1);
      if (rejected) this.#log.debug({ rejected }, 'a session record was rejected');
    });
    return this.#registry;
  }

  /** A job that was requeued runs the same launch again: what the earlier run left in the mesh is over. */
  async #retirePredecessors(registry: Registry): Promise<void> {
    const { launch_id } = this.#launch;
    const reporter = await SessionIdentity.create();
    for (const { session_id, lifecycle, metadata } of registry.snapshot()) {
      if (metadata.launch_id !== launch_id || metadata.node !== this.#identity.node) continue;
      if (lifecycle === 'LEFT') continue;
      await registry.retire(session_id, `launch ${launch_id} started again on ${metadata.node}`, reporter);
    }
  }

  async #listen(registry: RendezvousRegistry): Promise<{ choice: AddressChoice; port: number }> {
    const routed = await routedAddress(this.#environment);
    const choice = chooseAddresses(hostInterfaces(), {
      network: this.#launch.network,
      loopback: this.#launch.site === 'local' || this.#environment.SLURM_JOB_ID === undefined,
      routed,
    });
    this.#server = new SessionServer({
      registry,
      identityOf: (sessionId) => this.#sessionById(sessionId)?.identity,
      upgrade: (request, socket, head, peer) => this.#peers?.accept(request, socket, head, peer) ?? false,
      handle: sessionRequestHandler({
        node: this.#identity.node,
        heartbeat_ms: this.#launch.heartbeat_ms,
        unitOf: (sessionId) => this.#supervisors.find((unit) => unit.session?.id === sessionId),
        refusal: (peer, path) => accessRefusal(this.#accessRules(), peer, path, Date.now()),
        state: () => this.state(),
        drain: (unit) => this.#drain(unit),
        refactor: (unit, order, signal) => this.#peers!.refactorings.refactor(unit, order, signal),
      }),
    });
    const port = await this.#server.listen(choice.listen, this.#launch.port_range);
    this.#stop.signal.throwIfAborted();
    this.#log.info({ addresses: choice.announced, port }, 'listening');
    return { choice, port };
  }

  #accessRules(): AccessRules {
    const { users, operators } = this.#launch;
    return { own: this.#provider?.delegation?.provider_id, users, operators };
  }

  /** With what proves the provider now. */
  #publishAgain(): void {
    for (const session of [this.#session, ...this.#supervisors.map((supervisor) => supervisor.session)]) {
      if (!session || session.record.lifecycle === 'LEFT') continue;
      session.update({}).catch((error: unknown) => this.#log.error(error));
    }
  }

  #sessionById(sessionId: string): LocalSession | undefined {
    const sessions = [this.#session, ...this.#supervisors.map((supervisor) => supervisor.session)];
    return sessions.find((session) => session?.id === sessionId);
  }

  #drain(unit: UnitSupervisor | undefined): void {
    if (!unit) {
      this.stop('asked to drain');
      return;
    }
    const work = (async (): Promise<void> => {
      await unit.drain(this.#drain_ms());
      await unit.stop(stop_grace_ms);
    })().catch((error: unknown) => this.#log.error(error));
    this.#drains.add(work);
  }

  /** Until a stop is asked for, or every unit has failed. */
  #untilOver(): Promise<void> {
    return new Promise((resolve) => {
      const look = (): void => {
        if (this.#stop.signal.aborted) resolve();
        else if (this.#everythingFailed()) {
          const missing = this.#assignment?.failed ?? [];
          this.#error = unitsFailed(this.#identity.node, this.#launch, missing, this.#supervisors);
          resolve();
        }
      };
      this.#stop.signal.addEventListener('abort', look);
      this.#onChanged = look;
      look();
    });
  }
  #onChanged: () => void = () => undefined;

  #everythingFailed(): boolean {
    const failed = this.#assignment?.failed.length ?? 0;
    if (this.#supervisors.length === 0) return failed > 0;
    return areAllFailed(this.#supervisors);
  }

  /** What else runs on a device that failed ends too. Cores do not fail that way: a CPU's other units go on. */
  #deviceFailed(group: UnitGroup, error: HpcserveError): void {
    const devices = group.devices.filter(({ description }) => description.kind !== 'cpu');
    if (devices.length === 0) return;
    const names = devices.map(({ description }) => description.model).join(' + ');
    for (const [index, other] of this.#supervisors.entries()) {
      const shared = this.#assignment!.groups[index]!.devices.some((device) => devices.includes(device));
      if (!shared || other.name === group.name) continue;
      other.failPermanently(
        new HpcserveError('E_AGENT_DEVICE_FAILED', {
          what: `${names} of ${this.#identity.node} failed under ${group.name}`,
          because: [error.message, ...error.because.slice(0, 3)],
        }),
      );
    }
  }

  async #shutDown(): Promise<void> {
    this.#phase = 'draining';
    this.#changed();
    const grace_ms = this.#hurry.signal.aborted ? 0 : (this.#walltime_drain_ms ?? this.#drain_ms());
    const settled = async (name: string, work: Promise<unknown>[]): Promise<void> => {
      for (const result of await Promise.allSettled(work)) {
        if (result.status === 'rejected') this.#log.error({ error: String(result.reason) }, name);
      }
    };
    const drained = settled('draining', [
      ...(this.#session ? [this.#session.update({ lifecycle: 'DOWN' })] : []),
      ...this.#supervisors.map((supervisor) => supervisor.drain(grace_ms)),
      ...(this.#peers ? [this.#peers.leaveStages(grace_ms)] : []),
    ]);
    const hurried = new Promise<void>((resolve) => {
      if (this.#hurry.signal.aborted) resolve();
      this.#hurry.signal.addEventListener('abort', () => resolve());
    });
    await Promise.race([drained, hurried]);
    await settled('stopping', [
      ...this.#supervisors.map((supervisor) => supervisor.stop(stop_grace_ms)),
      ...this.#drains,
    ]);
    await settled('leaving', [...(this.#session ? [this.#session.leave()] : [])]);
    await this.#server?.close();
    await this.#peers?.close();
    await this.#gossip?.close();
    await this.#registry?.close();
    this.#provider?.close();
    this.#guard?.close();
    this.#phase = this.#error ? 'failed' : 'stopped';
    if (this.#error) {
      this.#log.fatal({ error: this.#error.toJSON() }, this.#error.message);
      process.stderr.write(`${this.#error.toText()}\n`);
    } else this.#log.info({ reason: this.#exit_reason }, 'stopped');
    await this.#state_file.close(final_write_ms);
    await Promise.race([this.#log_file.close(), delay(final_write_ms, undefined, { ref: false })]);
  }

  #drain_ms(): number {
    return Number(this.#environment.HPCSERVE_DRAIN_S ?? this.#launch.drain_s ?? drain_s_default) * 1000;
  }

  #changed(): void {
    if (this.#phase === 'loading' || this.#phase === 'serving') {
      const models = this.#supervisors.flatMap((supervisor) => supervisor.models);
      const waiting = models.some((model) => model.state === 'pending' || model.state === 'loading');
      this.#phase = waiting ? 'loading' : 'serving';
    }
    // A stage that failed or came back is news of its first one, too.
    for (const supervisor of this.#supervisors) if (supervisor.worker) supervisor.tell();
    this.#state_file.changed();
    this.#onChanged();
  }

  #noticeDevices(devices: NodeDevices, { failed, unused }: DeviceAssignment): void {
    for (const warning of devices.warnings) this.#log.warn(warning);
    for (const { error } of failed) this.#log.error({ error: error.toJSON() }, error.message);
    // An agent that was given nothing to run waits for it.
    if (unused.length === 0 || this.#launch.units.length === 0) return;
    const names = unused.map(({ description }) => `${description.kind} ${description.model}`);
    const what = `${unused.length} device(s) of ${this.#identity.node} are allotted to the job and used by no unit`;
    const advice = 'ask for fewer devices, or add replicas';
    this.#notice('devices', new HpcserveError('E_AGENT_DEVICES', { what, because: names, try: advice }));
  }

  #noticeFile(name: string, error: NodeJS.ErrnoException | undefined): void {
    this.#notice(
      name,
      error &&
        new HpcserveError('E_AGENT_STATE', {
          what: `the ${name} of node ${this.#identity.node} cannot be written to ${this.#launch.launch_folder}`,
          because: error.message,
          cause: error,
        }),
    );
  }

  /** Remembers what is wrong for `state`, and logs when it begins and when it is over. */
  #notice(name: string, error: HpcserveError | undefined): void {
    const before = this.#notices.get(name);
    if (before?.toText() === error?.toText()) return;
    if (error) this.#notices.set(name, error);
    else this.#notices.delete(name);
    if (error) this.#log.warn({ error: error.toJSON() }, error.toText());
    else this.#log.info(`${name}: in order again`);
    this.#changed();
  }
}
