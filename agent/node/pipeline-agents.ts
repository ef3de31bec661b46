import { request as requestHttp } from 'node:http';
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { pinnedConnect, type Registry, type SessionIdentity } from '../../mesh/index.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import { type DeviceDescription, provenProviderOf, type SessionRecord } from '../../spec/session-record.ts';

/** An agent that does not say by then whether it takes what is asked is taken to refuse. */
const answer_ms = 5000;

export interface PipelineAgentsOptions {
  registry: Registry;
  /** Of the agent's own session now. */
  own(): SessionIdentity;
  /** Of its node, among those that its units count. */
  node_index: number;
  launch: Pick<LaunchSpec, 'launch_id' | 'deployment' | 'part'>;
  /** Fingerprint of the launch's provider; undefined while nothing proves it. */
  provider(): string | undefined;
}

/**
 * A host that vanishes sends nothing: its silence is looked into after so long, and found within ten seconds more.
 * Lower: found sooner; higher: fewer packets on connections that wait.
 */
const keep_alive_ms = 10_000;

/** The agents that have stages of the same pipelines as this one: those of its job, or of its group of jobs. */
export class PipelineAgents {
  readonly #options: PipelineAgentsOptions;

  constructor(options: PipelineAgentsOptions) {
    this.#options = options;
  }

  /** Whether a peer whose key was proved is one of them, and of the same provider. */
  has(peer: SessionRecord): boolean {
    const own = this.#options.provider();
    return this.#belongs(peer) && own !== undefined && provenProviderOf(peer, Date.now()) === own;
  }

  /**
   * Those that can be asked now. Of a job that is over the record may still be there beside that of the job in its
   * place: the one that began later counts. One that had this agent's place is none of them.
   */
  others(): SessionRecord[] {
    const { registry, node_index } = this.#options;
    const own_id = this.#options.own().session_id;
    const serving = registry
      .snapshot()
      .filter((record) => record.lifecycle === 'SERVING' && record.session_id !== own_id && this.has(record));
    const byNode = new Map<number | undefined, SessionRecord>();
    for (const record of serving.sort((a, b) => a.started_at_ms - b.started_at_ms))
      byNode.set(record.metadata.node_index, record);
    byNode.delete(node_index);
    return [...byNode.values()];
  }

  /** Devices of their nodes and of this one, by the numbers of the nodes. */
  devicesByNode(): Map<number, readonly DeviceDescription[]> {
    const { registry, own, node_index } = this.#options;
    const devices = new Map<number, readonly DeviceDescription[]>();
    for (const { metadata } of this.others())
      if (metadata.node_index !== undefined) devices.set(metadata.node_index, metadata.devices);
    return devices.set(node_index, registry.get(own().session_id)?.metadata.devices ?? []);
  }

  /**
   * @param path what it is asked for, by an upgrade to `protocol`
   * @returns a connection to it
   * @throws Error with what it said where it refuses
   */
  async ask(peer: SessionRecord, path: string, protocol: string): Promise<Duplex> {
    const connection = await pinnedConnect(peer, this.#options.own());
    connection.setNoDelay(true);
    // The request sets none on a connection that it did not make, and only hears of it.
    connection.setTimeout(answer_ms);
    return new Promise((resolve, reject) => {
      const request = requestHttp({
        createConnection: () => connection,
        path,
        headers: { host: 'agent', connection: 'Upgrade', upgrade: protocol },
        timeout: answer_ms,
      });
      request.once('upgrade', (_response, way: Duplex, head) => {
        if (head.length > 0) way.unshift(head);
        connection.setTimeout(0);
        connection.setKeepAlive(true, keep_alive_ms);
        resolve(way);
      });
      request.once('response', (response) => {
        reject(new Error(`it answers with status ${response.statusCode}`));
        connection.destroy();
      });
      request.once('timeout', () => connection.destroy(new Error(`it said nothing within ${answer_ms} ms`)));
      request.once('error', reject);
      request.end();
    });
  }

  #belongs({ metadata }: SessionRecord): boolean {
    const { launch_id, deployment, part } = this.#options.launch;
    if (metadata.role !== 'node-agent') return false;
    if (part === undefined) return metadata.launch_id === launch_id;
    return metadata.deployment === deployment && metadata.pipeline_group === part.group;
  }
}

/** Says yes to what `PipelineAgents.ask` asks. */
export function acceptUpgrade(socket: Duplex, protocol: string): void {
  if (socket instanceof Socket) socket.setKeepAlive(true, keep_alive_ms);
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ${protocol}\r\n\r\n`);
}
