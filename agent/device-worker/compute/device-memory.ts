import { type Release, roomFor } from '../../../solver/sharing/admission.ts';
import {
  type DeviceView,
  type InstanceView,
  type RequestView,
  standing_bytes,
} from '../../../solver/sharing/device-view.ts';
import { kvDemand, lowerTo } from '../../../solver/sharing/kv-budget.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import type { DecisionLog } from './decision-log.ts';
import { KvBudgets, type KvHolder, type StandingSizes } from './kv-budgets.ts';

/** What budgets fall for. */
type Comer = 'another model to come' | 'results of graphs';

/** What of an instance depends on its layers. */
export type InstanceSizes = Pick<InstanceView, 'weight_bytes' | 'working_bytes' | 'kv_bytes_per_token'> & {
  kv_bytes_max: number;
};

/**
 * The memory of a device's instances, live: what is promised to each for KV, and what others give up for it (LLM-Mesh
 * §6). Where the pool has room for all that was asked for, everybody has it; budgets move only where it has not.
 */
export class DeviceMemory {
  readonly #device: DeviceView;
  readonly #settings: SharingSettings;
  readonly #decisions: DecisionLog;
  #budgets: KvBudgets | undefined;
  /** What stages of pipelines hold whose coordinator is elsewhere, by model: weights, and KV for good. */
  readonly #held = new Map<string, number>();

  /** @param device its instances; this class keeps what is promised of the pool, and their `kv_bytes` */
  constructor(device: DeviceView, settings: SharingSettings, decisions: DecisionLog) {
    this.#device = device;
    this.#settings = settings;
    this.#decisions = decisions;
  }

  /**
   * An instance whose weights are in the pool; others give up what they do not need, where it has to have less than it
   * may.
   */
  add(instance: InstanceView & { kv_bytes_max: number }, engine: KvHolder, pool_bytes: number): void {
    this.#budgets ??= new KvBudgets(pool_bytes);
    const { recommended_bytes, required_bytes } = kvDemand(instance, this.#settings);
    const { kv_whole, kv_bytes_max } = instance;
    this.#relieve(standing_bytes(instance) + (kv_whole ? kv_bytes_max : required_bytes));
    const choices = kv_whole ? [kv_bytes_max] : [kv_bytes_max, recommended_bytes, required_bytes];
    instance.kv_bytes = this.#budgets.add(instance.id, engine, instance, choices);
    this.#account();
    if (instance.kv_bytes < instance.kv_bytes_max)
      this.#note(
        instance,
        `KV for ${tokensOf(instance)} tokens is set aside for it; more as its requests need it`,
      );
  }

  /**
   * Whether an instance has the KV it needs at least, where others keep only what they need. One that takes all of its
   * KV as it comes needs that.
   * @param liveOf what is alive in another instance, whether it can run now or not
   */
  couldAdd(
    instance: Omit<InstanceView, 'profile' | 'ready_at_ms'>,
    pool_bytes: number,
    liveOf: (other: InstanceView) => RequestView[] = ({ requests }) => requests,
  ): boolean {
    const { kv_whole, kv_bytes_max = 0 } = instance;
    const { required_bytes } = kvDemand(instance, this.#settings);
    let bytes = standing_bytes(instance) + (kv_whole ? kv_bytes_max : required_bytes);
    for (const held_bytes of this.#held.values()) bytes += held_bytes;
    for (const other of this.#device.instances) {
      const requests = liveOf(other);
      bytes += standing_bytes(other);
      if (other.kv_whole) bytes += other.kv_bytes;
      else if (requests.length > 0) bytes += kvDemand({ ...other, requests }, this.#settings).required_bytes;
    }
    return bytes <= pool_bytes;
  }

  /** An instance has weights and KV of other sizes, for as many tokens as before. */
  resize(instance: InstanceView & InstanceSizes, sizes: InstanceSizes): void {
    const before_bytes = standing_bytes(instance) + instance.kv_bytes;
    // A stage without attention has no KV: behind one, as much is promised as there can be.
    const { kv_bytes: had_bytes, kv_bytes_per_token: before } = instance;
    const hasSome = before > 0 && !instance.kv_whole;
    const wanted_bytes = hasSome ? (had_bytes * sizes.kv_bytes_per_token) / before : sizes.kv_bytes_max;
    const kv_bytes = Math.min(sizes.kv_bytes_max, Math.round(wanted_bytes));
    Object.assign(instance, sizes);
    this.#relieve(standing_bytes(sizes) + kv_bytes - before_bytes, instance);
    instance.kv_bytes = this.#budgets!.resize(instance.id, sizes, kv_bytes);
    this.#account();
  }

  /**
   * An engine has more of the pool, or less, for what it computes: that is not to be promised to anybody. Where all is
   * promised, KV of whoever has more than its requests need falls by as much, its own among it.
   */
  work(instance: InstanceView, working_bytes: number): void {
    const more_bytes = working_bytes - (instance.working_bytes ?? 0);
    if (more_bytes === 0) return;
    instance.working_bytes = working_bytes;
    this.#relieve(more_bytes, undefined, 'results of graphs');
    this.#budgets!.hold(instance.id, working_bytes);
    this.#account();
  }

  remove(model: string): void {
    this.#budgets?.remove(model);
    this.#account();
  }

  /** Weights and KV of a model that comes. @returns false where others have too much of the pool */
  reserve(model: string, sizes: StandingSizes, kv_bytes: number): boolean {
    const reserved = this.#budgets?.reserve(model, sizes, kv_bytes) ?? true;
    this.#account();
    return reserved;
  }

  /**
   * All that a model takes which comes with all of its KV. Others keep what their requests need.
   * @param liveOf as for `couldAdd`
   * @returns false where they need too much of the pool: then nothing is promised to it
   */
  reserveWhole(
    model: string,
    sizes: StandingSizes & Pick<InstanceView, 'kv_bytes_per_token'> & { kv_bytes_max: number },
    liveOf: (other: InstanceView) => RequestView[],
  ): boolean {
    if (!this.#budgets) return true;
    const whole = { ...sizes, id: model, model, kv_whole: true, kv_bytes: sizes.kv_bytes_max, requests: [] };
    if (!this.couldAdd(whole, this.#budgets.pool_bytes, liveOf)) return false;
    this.#relieve(standing_bytes(sizes) + sizes.kv_bytes_max);
    return this.reserve(model, sizes, sizes.kv_bytes_max);
  }

  /** An instance gives up what it has beyond so many bytes, for a model that comes. */
  lower(model: string, kv_bytes: number): void {
    const instance = this.#device.instances.find(({ id }) => id === model);
    if (instance && !instance.kv_whole && kv_bytes < instance.kv_bytes) this.#lower(instance, kv_bytes);
  }

  /**
   * A request of an instance has ended: where not everybody can have all that was asked for, what the instance holds
   * beyond comfort falls, lazily (LLM-Mesh §6.2). Elsewhere it keeps prefixes.
   * @param away_bytes what models that are away would take at least
   */
  shrink(instance: InstanceView, live: RequestView[], away_bytes: number): void {
    if (instance.kv_whole) return;
    let wanted_bytes = away_bytes;
    for (const other of this.#device.instances)
      wanted_bytes += standing_bytes(other) + (other.kv_bytes_max ?? other.kv_bytes);
    if (!this.#budgets || wanted_bytes <= this.#budgets.pool_bytes) return;
    const demand = kvDemand({ ...instance, requests: live }, this.#settings);
    const to_bytes = lowerTo(instance.kv_bytes, demand, this.#settings);
    if (to_bytes >= instance.kv_bytes) return;
    this.#set(instance, to_bytes);
    this.#note(instance, `its KV budget fell to ${tokensOf(instance)} tokens: its requests need no more`);
  }

  /**
   * A stage of a pipeline is in the pool, with all of its KV: nothing of that is promised to models beside it, and what
   * was promised to them they give up as far as they can.
   * @param bytes of all that it holds now
   */
  hold(model: string, bytes: number, pool_bytes: number): void {
    this.#budgets ??= new KvBudgets(pool_bytes);
    this.#relieve(bytes - (this.#held.get(model) ?? 0));
    this.#held.set(model, bytes);
    this.#budgets.hold(model, bytes);
    this.#account();
  }

  letGo(model: string): void {
    if (this.#held.delete(model)) this.#budgets?.hold(model, 0);
    this.#account();
  }

  /** What others were to give up may be there now. */
  settle(): void {
    this.#budgets?.settle();
    this.#account();
  }

  /**
   * Sees to KV for everything that is alive in an instance.
   * @returns whether there is enough
   */
  provide(instance: InstanceView, live: RequestView[]): boolean {
    const room = roomFor(this.#device, { ...instance, requests: live }, this.#settings);
    return 'releases' in room && this.apply(instance, room);
  }

  /** Nothing runs on the device, and an instance's requests wait for memory: those that hold it give it up. */
  rescue(instance: InstanceView, live: RequestView[]): void {
    if (!this.#budgets || this.provide(instance, live)) return;
    const required_bytes = Math.min(
      kvDemand({ ...instance, requests: live }, this.#settings).required_bytes,
      instance.kv_bytes_max ?? Number.POSITIVE_INFINITY,
    );
    this.#relieve(required_bytes - instance.kv_bytes, instance);
    const left_bytes = this.#budgets.pool_bytes - this.#budgets.budget_bytes;
    this.#set(instance, Math.min(required_bytes, instance.kv_bytes + left_bytes));
  }

  /** What one instance gives up goes to another. */
  move(from: InstanceView, to: InstanceView, bytes: number): boolean {
    this.#set(from, Math.max(0, from.kv_bytes - bytes));
    this.settle();
    return this.#set(to, to.kv_bytes + bytes);
  }

  /** Does what an admission decided. */
  apply(
    instance: InstanceView,
    { kv_bytes, releases }: { kv_bytes: number; releases: readonly Release[] },
  ): boolean {
    for (const release of releases) {
      const other = this.#device.instances.find(({ id }) => id === release.instance);
      if (other && 'kv_to_bytes' in release) this.#set(other, release.kv_to_bytes);
    }
    if (kv_bytes === instance.kv_bytes) return true;
    const before = tokensOf(instance);
    if (!this.#set(instance, kv_bytes)) return false;
    this.#note(instance, `its KV budget went from ${before} to ${tokensOf(instance)} tokens`);
    return true;
  }

  /**
   * Lowers others until so many bytes are not promised: first comfort, then what is only expected, then all that is
   * unused. For results, which grow by little, no budget falls by more than they need.
   */
  #relieve(bytes: number, except?: InstanceView, comer: Comer = 'another model to come'): void {
    const budgets = this.#budgets!;
    const floors: ((other: InstanceView) => number)[] = [
      (other) => kvDemand(other, this.#settings).recommended_bytes,
      (other) => kvDemand(other, this.#settings).required_bytes,
      () => 0,
    ];
    for (const floor of floors)
      for (const other of this.#device.instances) {
        const short_bytes = bytes - (budgets.pool_bytes - budgets.budget_bytes);
        if (short_bytes <= 0) return;
        if (other === except || other.kv_whole) continue;
        const least_bytes = comer === 'results of graphs' ? other.kv_bytes - short_bytes : 0;
        const to_bytes = Math.max(floor(other), least_bytes);
        if (to_bytes >= other.kv_bytes || (to_bytes === 0 && other.requests.length > 0)) continue;
        this.#lower(other, to_bytes, comer);
      }
  }

  #lower(other: InstanceView, to_bytes: number, comer: Comer = 'another model to come'): void {
    this.#set(other, to_bytes);
    this.#note(other, `its KV budget fell to ${tokensOf(other)} tokens, for ${comer}`);
  }

  #set(instance: InstanceView, kv_bytes: number): boolean {
    if (!this.#budgets!.set(instance.id, kv_bytes)) return false;
    instance.kv_bytes = kv_bytes;
    this.#account();
    return true;
  }

  #account(): void {
    if (!this.#budgets) return;
    this.#device.pool_bytes = this.#budgets.pool_bytes;
    this.#device.budget_bytes = this.#budgets.budget_bytes;
    this.#device.held_bytes = this.#budgets.held_bytes;
  }

  #note({ model }: InstanceView, because: string): void {
    this.#decisions.note({ kind: 'budget', model, because });
  }
}

function tokensOf({ kv_bytes, kv_bytes_per_token }: InstanceView): number {
  return Math.floor(kv_bytes / kv_bytes_per_token);
}
