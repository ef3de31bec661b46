import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { LaunchSpec } from '../../spec/launch.ts';
import type { SessionRecord } from '../../spec/session-record.ts';
import { agentPaths } from '../../spec/wire.ts';
import type { GroupUnit } from './assign-devices.ts';
import { JsonLines } from './json-lines.ts';
import type { AgentLog } from './log.ts';
import type { LayoutDevice, NodeStages } from './node-stages.ts';
import { acceptUpgrade, type PipelineAgents } from './pipeline-agents.ts';
import {
  canChange,
  cannot_change,
  keptStageLayout,
  type StageLayout,
  stageLayoutSchema,
  toldLayoutSchema,
} from './stage-layout.ts';

export const changes_protocol = 'hpcserve-stage-change';

/** From the agent that drives a change of stages, or asks for one. */
const orderSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('prepare'), unit: z.string(), layout: stageLayoutSchema }),
  /** It is over. @param isDone the pipeline has this layout now; else it keeps the one before */
  z.object({ type: z.literal('settle'), unit: z.string(), layout: toldLayoutSchema, isDone: z.boolean() }),
  /** To the agent of the first stage: a node is to go, and its stages with it within this time. */
  z.object({
    type: z.literal('leave'),
    unit: z.string(),
    node_index: z.int().min(0),
    left_ms: z.int().min(0),
  }),
]);
export type ChangeOrder = z.infer<typeof orderSchema>;

/**
 * That the node has of the unit, which may be a later one: of an agent that was taken to be lost, and drove a change
 * all the same. Absent: it has nothing of it, or is of an earlier version.
 */
const ringSchema = z.int().min(0).optional();

/** From an agent whose devices take part. */
export const changeAnswerSchema = z.discriminatedUnion('type', [
  /** @param identities of its devices in the layout, in the order of computation */
  z.object({ type: z.literal('prepared'), identities: z.array(z.string()) }),
  z.object({ type: z.literal('refused'), because: z.string(), ring: ringSchema }),
  /** The worker of one of the devices is gone, or the node is to go. */
  z.object({ type: z.literal('ended'), because: z.string() }),
  z.object({ type: z.literal('settled'), ring: ringSchema }),
  /** Nothing of it is needed on the node that is to go. */
  z.object({ type: z.literal('left') }),
]);
export type ChangeAnswer = z.infer<typeof changeAnswerSchema>;

interface Prepared {
  unit: GroupUnit;
  layout: StageLayout;
  devices: readonly LayoutDevice[];
  /** Who drives the change is told why it cannot be any more. */
  end(because: string): void;
  /** Of the ends of its workers. */
  stopListening: (() => void)[];
  /** The agent that drives the change was gone, and nothing said that the layout has come: devices let go of it. */
  isGivenBack: boolean;
}

interface StageChangesOptions {
  node: string;
  agents: PipelineAgents;
  stages: NodeStages;
  launch: LaunchSpec;
  log: AgentLog;
  /** Aborted once this node is to go. */
  leaving: AbortSignal;
  /** See `PipelineRefactorings.leave`. */
  leave(unit: string, node_index: number, left_ms: number): Promise<void>;
}

/**
 * What other agents tell this one of changes that they drive. One connection is one change: as long as it is there, the
 * change is under way. Where it breaks, what was kept of the layout says what came of it; and where that was not there
 * yet, and the layout comes all the same, the node hears of it later and adopts it: see `NodeStages.change`.
 *
 *     prepare ──► prepared · refused      (ended)      settle ──► settled
 *     leave ──► left · refused            of a node that is to go, to the one that drives the changes
 */
export class StageChanges {
  readonly #options: StageChangesOptions;
  /** By unit. */
  readonly #prepared = new Map<string, Prepared>();
  readonly #connections = new Set<JsonLines<ChangeOrder, ChangeAnswer>>();

  constructor(options: StageChangesOptions) {
    this.#options = options;
    const { leaving } = options;
    leaving.addEventListener('abort', () => {
      for (const { end } of this.#prepared.values()) end(this.#isToGo);
    });
  }

  get #isToGo(): string {
    return `node ${this.#options.node} is to go`;
  }

  /** @returns false where the peer asks for something else, or may not */
  accept(request: IncomingMessage, socket: Duplex, head: Buffer, peer: SessionRecord): boolean {
    if (request.url !== agentPaths.stage_changes || request.headers.upgrade !== changes_protocol)
      return false;
    if (!this.#options.agents.has(peer)) return false;
    acceptUpgrade(socket, changes_protocol);
    if (head.length > 0) socket.unshift(head);
    let own: Prepared | undefined;
    let work = Promise.resolve();
    const lines = new JsonLines<ChangeOrder, ChangeAnswer>(
      socket,
      orderSchema,
      (order) => {
        work = work.then(async () => {
          own = await this.#take(order, lines);
        });
      },
      () => {
        this.#connections.delete(lines);
        void work.then(() => this.#broken(own));
      },
    );
    this.#connections.add(lines);
    return true;
  }

  close(): void {
    for (const lines of this.#connections) lines.close();
  }

  /** @returns what is prepared for this connection from now on */
  async #take(
    order: ChangeOrder,
    lines: JsonLines<ChangeOrder, ChangeAnswer>,
  ): Promise<Prepared | undefined> {
    const { stages } = this.#options;
    try {
      if (order.type === 'prepare') return await this.#prepare(order, lines);
      if (order.type === 'leave') {
        await this.#options.leave(order.unit, order.node_index, order.left_ms);
        lines.send({ type: 'left' });
        return undefined;
      }
      await this.#settle(order.unit, order.layout, order.isDone);
      lines.send({ type: 'settled', ring: stages.ring(order.unit) });
    } catch (error) {
      const { message, because } = HpcserveError.from(error);
      lines.send({
        type: 'refused',
        because: [message, ...because].join(': '),
        ring: stages.ring(order.unit),
      });
    }
    return undefined;
  }

  async #prepare(
    { unit: name, layout }: ChangeOrder & { type: 'prepare' },
    lines: JsonLines<ChangeOrder, ChangeAnswer>,
  ): Promise<Prepared | undefined> {
    const { node, stages, launch, log, leaving } = this.#options;
    // Of a change whose agent is gone: one is under way at a time.
    const before = this.#prepared.get(name);
    if (before) await this.#settle(name, before.layout, false);
    const unit = stages.unit(name);
    const ring = stages.ring(name);
    let refused: string | undefined;
    if (leaving.aborted) refused = this.#isToGo;
    else if (!unit) refused = `${node} has no device for ${name}`;
    else if (!canChange(launch, unit)) refused = cannot_change;
    else if (ring !== undefined && ring >= layout.ring)
      refused = `${node} has stages of change ${ring}, and is asked for those of change ${layout.ring}`;
    if (!unit || refused !== undefined) {
      lines.send({ type: 'refused', because: refused!, ring });
      return undefined;
    }
    const devices = stages.devices(unit, layout);
    const end = (because: string): void => lines.send({ type: 'ended', because });
    const prepared: Prepared = { unit, layout, devices, end, stopListening: [], isGivenBack: false };
    this.#prepared.set(name, prepared);
    try {
      await stages.prepare(name, layout, devices);
    } catch (error) {
      this.#prepared.delete(name);
      throw error;
    }
    log.info({ unit: name, layout }, 'its stages change, as another node says');
    lines.send({ type: 'prepared', identities: devices.map(({ identity }) => identity) });
    prepared.stopListening = devices.map(({ worker, supervisor }) =>
      worker.onEnded(() => end(`the worker of ${supervisor.name} on ${node} ended`)),
    );
    return prepared;
  }

  /** The agent that drives it is gone, or cannot be reached. */
  async #broken(own: Prepared | undefined): Promise<void> {
    const { launch, log } = this.#options;
    if (own === undefined || this.#prepared.get(own.unit.unit) !== own) return;
    let kept: StageLayout | undefined;
    try {
      kept = keptStageLayout(launch, own.unit);
    } catch (error) {
      log.error({ unit: own.unit.unit, error: String(error) }, 'the layout of its stages cannot be read');
    }
    try {
      await this.#settle(own.unit.unit, own.layout, kept?.ring === own.layout.ring);
    } catch (error) {
      log.error({ unit: own.unit.unit, error: String(error) }, 'what came of its stages cannot be followed');
    }
  }

  async #settle(name: string, layout: StageLayout, isDone: boolean): Promise<void> {
    const { stages, log } = this.#options;
    const prepared = this.#prepared.get(name);
    const own = prepared?.layout.ring === layout.ring ? prepared : undefined;
    for (const stop of own?.stopListening.splice(0) ?? []) stop();
    const unit = stages.unit(name);
    if (!unit) return;
    if (isDone) {
      await stages.change(unit, layout, own ? stillReady(own) : []);
      if (own) this.#prepared.delete(name);
    } else if (own?.isGivenBack !== true) {
      stages.keep(unit, layout, own?.devices ?? []);
      if (own) own.isGivenBack = true;
    }
    log.info({ unit: name, layout, isDone }, isDone ? 'its stages have changed' : 'its stages are kept');
  }
}

/**
 * The devices that did not let go of what they prepared. One that computed a stage before lets go of a stage that has
 * not begun: where the layout has come, all have.
 */
function stillReady({ devices, isGivenBack }: Prepared): readonly LayoutDevice[] {
  return isGivenBack ? devices.filter(({ isUsed }) => isUsed) : devices;
}
