import type { IncomingMessage } from 'node:http';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { Registry, SessionIdentity } from '../../mesh/index.ts';
import type { LaunchSpec, UnitSpec } from '../../spec/launch.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { KvPeers } from './kv-peers.ts';
import type { AgentLog } from './log.ts';
import { NodeStages } from './node-stages.ts';
import { PeerWeights } from './peer-weights.ts';
import { PipelineAgents } from './pipeline-agents.ts';
import { PipelineRefactorings } from './pipeline-refactorings.ts';
import type { NodeIdentity } from './slurm-environment.ts';
import { StageChanges } from './stage-changes.ts';
import { plannedNodes, type StageLayout } from './stage-layout.ts';
import { StageTunnels } from './stage-tunnels.ts';
import type { UnitSupervisor } from './unit-supervisor.ts';

interface WorkerPeersOptions {
  registry: Registry;
  /** Of the agent's own session now: it takes another one where the others have taken it for gone. */
  own(): SessionIdentity;
  launch: LaunchSpec;
  node: NodeIdentity;
  /** Of the node, among those that its units count. */
  node_index: number;
  units: readonly UnitSpec[];
  /** Of units whose stages have changed before this agent began, by their names. */
  layouts: ReadonlyMap<string, StageLayout>;
  /** 0700. */
  runtime_folder: string;
  /** Fingerprint of the own provider; undefined while nothing proves it. */
  provider(): string | undefined;
  supervisors(): readonly UnitSupervisor[];
  /** Aborted once the node is to go. */
  leaving: AbortSignal;
  log: AgentLog;
}

/** What of it an agent has once it has joined the mesh. */
export type GivenToPeers = Pick<
  WorkerPeersOptions,
  'registry' | 'own' | 'units' | 'layouts' | 'runtime_folder'
>;

/** What brings the device workers of this node together with those of others: tensors, keys and values, stages. */
export class WorkerPeers {
  /** Where workers ask for tensors; undefined where the site does not want it, or no worker runs. */
  readonly weights_socket: string | undefined;
  /** Where they ask for peers that answers can move to; undefined where no worker runs. */
  readonly kv_socket: string | undefined;
  readonly refactorings: PipelineRefactorings;
  readonly #weights: PeerWeights | undefined;
  readonly #kv: KvPeers | undefined;
  readonly #tunnels: StageTunnels;
  readonly #changes: StageChanges;

  private constructor(options: WorkerPeersOptions) {
    const { registry, own, launch, node, node_index, units, runtime_folder, provider } = options;
    const native = units.filter(({ engine }) => engine === 'native');
    const { site, sharing, deployment } = launch;
    if (native.length > 0) {
      this.#kv = new KvPeers({ registry, own, hostname: node.hostname, provider });
      this.kv_socket = join(runtime_folder, 'kv.sock');
    }
    if (native.length > 0 && sharing?.peer_loads !== false) {
      const models = native.map(({ model }) => model.name);
      this.#weights = new PeerWeights({ registry, own, node: node.node, site, deployment, models });
      this.weights_socket = join(runtime_folder, 'peers.sock');
    }
    const { layouts, supervisors, log } = options;
    const agents = new PipelineAgents({ registry, own, node_index, launch, provider });
    this.#tunnels = new StageTunnels({ agents, node_index, folder: runtime_folder, log });
    const stages = new NodeStages({ node: node.node, node_index, tunnels: this.#tunnels, supervisors });
    this.#changes = new StageChanges({
      node: node.node,
      agents,
      stages,
      launch,
      log,
      leaving: options.leaving,
      leave: (unit, leaving, left_ms) => this.refactorings.leave(unit, leaving, left_ms),
    });
    this.refactorings = new PipelineRefactorings({
      node: node.node,
      node_index,
      launch,
      stages,
      agents,
      units: native,
      layouts,
      leaving: options.leaving,
      log,
    });
  }

  static async open(options: WorkerPeersOptions): Promise<WorkerPeers> {
    const peers = new WorkerPeers(options);
    if (peers.weights_socket !== undefined) await peers.#weights?.listen(peers.weights_socket);
    if (peers.kv_socket !== undefined) await peers.#kv?.listen(peers.kv_socket);
    for (const unit of options.units) {
      if (!unit.stages) continue;
      const layout = options.layouts.get(unit.unit);
      const nodes = layout?.stages.map(({ node_index }) => node_index) ?? plannedNodes(unit);
      await peers.#tunnels.open(unit.unit, layout?.ring, nodes);
    }
    return peers;
  }

  /** Another agent asks for a connection to a stage, or about a change of stages. @returns whether it gets one */
  accept(request: IncomingMessage, socket: Duplex, head: Buffer, peer: SessionRecord): boolean {
    return (
      this.#tunnels.accept(request, socket, head, peer) || this.#changes.accept(request, socket, head, peer)
    );
  }

  /**
   * The node is to go: stages here whose coordinator is elsewhere come to other nodes, and where that is not possible
   * they stay until no batch comes any more.
   * @param grace_ms at most so long
   */
  async leaveStages(grace_ms: number): Promise<void> {
    const began_ms = performance.now();
    // A change that nobody waits for would only be begun and given up.
    if (grace_ms > 0) await this.refactorings.leaveAll(grace_ms);
    await this.#tunnels.untilIdle(Math.max(0, grace_ms - (performance.now() - began_ms)));
  }

  async close(): Promise<void> {
    await this.#weights?.close();
    await this.#kv?.close();
    this.#changes.close();
    this.refactorings.close();
    this.#tunnels.closeAll();
  }
}
