import { rmSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import type { SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';
import type { AgentLog } from './log.ts';
import { acceptUpgrade, type PipelineAgents } from './pipeline-agents.ts';
import { stageSocket } from './stage-place.ts';

const protocol = 'hpcserve-stage';
/** How often it is looked whether batches still come to the stages of a node that ends. */
const look_ms = 250;
/** A stage to which nothing came for so long is idle. Lower: its node leaves sooner; higher: stages may be slower. */
const idle_ms = 2000;
/** Less than what says where a batch lies that came by the fabric; more than what says that a neighbour is alive. */
const batch_bytes_min = 72;
const path_pattern = new RegExp(`^${agentPaths.stages}/([^/]+)/(?:(\\d+)/)?(\\d+)$`);

export interface StageTunnelsOptions {
  agents: PipelineAgents;
  /** Of the node, among those that its units count. */
  node_index: number;
  /** The agent's, of mode 0700, where the sockets of stages are. */
  folder: string;
  log: AgentLog;
}

/** To a stage on another node. */
interface StageWay {
  /** That other agents are asked for. */
  readonly path: string;
  /** Why none of them let this node through, as the log has it. */
  refused: string | undefined;
}

/** A ring of a pipeline as far as it passes this node. */
interface NodeRing {
  /** Stages that are here. */
  own: ReadonlySet<number>;
  servers: Server[];
}

/**
 * Joins the rings of pipelines whose stages are on several nodes of a job, or of several jobs. A worker reaches the
 * stage behind it by a unix socket in any case; where that stage is on another node, the socket is the agent's, which
 * passes what comes on over TLS with pinned keys, and the agent there to its worker. Nothing new listens on a network.
 *
 *     worker ──► p…-2.sock ── agent ══ TLS, HTTP upgrade ══ agent ── p…-2.sock ──► worker of stage 2
 *
 * While the stages of a pipeline change, two of its rings are here.
 */
export class StageTunnels {
  readonly #options: StageTunnelsOptions;
  /** By unit, and by the number of the change that brought the ring; 0: that of its launch. */
  readonly #rings = new Map<string, Map<number, NodeRing>>();
  readonly #sockets = new Set<Duplex>();
  /** To workers of stages here whose coordinator is elsewhere. */
  readonly #followers = new Set<Socket>();

  constructor(options: StageTunnelsOptions) {
    this.#options = options;
  }

  /**
   * For each stage of this node whose next one is on another node, a socket.
   * @param nodes of each stage
   * @throws the system's error; then no socket of the ring is left
   */
  async open(unit: string, ring: number | undefined, nodes: readonly number[]): Promise<void> {
    const { node_index } = this.#options;
    const own = new Set(nodes.flatMap((node, stage) => (node === node_index ? [stage] : [])));
    const rings = this.#rings.get(unit) ?? new Map<number, NodeRing>();
    this.#rings.set(unit, rings);
    this.close(unit, ring);
    const opened: NodeRing = { own, servers: [] };
    const isOpen = (): boolean => rings.get(ring ?? 0) === opened;
    rings.set(ring ?? 0, opened);
    for (const stage of own) {
      const next = (stage + 1) % nodes.length;
      if (own.has(next)) continue;
      try {
        const server = await this.#listen(unit, ring, next);
        if (isOpen()) opened.servers.push(server);
        else server.close(); // the ring was over before it listened
      } catch (error) {
        if (isOpen()) this.close(unit, ring);
        throw error;
      }
    }
  }

  /** Whether a ring is open, or opens. */
  has(unit: string, ring: number): boolean {
    return this.#rings.get(unit)?.has(ring) === true;
  }

  /** The ring is over; what is still connected ends with the workers. */
  close(unit: string, ring: number | undefined): void {
    const rings = this.#rings.get(unit);
    for (const server of rings?.get(ring ?? 0)?.servers ?? []) server.close();
    rings?.delete(ring ?? 0);
  }

  /** The only ring of a unit that is not over. */
  keep(unit: string, ring: number): void {
    for (const each of [...(this.#rings.get(unit)?.keys() ?? [])]) if (each !== ring) this.close(unit, each);
  }

  /**
   * Resolves when no batch comes any more to stages here whose coordinator is elsewhere: answers end there, not here.
   * @param grace_ms at most so late
   */
  async untilIdle(grace_ms: number): Promise<void> {
    const began_ms = performance.now();
    const seen = new Map<Socket, number>();
    let busy_ms = began_ms;
    while (this.#followers.size > 0 && performance.now() - began_ms < grace_ms) {
      for (const worker of this.#followers) {
        const { bytesWritten } = worker;
        if (bytesWritten - (seen.get(worker) ?? bytesWritten) >= batch_bytes_min) busy_ms = performance.now();
        seen.set(worker, bytesWritten);
      }
      if (performance.now() - busy_ms >= idle_ms) return;
      await delay(look_ms);
    }
  }

  closeAll(): void {
    for (const rings of this.#rings.values())
      for (const { servers } of rings.values()) for (const server of servers) server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Another agent of the pipeline asks for a stage of this node. @returns false where it asks for something else */
  accept(request: IncomingMessage, socket: Duplex, head: Buffer, peer: SessionRecord): boolean {
    const { folder, agents } = this.#options;
    const [, name = '', ringText, stageText = ''] = path_pattern.exec(request.url ?? '') ?? [];
    const unit = [...this.#rings.keys()].find((each) => encodeURIComponent(each) === name) ?? '';
    const ring = ringText === undefined ? undefined : Number(ringText);
    const stage = Number(stageText);
    const own = this.#rings.get(unit)?.get(ring ?? 0)?.own;
    if (request.headers.upgrade !== protocol || !own?.has(stage) || !agents.has(peer)) return false;
    const worker = createConnection(stageSocket(folder, unit, stage, ring));
    worker.once('error', () => socket.destroy());
    worker.once('connect', () => {
      acceptUpgrade(socket, protocol);
      if (head.length > 0) worker.write(head);
      this.#join(socket, worker);
      if (own.has(0) || worker.destroyed) return;
      this.#followers.add(worker);
      worker.once('close', () => this.#followers.delete(worker));
    });
    return true;
  }

  async #listen(unit: string, ring: number | undefined, stage: number): Promise<Server> {
    const path = stageSocket(this.#options.folder, unit, stage, ring);
    rmSync(path, { force: true });
    const which = ring === undefined ? `${stage}` : `${ring}/${stage}`;
    const way: StageWay = {
      path: `${agentPaths.stages}/${encodeURIComponent(unit)}/${which}`,
      refused: undefined,
    };
    const server = createServer({ pauseOnConnect: true }, (socket) => this.#pass(socket, way));
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(path, resolve);
    });
    return server;
  }

  /** A worker of this node reaches for a stage elsewhere. */
  #pass(socket: Socket, to: StageWay): void {
    this.#sockets.add(socket);
    socket.once('close', () => this.#sockets.delete(socket));
    socket.on('error', () => socket.destroy()); // a worker that goes is no failure of the agent
    this.#reach(to).then(
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

  /** The first of the pipeline's other agents that has it. */
  async #reach(to: StageWay): Promise<Duplex | undefined> {
    const { agents } = this.#options;
    const refused: string[] = [];
    for (const other of agents.others()) {
      try {
        const way = await agents.ask(other, to.path, protocol);
        to.refused = undefined;
        return way;
      } catch (error) {
        refused.push(`${other.metadata.node}: ${(error as Error).message}`);
      }
    }
    this.#note(to, refused.length > 0 ? refused.join('; ') : 'no other node of its pipeline is known');
    return undefined;
  }

  /** A ring tries again every other second: what is the same as before is not said again. */
  #note(to: StageWay, because: string): void {
    if (to.refused === because) return;
    to.refused = because;
    this.#options.log.info({ path: to.path, because }, 'a stage elsewhere is not reached yet');
  }

  /** Each ends with the other: the ring is broken. */
  #join(a: Duplex, b: Duplex): void {
    // One may have ended before the other came.
    if (a.destroyed || b.destroyed) {
      a.destroy();
      b.destroy();
      return;
    }
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
