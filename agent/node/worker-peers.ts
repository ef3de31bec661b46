import type { IncomingMessage } from 'node:http';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { Registry, SessionIdentity } from '../../mesh/index.ts';
import type { LaunchSpec, UnitSpec } from '../../spec/launch.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { KvPeers } from './kv-peers.ts';
import { PeerWeights } from './peer-weights.ts';
import type { NodeIdentity } from './slurm-environment.ts';
import { StageTunnels } from './stage-tunnels.ts';

interface WorkerPeersOptions {
  registry: Registry;
  /** Of the agent's own session. */
  own: SessionIdentity;
  launch: LaunchSpec;
  node: NodeIdentity;
  /** Of the node, among those that its units count. */
  node_index: number;
  units: readonly UnitSpec[];
  /** 0700. */
  runtime_folder: string;
  /** Fingerprint of the own provider; undefined while nothing proves it. */
  provider(): string | undefined;
}

/** What brings the device workers of this node together with those of others: tensors, keys and values, stages. */
export class WorkerPeers {
  /** Where workers ask for tensors; undefined where the site does not want it, or no worker runs. */
  readonly weights_socket: string | undefined;
  /** Where they ask for peers that answers can move to; undefined where no worker runs. */
  readonly kv_socket: string | undefined;
  readonly #weights: PeerWeights | undefined;
  readonly #kv: KvPeers | undefined;
  readonly #tunnels: StageTunnels;

  private constructor(options: WorkerPeersOptions) {
    const { registry, own, launch, node, node_index, units, runtime_folder, provider } = options;
    const native = units.filter(({ engine }) => engine === 'native');
    const { site, sharing } = launch;
    if (native.length > 0) {
      this.#kv = new KvPeers({ registry, own, hostname: node.hostname, provider });
      this.kv_socket = join(runtime_folder, 'kv.sock');
    }
    if (native.length > 0 && sharing?.peer_loads !== false) {
      const models = native.map(({ model }) => model.name);
      this.#weights = new PeerWeights({ registry, own, node: node.node, site, models });
      this.weights_socket = join(runtime_folder, 'peers.sock');
    }
    this.#tunnels = new StageTunnels({
      registry,
      own,
      launch,
      node_index,
      units,
      folder: runtime_folder,
      provider,
    });
  }

  static async open(options: WorkerPeersOptions): Promise<WorkerPeers> {
    const peers = new WorkerPeers(options);
    if (peers.weights_socket !== undefined) await peers.#weights?.listen(peers.weights_socket);
    if (peers.kv_socket !== undefined) await peers.#kv?.listen(peers.kv_socket);
    await peers.#tunnels.listen();
    return peers;
  }

  /** See `StageTunnels.accept`. */
  accept(request: IncomingMessage, socket: Duplex, head: Buffer, peer: SessionRecord): boolean {
    return this.#tunnels.accept(request, socket, head, peer);
  }

  async close(): Promise<void> {
    await this.#weights?.close();
    await this.#kv?.close();
    this.#tunnels.close();
  }
}
