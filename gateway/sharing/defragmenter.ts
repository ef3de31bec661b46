import { every } from '../../host/every.ts';
import { standingCandidates } from '../../solver/sharing/candidates.ts';
import { planConsolidation } from '../../solver/sharing/consolidation.ts';
import type { ArrivingRequest, DeviceView, ModelLookup } from '../../solver/sharing/device-view.ts';
import { planPreemption } from '../../solver/sharing/preemption.ts';
import { defaultSharingSettings, type SharingSettings } from '../../solver/sharing/settings.ts';
import { movedSchema, type RefusedRequest } from '../../spec/device-view.ts';
import { agentPaths } from '../../spec/wire.ts';
import type { GatewayLog } from '../log.ts';
import type { RoutingTable } from '../routing/table.ts';
import type { SessionLink } from '../session-link.ts';
import { type SeenDevice, seeDevices } from './device-views.ts';

/** Until a worker has moved: it answers between two iterations. */
const move_ms = 5000;
/** After a move views are out of date until replicas have said what they run now. Higher: fewer moves. */
const rest_ms = 5000;
/**
 * Between two looks for a neighbour that could give way: until what was moved has arrived, and since under overload
 * many are refused. Lower: room is found sooner; higher: less is asked of workers.
 */
const between_rooms_ms = 1000;

/**
 * Fragments of models on the devices of native replicas. Reactive (LLM-Mesh §7.2): where a smaller instance's requests
 * all fit, within their SLOs, onto larger ones, its worker breaks them off, this and other gateways have them continued
 * there, and the device is free for other models. Proactive (§7.1): a request that is refused where its model runs
 * takes the place of a smaller neighbour there, whose requests go on elsewhere in the same way. What is decided is pure
 * (`solver/sharing`), by views that workers give of themselves; whoever is asked to go on with a stream takes it in any
 * case.
 */
export class Defragmenter {
  readonly #table: RoutingTable<SessionLink>;
  readonly #log: GatewayLog;
  #stop: () => void = () => undefined;
  #busy = false;
  #rests_until_ms = 0;
  #room_ended_ms = Number.NEGATIVE_INFINITY;
  #room: { model: string; found: Promise<string | undefined> } | undefined;

  constructor(table: RoutingTable<SessionLink>, log: GatewayLog) {
    this.#table = table;
    this.#log = log;
  }

  /** @param interval_ms how often to look. Lower: devices are free sooner; higher: less is asked of workers */
  start(interval_ms: number): void {
    this.#stop = every(interval_ms, () => void this.look());
  }

  /** Looks no more by itself; what is asked of it is still done. */
  stop(): void {
    this.#stop();
  }

  /** Moves the requests of one fragment, where there is one. */
  async look(): Promise<void> {
    if (this.#busy || performance.now() < this.#rests_until_ms || !this.#areFragments()) return;
    this.#busy = true;
    try {
      const seen = await seeDevices(this.#table, this.#log);
      const settings = commonSettings(seen);
      if (!settings.consolidation) return;
      const plan = planConsolidation(
        seen.map(({ view }) => view),
        0,
        settings,
      );
      if (!plan) return;
      const moved = await this.#move(seen, plan.device, plan.instance.model, plan.because);
      this.#rests_until_ms = performance.now() + rest_ms;
      this.#log.info(moved, 'the requests of a fragment go on elsewhere');
    } catch (error) {
      this.#log.warn({ reason: (error as Error).message }, 'a fragment could not be moved');
    } finally {
      this.#busy = false;
    }
  }

  /**
   * A request that is refused where its model runs: has a smaller neighbour give way, where all requests of that one
   * are taken elsewhere within their SLOs. Who asks for the same model meanwhile shares what is found.
   * @param asked sessions that refused it
   * @returns the one of them to ask again; undefined where nobody gives way
   */
  makeRoom(model: string, refused: RefusedRequest, asked: readonly string[]): Promise<string | undefined> {
    if (this.#room?.model === model) return this.#room.found;
    if (this.#busy || performance.now() - this.#room_ended_ms < between_rooms_ms)
      return Promise.resolve(undefined);
    this.#busy = true;
    const found = this.#findRoom(model, refused, asked).catch((error: Error) => {
      this.#log.warn({ model, reason: error.message }, 'no room could be made');
      return undefined;
    });
    this.#room = { model, found };
    return found.finally(() => {
      this.#busy = false;
      this.#room = undefined;
      this.#room_ended_ms = performance.now();
    });
  }

  async #findRoom(
    model: string,
    refused: RefusedRequest,
    asked: readonly string[],
  ): Promise<string | undefined> {
    const seen = await seeDevices(this.#table, this.#log, asked);
    const settings = commonSettings(seen);
    if (!settings.preemption) return undefined;
    const views = seen.map(({ view }) => view);
    const request: ArrivingRequest = {
      ...refused,
      id: 'newcomer',
      model,
      arrival_ms: 0,
      output_tokens: 0,
      prefill_tokens_left: refused.input_tokens,
      available_at_ms: 0,
    };
    const standing = standingCandidates(model, views, settings).filter(({ device }) =>
      asked.includes(device.id),
    );
    const models: ModelLookup = (name, { id }) =>
      seen.find(({ view }) => view.id === id)?.resting.find((resting) => resting.model === name);
    const plan = planPreemption(request, standing, views, models, 0, settings);
    if (!plan) return undefined;
    const moved = await this.#move(seen, plan.device, plan.victim.model, plan.because);
    if (moved.moved === 0) return undefined;
    this.#log.info(moved, 'a smaller instance gives way: its requests go on elsewhere');
    return plan.device.id;
  }

  async #move(
    seen: readonly SeenDevice[],
    { id: session }: DeviceView,
    model: string,
    because: string,
  ): Promise<{ session: string; model: string; moved: number; because: string }> {
    const { link } = seen.find(({ view }) => view.id === session)!;
    const told = await link.tell(agentPaths.move, model, { model, because }, move_ms);
    return { session, model, because, ...movedSchema.parse(told) };
  }

  /** By the heartbeats, which cost nothing: a model that runs on two devices at once. */
  #areFragments(): boolean {
    const running = new Set<string>();
    for (const { record, reachable, replicas } of this.#table.sessions()) {
      if (!reachable || record.metadata.engine !== 'native') continue;
      for (const { served, running: sequences } of replicas) {
        if (sequences === 0) continue;
        if (running.has(served.name)) return true;
        running.add(served.name);
      }
    }
    return false;
  }
}

/** Workers of one site are told the same; where sites differ, what all of them allow. */
function commonSettings(seen: readonly SeenDevice[]): SharingSettings {
  const all = seen.map(({ settings }) => settings);
  return {
    ...defaultSharingSettings,
    ...all[0],
    consolidation: all.every(({ consolidation }) => consolidation),
    preemption: all.every(({ preemption }) => preemption),
    overestimate: Math.max(0, ...all.map(({ overestimate }) => overestimate)),
  };
}
