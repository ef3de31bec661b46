import { rmSync } from 'node:fs';
import { type IncomingMessage, request as requestHttp } from 'node:http';
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { pinnedConnect, type Registry, type SessionIdentity } from '../../mesh/index.ts';
import type { LaunchSpec, UnitSpec } from '../../spec/launch.ts';
import { provenProviderOf, type SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';
import { stageSocket } from './stage-place.ts';

/** A node that does not say by then whether it has the stage is asked again with the next connection. */
const answer_ms = 5000;
const protocol = 'hpcserve-stage';

export interface StageTunnelsOptions {
  registry: Registry;
  /** The agent's own session. */
  own: SessionIdentity;
  launch: Pick<LaunchSpec, 'launch_id' | 'deployment' | 'part'>;
  /** Of the node, among those that its units count. */
  node_index: number;
  units: readonly UnitSpec[];
  /** The agent's, of mode 0700, where the sockets of stages are. */
  folder: string;
  /** Fingerprint of the launch's provider; undefined while nothing proves it. */
  provider(): string | undefined;
}

/**
 * Joins the rings of pipelines whose stages are on several nodes of a job, or of several jobs. A worker reaches the
 * stage behind it by a unix socket in any case; where that stage is on another node, the socket is the agent's, which
 * passes what comes on over TLS with pinned keys, and the agent there to its worker. Nothing new listens on a network.
 *
 *     worker ──► p…-2.sock ── agent ══ TLS, HTTP upgrade ══ agent ── p…-2.sock ──► worker of stage 2
 */
export class StageTunnels {
  readonly #options: StageTunnelsOptions;
  readonly #servers: Server[] = [];
  readonly #sockets = new Set<Duplex>();

  constructor(options: StageTunnelsOptions) {
    this.#options = options;
  }

  /** For each unit whose next stage is on another node, its socket. */
  async listen(): Promise<void> {
    const { units, node_index, folder } = this.#options;
    for (const unit of units) {
      const { stages, device_count } = unit;
      if (!stages) continue;
      const first = (node_index - unit.node_index) * device_count;
      // All of its stages are here, or none: devices behind the last one have no stage yet.
      if (stages.length <= device_count || first >= stages.length) continue;
      const stage = Math.min(first + device_count, stages.length) % stages.length;
      const path = stageSocket(folder, unit.unit, stage);
      rmSync(path, { force: true });
      const server = createServer({ pauseOnConnect: true }, (socket) => this.#pass(socket, unit, stage));
      this.#servers.push(server);
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject);
        server.listen(path, resolve);
      });
    }
  }

  close(): void {
    for (const server of this.#servers) server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Another agent of the pipeline asks for a stage of this node. @returns false where it asks for something else */
  accept(request: IncomingMessage, socket: Duplex, head: Buffer, peer: SessionRecord): boolean {
    const { folder, provider, units } = this.#options;
    const [, name = '', stage = ''] =
      new RegExp(`^${agentPaths.stages}/([^/]+)/(\\d+)$`).exec(request.url ?? '') ?? [];
    const unit = units.find((each) => each.unit === decodeURIComponent(name));
    const own = provider();
    const isOurs = this.#belongsTo(peer) && own !== undefined && provenProviderOf(peer, Date.now()) === own;
    if (request.headers.upgrade !== protocol || !unit || !isOurs || !this.#has(unit, Number(stage)))
      return false;
    const worker = createConnection(stageSocket(folder, unit.unit, Number(stage)));
    worker.once('error', () => socket.destroy());
    worker.once('connect', () => {
      socket.write(`HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ${protocol}\r\n\r\n`);
      if (head.length > 0) worker.write(head);
      this.#join(socket, worker);
    });
    return true;
  }

  #has({ node_index, device_count, stages }: UnitSpec, stage: number): boolean {
    const first = (this.#options.node_index - node_index) * device_count;
    return stages !== undefined && stage >= first && stage < first + device_count;
  }

  /** A worker of this node reaches for a stage elsewhere. */
  #pass(socket: Socket, { unit }: UnitSpec, stage: number): void {
    this.#sockets.add(socket);
    socket.on('error', () => socket.destroy()); // a worker that goes is no failure of the agent
    this.#reach(`${agentPaths.stages}/${encodeURIComponent(unit)}/${stage}`).then(
      (way) => {
        if (way && !socket.destroyed) this.#join(way, socket);
        else {
          way?.destroy();
          socket.destroy();
        }
      },
      () => socket.destroy(),
    );
  }

  /** Whether a session is an agent that may have stages of the same pipelines: of this job, or of its group. */
  #belongsTo({ metadata }: SessionRecord): boolean {
    const { launch_id, deployment, part } = this.#options.launch;
    if (metadata.role !== 'node-agent') return false;
    if (part === undefined) return metadata.launch_id === launch_id;
    return metadata.deployment === deployment && metadata.pipeline_group === part.group;
  }

  /** The first of the pipeline's other agents that has it. */
  async #reach(path: string): Promise<Duplex | undefined> {
    const { registry, own } = this.#options;
    const others = registry
      .snapshot()
      .filter(
        (record) =>
          record.lifecycle === 'SERVING' && record.session_id !== own.session_id && this.#belongsTo(record),
      );
    for (const other of others) {
      const way = await this.#ask(other, path).catch(() => undefined);
      if (way) return way;
    }
    return undefined;
  }

  async #ask(peer: SessionRecord, path: string): Promise<Duplex | undefined> {
    const connection = await pinnedConnect(peer, this.#options.own);
    connection.setNoDelay(true);
    return new Promise((resolve, reject) => {
      const request = requestHttp({
        createConnection: () => connection,
        path,
        headers: { host: 'stage', connection: 'Upgrade', upgrade: protocol },
        timeout: answer_ms,
      });
      request.once('upgrade', (_response, way: Duplex, head) => {
        if (head.length > 0) way.unshift(head);
        connection.setTimeout(0);
        resolve(way);
      });
      request.once('response', (response) => {
        response.resume();
        connection.destroy();
        resolve(undefined);
      });
      request.once('timeout', () => connection.destroy());
      request.once('error', reject);
      request.end();
    });
  }

  /** Each ends with the other: the ring is broken. */
  #join(a: Duplex, b: Duplex): void {
    for (const [from, to] of [
      [a, b],
      [b, a],
    ] as const) {
      this.#sockets.add(from);
      from.on('error', () => from.destroy());
      from.once('close', () => {
        this.#sockets.delete(from);
        to.destroy();
      });
      from.pipe(to);
    }
  }
}
