import { type AdmissionVerdict, admitNew, admitTo, type Release } from '../../../solver/sharing/admission.ts';
import { attainableSlo } from '../../../solver/sharing/attainable-slo.ts';
import {
  type DeviceView,
  type InstanceView,
  type ModelOnDevice,
  type RequestView,
  standing_bytes,
} from '../../../solver/sharing/device-view.ts';
import { kvDemand } from '../../../solver/sharing/kv-budget.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import type { DeviceMemory } from './device-memory.ts';
import { mayRest, type ScheduledInstance, type ScheduledRequest } from './scheduled-instance.ts';

/** A model that was here and is away, as its instance was. */
export type AwayModel = Pick<
  ScheduledInstance,
  | 'model'
  | 'profile'
  | 'growing'
  | 'slo'
  | 'max_sequences'
  | 'weight_bytes'
  | 'working_bytes'
  | 'kv_whole'
  | 'kv_bytes_per_token'
  | 'kv_bytes_max'
  | 'tokens_max'
  | 'prefill_chunk_tokens_max'
>;

/** A model that is on its way back, with the requests that were let in for it. */
export interface ComingInstance extends AwayModel, Omit<InstanceView, keyof AwayModel | 'requests'> {
  requests: ScheduledRequest[];
  places: number;
  readonly live: Map<number, ScheduledRequest>;
}

type SharedDevice = Omit<DeviceView, 'instances'> & { instances: ScheduledInstance[] };

/**
 * Models of a device that have no instance now (LLM-Mesh §4): whether one is made for a request, decided by the very
 * state that schedules the others, and what is promised to those on their way. Weights and KV of such a model are set
 * aside from its first request on, so that nothing that is let in meanwhile takes them.
 */
export class ComingModels {
  readonly #device: SharedDevice;
  readonly #memory: DeviceMemory;
  readonly #settings: SharingSettings;
  readonly #away = new Map<string, AwayModel>();
  readonly #coming = new Map<string, ComingInstance>();
  /** On their way with all of their KV: it is set aside, whether it was promised to requests or not. */
  readonly #whole = new Set<string>();

  constructor(device: SharedDevice, memory: DeviceMemory, settings: SharingSettings) {
    this.#device = device;
    this.#memory = memory;
    this.#settings = settings;
  }

  /** Those on their way. */
  get instances(): ComingInstance[] {
    return [...this.#coming.values()];
  }

  away(name: string): AwayModel | undefined {
    return this.#away.get(name);
  }

  /** Those without an instance, as one of each would run here. @param loadTime_ms until one would be there */
  resting(loadTime_ms: (model: string) => number): (ModelOnDevice & AwayModel)[] {
    return [...this.#away.values()]
      .filter(({ model }) => !this.#coming.has(model))
      .map((away) => ({ ...away, load_ms: loadTime_ms(away.model) }));
  }

  /** What they would take at least. */
  get away_bytes(): number {
    let bytes = 0;
    for (const [name, away] of this.#away) {
      const requests = this.#coming.get(name)?.requests ?? [];
      bytes += standing_bytes(away) + kvDemand({ ...away, requests }, this.#settings).required_bytes;
    }
    return bytes;
  }

  /** An instance has left the schedule. */
  left(instance: ScheduledInstance): void {
    this.#away.set(instance.model, instance);
  }

  /** It serves, or does not come after all: what was set aside for it is free. */
  ended(name: string): void {
    const isSetAside = this.#coming.has(name) || this.#whole.has(name);
    this.#coming.delete(name);
    this.#whole.delete(name);
    if (isSetAside) this.#memory.remove(name);
  }

  /**
   * A pipeline sets out, which takes all of its KV as it comes: that is set aside before, beside what others' requests
   * need.
   * @param liveOf what is alive in an instance, whether it can run now or not
   * @returns whether there is room for it; for what takes its KV as it needs it, there is
   */
  setAsideWhole(name: string, liveOf: (other: InstanceView) => RequestView[]): boolean {
    const away = this.#away.get(name);
    if (!away?.kv_whole) return true;
    // What was promised to its requests is a part of it.
    this.#memory.remove(name);
    if (!this.#memory.reserveWhole(name, away, liveOf)) return false;
    this.#whole.add(name);
    return true;
  }

  /** It serves: it is not away any more. */
  arrived(name: string): void {
    this.ended(name);
    this.#away.delete(name);
  }

  /** It is gone for good. */
  forget(name: string): void {
    this.arrived(name);
  }

  withdraw(name: string, id: number): void {
    const coming = this.#coming.get(name);
    const request = coming?.live.get(id);
    if (!coming || !request) return;
    coming.live.delete(id);
    coming.requests.splice(coming.requests.indexOf(request), 1);
    coming.places++;
  }

  /**
   * Whether a request for a model that is away is let in.
   * @param load_ms until it is there
   * @param recycle has an instance without requests leave, at once
   */
  admit(
    name: string,
    request: ScheduledRequest,
    load_ms: number,
    now_ms: number,
    recycle: (model: string) => void,
  ): AdmissionVerdict {
    const away = this.#away.get(name);
    if (!away) throw new Error(`${name} was never here`);
    const coming = this.#coming.get(name);
    const alone = coming ?? comingInstance(away, now_ms);
    request.service_level = attainableSlo(alone, request, this.#settings).slo;
    const judge = (device: DeviceView): AdmissionVerdict =>
      coming
        ? admitTo(device, fromNow(coming, now_ms), request, now_ms, this.#settings)
        : admitNew(device, { ...away, load_ms }, request, now_ms, this.#settings);
    let verdict = judge(this.seen(now_ms));
    // Whoever is idle gives its KV up first, and its place only where that is too little.
    if (!verdict.admit && verdict.limit === 'memory') verdict = judge(this.#withoutIdle(now_ms));
    if (!verdict.admit) return verdict;
    for (const release of verdict.releases) this.#release(release, recycle);
    if (!this.#memory.reserve(name, away, verdict.kv_bytes))
      return { admit: false, limit: 'memory', because: 'others still hold the memory that it needs' };
    alone.kv_bytes = verdict.kv_bytes;
    alone.requests.push(request);
    alone.live.set(Number(request.id), request);
    alone.places--;
    this.#coming.set(name, alone);
    return verdict;
  }

  /** The device as decisions see it: models on their way are there. */
  seen(now_ms: number): DeviceView {
    if (this.#coming.size === 0) return this.#device;
    const coming = [...this.#coming.values()].map((instance) => fromNow(instance, now_ms));
    return { ...this.#device, instances: [...this.#device.instances, ...coming] };
  }

  /** The same, where instances that may rest go for whoever needs their memory, the longest idle first. */
  #withoutIdle(now_ms: number): DeviceView {
    const device = this.seen(now_ms);
    const idle = new Set(this.#device.instances.filter(mayRest).map(({ id }) => id));
    const instances = device.instances
      .map((instance) => (idle.has(instance.id) ? { ...instance, stays: false } : instance))
      .sort((a, b) => (a.idle_since_ms ?? now_ms) - (b.idle_since_ms ?? now_ms));
    return { ...device, instances };
  }

  #release(release: Release, recycle: (model: string) => void): void {
    if ('recycle' in release) recycle(release.instance);
    else this.#memory.lower(release.instance, release.kv_to_bytes);
  }
}

function comingInstance(away: AwayModel, now_ms: number): ComingInstance {
  return {
    ...away,
    id: away.model,
    ready_at_ms: now_ms,
    kv_bytes: 0,
    stays: true,
    places: away.max_sequences,
    requests: [],
    live: new Map(),
  };
}

/** What is promised to those who wait for a model counts from when it is there: as if it were there now. */
function fromNow(coming: ComingInstance, now_ms: number): ComingInstance {
  const requests = coming.requests.map((request) => ({ ...request, arrival_ms: now_ms }));
  return { ...coming, ready_at_ms: now_ms, requests };
}
