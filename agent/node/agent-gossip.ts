import { MeshPeer, type RendezvousRegistry } from '../../mesh/index.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import type { AgentLog } from './log.ts';
import type { AddressChoice } from './network-address.ts';
import type { UnitSupervisor } from './unit-supervisor.ts';

export interface AgentGossipOptions {
  registry: RendezvousRegistry;
  launch: LaunchSpec;
  choice: AddressChoice;
  /** Port on which its sessions answer. */
  port: number;
  /** It waits for this: loading the gossip's libraries would keep the agent from starting its processes. */
  begin: Promise<unknown>;
  /** The agent ends: it joins no more. */
  signal: AbortSignal;
  /** Whether a session is one of this agent. */
  isOwn: (session_id: string) => boolean;
  supervisors: () => readonly UnitSupervisor[];
  log: AgentLog;
}

/**
 * The agent's part in the gossip. It comes beside the folder and never in the place of it: where the network between
 * nodes lets nothing through, the agent serves all the same.
 */
export class AgentGossip {
  readonly #options: AgentGossipOptions;
  readonly #joining: Promise<MeshPeer | undefined>;
  #peer: MeshPeer | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: AgentGossipOptions) {
    this.#options = options;
    this.#joining = this.#join();
  }

  /** Who is still on the way in, which takes a second or more on a busy node, is not waited for. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    if (this.#peer) await this.#peer.close();
    else void this.#joining.then((peer) => peer?.close());
  }

  async #join(): Promise<MeshPeer | undefined> {
    const { registry, launch, choice, port, begin, signal, isOwn, log } = this.#options;
    if (!launch.mesh) return undefined;
    await begin;
    if (signal.aborted) return undefined;
    try {
      const peer = await MeshPeer.join(registry, {
        listen: { host: choice.listen, ports: launch.port_range ?? [0, 0] },
        announce: choice.announced,
        bootstrap: launch.mesh.bootstrap,
        relay: launch.mesh.relay,
        relays: false,
        tunnelTarget: (session_id) => (isOwn(session_id) ? { host: hereOf(choice.listen), port } : undefined),
        onTrouble: (message) => log.warn({ message }, 'gossip'),
      });
      if (signal.aborted) return peer;
      this.#peer = peer;
      const { peer: name, addresses } = peer.status();
      log.info({ peer: name, addresses }, 'joined the gossip');
      this.#timer = setInterval(() => this.#tellLoad(peer), launch.heartbeat_ms);
      this.#timer.unref();
      return peer;
    } catch (error) {
      if (!signal.aborted)
        log.warn({ error: String(error) }, 'no part in the gossip; the folder does the work');
      return undefined;
    }
  }

  #tellLoad(peer: MeshPeer): void {
    for (const unit of this.#options.supervisors()) {
      const loads = unit.loads();
      if (!unit.session || loads.length === 0) continue;
      const sum = (of: 'running' | 'waiting' | 'max_sequences'): number =>
        loads.reduce((total, load) => total + load[of], 0);
      peer.setLoad(unit.session.id, {
        running: sum('running'),
        waiting: sum('waiting'),
        max_sequences: sum('max_sequences'),
      });
    }
  }
}

/** Where something that listens on this address is reached from the same host. */
function hereOf(listen: string): string {
  if (listen === '0.0.0.0') return '127.0.0.1';
  return listen === '::' ? '::1' : listen;
}
