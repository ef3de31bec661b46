import { lstatSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { FolderLock, lastingLock } from '../../host/folder-lock.ts';
import { makeFolders } from '../../host/make-folders.ts';
import { readJsonIfThere, writeFileAtomically } from '../../host/whole-file.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import {
  type JoinedNode,
  joinedNodeFiles,
  joinedNodeSchema,
  joinedNodesFolder,
  type OrderStatus,
  orderSchema,
} from '../../spec/joined-node.ts';
import { type LaunchSpec, launchSchema } from '../../spec/launch.ts';
import { deploymentFiles, launchFiles, type StateLayout } from '../../spec/state-layout.ts';
import { readAgentState } from '../state/agent-state-file.ts';
import { forgetOldNodes, freeKindName, openOrders } from '../state/joined-nodes.ts';
import { aroundChange } from '../state/locks.ts';
import type { PreparedRun } from './own-server.ts';

/** A node agent that was started. */
export interface AgentProcess {
  /** Its exit code; 128 + the signal that ended it. */
  ended: Promise<number>;
  signal(name: NodeJS.Signals): void;
}

export interface JoinedHostOptions {
  layout: StateLayout;
  /** The launch of the idle agent. */
  idle: PreparedRun;
  /** Name of the node, safe for files. */
  node: string;
  startAgent(launch_file: string): AgentProcess;
  /** Told when it is there, takes a launch up, and has ended one. */
  note(line: string): void;
  now_ms(): number;
  command: string;
}

/** Time between two looks for orders, ms. Lower: launches start sooner; higher: less load on the filesystem. */
const look_ms = 500;
/** The idle agent finds its devices within this time, ms; a GPU driver that wakes up takes seconds. */
const devices_ms = 60_000;

/**
 * The process behind `hpcserve run` without a command: it stands for a node of an allocation that somebody has, and
 * runs there what control tells it. One node agent at a time: an idle one, which shows in the mesh what the node has,
 * until there is a launch; then that launch's; then an idle one again. So devices have one owner, always.
 *
 * Orders are files in a folder of the owner's alone. They name a launch of a deployment of this site by its file, and
 * what is not such a file is refused: an order cannot make the node run anything else.
 */
export class JoinedHost {
  readonly #options: JoinedHostOptions;
  readonly #folder: string;
  readonly #id: string;
  readonly #stopped = new AbortController();
  #agent: AgentProcess | undefined;

  constructor(options: JoinedHostOptions) {
    this.#options = options;
    this.#id = options.idle.launch.launch_id.slice(0, 8);
    this.#folder = join(joinedNodesFolder(options.layout), this.#id);
  }

  /** To the agent that runs: a warning of the time limit, a resumption. */
  signal(name: NodeJS.Signals): void {
    this.#agent?.signal(name);
  }

  /** Ends in order: what runs drains, and the node is announced as gone. Asked again: at once. */
  stop(): void {
    this.#stopped.abort();
    this.#agent?.signal('SIGTERM');
  }

  /** Until it is stopped or its own agent fails. @returns the exit code */
  async run(): Promise<number> {
    const { layout, now_ms, command, note } = this.#options;
    forgetOldNodes(layout, now_ms());
    makeFolders(join(this.#folder, joinedNodeFiles.orders));
    let lock: FolderLock | undefined;
    try {
      while (!this.#stopped.signal.aborted) {
        const idle = this.#start(this.#options.idle.launch_file);
        if (lock === undefined) {
          const node = await this.#describe(idle);
          if (node === undefined) return await idle.ended;
          // Whoever reads of it may tell it something at once: the lock says that it is there.
          lock = await FolderLock.acquire(join(this.#folder, joinedNodeFiles.lock), {
            ...aroundChange({ command, timeout_ms: 1000 }),
            times: lastingLock,
          });
          this.#write(joinedNodeFiles.node, node);
          note(`${node.node} joined as ${node.node_kind}; deployments are placed onto it until it leaves`);
        }
        const order = await this.#order(idle);
        if (order === undefined) return await idle.ended;
        idle.signal('SIGTERM');
        await idle.ended;
        await this.#obey(order);
      }
      return 0;
    } finally {
      // Where this process cannot go on, on a filesystem that is away, its agent has nobody either; then the node is
      // free.
      if (!this.#stopped.signal.aborted) this.#agent?.signal('SIGTERM');
      await this.#agent?.ended;
      lock?.release();
    }
  }

  #start(launch_file: string): AgentProcess {
    const agent = this.#options.startAgent(launch_file);
    this.#agent = agent;
    if (this.#stopped.signal.aborted) agent.signal('SIGTERM');
    return agent;
  }

  /** What the idle agent found; undefined where it ended before it said. */
  async #describe(idle: AgentProcess): Promise<JoinedNode | undefined> {
    const { idle: prepared, node, layout, now_ms } = this.#options;
    const file = join(prepared.launch.launch_folder, launchFiles.agentState(node));
    let over = false;
    void idle.ended.then(() => {
      over = true;
    });
    const deadline_ms = performance.now() + devices_ms;
    for (;;) {
      const state = readAgentState(file);
      if (over) return undefined;
      if (state?.phase === 'serving' && state.devices.length > 0)
        return joinedNodeSchema.parse({
          format: 1,
          id: this.#id,
          node_kind: freeKindName(layout, node, this.#id),
          tier: prepared.launch.tier,
          joined_at_ms: now_ms(),
          ...whatItHas(state),
        });
      if (performance.now() > deadline_ms)
        throw new HpcserveError('E_AGENT_DEVICES', {
          what: `the node agent has found no device within ${devices_ms / 1000} s`,
          because: `see ${join(prepared.launch.launch_folder, launchFiles.agentLog(node))}`,
        });
      await Promise.race([idle.ended, sleep(look_ms)]);
    }
  }

  /** The next launch to run; undefined where the idle agent ends first. */
  async #order(idle: AgentProcess): Promise<string | undefined> {
    let over = false;
    void idle.ended.then(() => {
      over = true;
    });
    for (;;) {
      if (over || this.#stopped.signal.aborted) return undefined;
      const [order] = openOrders(this.#folder);
      if (order !== undefined) return order;
      await Promise.race([idle.ended, sleep(look_ms)]);
    }
  }

  async #obey(launchId: string): Promise<void> {
    const { note, now_ms } = this.#options;
    const started_at_ms = now_ms();
    const status = (facts: Partial<OrderStatus> & Pick<OrderStatus, 'phase'>): void =>
      this.#write(join(joinedNodeFiles.orders, joinedNodeFiles.status(launchId)), {
        format: 1,
        started_at_ms,
        ...facts,
      });
    if (this.#asked(launchId) !== undefined) {
      status({ phase: 'ended', ended_at_ms: now_ms(), exit_code: 0, reason: 'it was taken back' });
      return;
    }
    let launch: LaunchSpec;
    let launch_file: string;
    try {
      ({ launch, launch_file } = this.#read(launchId));
    } catch (thrown) {
      const { message, code, because } = HpcserveError.from(thrown);
      const reason = [`${message} [${code}]`, ...because].join(': ');
      note(`an order was refused: ${reason}`);
      status({ phase: 'ended', ended_at_ms: now_ms(), reason });
      return;
    }
    note(`runs ${launch.units.map(({ unit }) => unit).join(', ')} of ${launch.deployment}`);
    status({ phase: 'running' });
    const agent = this.#start(launch_file);
    let exit_code: number | undefined;
    void agent.ended.then((code) => {
      exit_code = code;
    });
    for (let told: NodeJS.Signals | undefined; exit_code === undefined; ) {
      const asked = this.#asked(launchId);
      if (asked !== undefined && asked !== told) agent.signal(asked);
      told = asked;
      await Promise.race([agent.ended, sleep(look_ms)]);
    }
    const left = this.#stopped.signal.aborted ? { reason: 'its node left' } : {};
    status({ phase: 'ended', ended_at_ms: now_ms(), exit_code, ...left });
    note(`${launch.deployment} ended here (exit code ${exit_code})`);
  }

  /** The signal its launch was asked to end with. */
  #asked(launchId: string): 'SIGTERM' | 'SIGKILL' | undefined {
    let asked: string;
    try {
      asked = readFileSync(
        join(this.#folder, joinedNodeFiles.orders, joinedNodeFiles.cancel(launchId)),
        'utf8',
      );
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
    return asked === 'SIGKILL' ? 'SIGKILL' : 'SIGTERM';
  }

  /** @throws E_JOINED_NODE_ORDER where it is not a launch of this site that only its owner can have written */
  #read(launchId: string): { launch: LaunchSpec; launch_file: string } {
    const refuse = (because: string): HpcserveError =>
      new HpcserveError('E_JOINED_NODE_ORDER', { what: `launch ${launchId} is not run here`, because });
    const order_file = join(this.#folder, joinedNodeFiles.orders, joinedNodeFiles.order(launchId));
    const order = orderSchema.safeParse(readJsonIfThere(order_file));
    if (!order.success) throw refuse(`${order_file} is not an order`);
    const { launch_file } = order.data;
    for (const file of [this.#folder, order_file, launch_file]) {
      const facts = lstatSync(file, { throwIfNoEntry: false });
      if (facts === undefined) throw refuse(`${file} is not there`);
      if (facts.uid !== process.getuid!() || (facts.mode & 0o022) !== 0 || facts.isSymbolicLink())
        throw refuse(`${file} could have been written by somebody else`);
    }
    const launch = launchSchema.safeParse(readJsonIfThere(launch_file));
    if (!launch.success) throw refuse(`${launch_file} is not the launch of a job`);
    const { deployment, node_count } = launch.data;
    const { deployments_folder } = this.#options.layout;
    const expected = join(
      deployments_folder,
      deployment,
      deploymentFiles.launches,
      launchId,
      launchFiles.launch,
    );
    if (launch.data.launch_id !== launchId || launch_file !== expected)
      throw refuse(`${launch_file} is not the file of that launch: ${expected} is`);
    if (node_count !== 1) throw refuse(`it is for ${node_count} nodes`);
    return { launch: launch.data, launch_file };
  }

  #write(name: string, content: object): void {
    writeFileAtomically(join(this.#folder, name), `${JSON.stringify(content)}\n`);
  }
}

/** Accelerators of the first one's model, else the CPU sockets. */
function whatItHas(
  state: AgentState,
): Pick<JoinedNode, 'node' | 'hostname' | 'devices' | 'cpus' | 'memory_bytes' | 'architecture' | 'isa'> &
  Partial<JoinedNode> {
  const sockets = state.devices.filter(({ kind }) => kind === 'cpu');
  const [accelerator] = state.devices.filter(({ kind }) => kind !== 'cpu');
  const devices = accelerator
    ? state.devices.filter(({ kind, model }) => kind === accelerator.kind && model === accelerator.model)
    : sockets;
  const end_ms = Number(process.env.SLURM_JOB_END_TIME) * 1000;
  return {
    node: state.node,
    hostname: state.hostname,
    ...(state.job_id === undefined ? {} : { job_id: state.job_id }),
    ...(end_ms > 0 ? { job_end_time_ms: end_ms } : {}),
    devices,
    cpus: sockets.reduce((sum, { cores = [] }) => sum + cores.length, 0),
    memory_bytes: sockets.reduce((sum, { memory_bytes }) => sum + memory_bytes, 0),
    architecture: process.arch === 'arm64' ? 'aarch64' : 'x86_64',
    isa: sockets[0]?.isa ?? [],
  };
}
