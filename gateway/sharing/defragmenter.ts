/**
 * Fragments of models on the devices of native replicas (LLM-Mesh §7.2): where a smaller instance's requests all fit, within
 * their levels, onto larger ones, its worker breaks them off, this and other gateways have them continued there, and the
 * device is free for other models. What is decided is pure (`solver/sharing/consolidation.ts`); workers and their own
 * validation have the last word, and whoever is asked to go on with a stream takes it in any case.
 */
import { planConsolidation } from '../../solver/sharing/consolidation.ts';
import type { DeviceView } from '../../solver/sharing/device-view.ts';
import { defaultSharingSettings, type SharingSettings } from '../../solver/sharing/settings.ts';
import { movedSchema } from '../../spec/device-view.ts';
import { agentPaths } from '../../spec/wire.ts';
import type { GatewayLog } from '../log.ts';
import type { RoutingTable } from '../routing/table.ts';
import type { SessionLink } from '../session-link.ts';
import { type SeenDevice, seeDevices } from './device-views.ts';

/** Until a worker has moved: it answers between two iterations. */
const move_ms = 5000;
/** After a move views are out of date until replicas have said what they run now. Higher: fewer moves. */
const rest_ms = 5000;

export class Defragmenter {
  readonly #table: RoutingTable<SessionLink>;
  readonly #log: GatewayLog;
  readonly #timer: NodeJS.Timeout;
  #busy = false;
  #rests_until_ms = 0;

  /** @param interval_ms how often to look. Lower: devices are free sooner; higher: less is asked of workers */
  constructor(table: RoutingTable<SessionLink>, log: GatewayLog, interval_ms: number) {
    this.#table = table;
    this.#log = log;
    this.#timer = setInterval(() => void this.look(), interval_ms);
    this.#timer.unref();
  }

  close(): void {
    clearInterval(this.#timer);
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
      if (plan) await this.#move(seen, plan.device, plan.instance.model, plan.because);
    } catch (error) {
      this.#log.warn({ reason: (error as Error).message }, 'a fragment could not be moved');
    } finally {
      this.#busy = false;
    }
  }

  async #move(
    seen: readonly SeenDevice[],
    device: DeviceView,
    model: string,
    because: string,
  ): Promise<void> {
    const { link } = seen.find(({ view }) => view.id === device.id)!;
    const { moved } = movedSchema.parse(await link.tell(agentPaths.move, model, { model, because }, move_ms));
    this.#rests_until_ms = performance.now() + rest_ms;
    this.#log.info(
      { session: device.id, model, moved, because },
      'the requests of a fragment go on elsewhere',
    );
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
    overestimate: Math.max(0, ...all.map(({ overestimate }) => overestimate)),
  };
}
