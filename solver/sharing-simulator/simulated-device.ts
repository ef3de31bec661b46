import { type DeviceView, type InstanceView, lengthOf, type ModelOnDevice } from '../sharing/device-view.ts';
import type { IterationProfile } from '../sharing/profile.ts';
import {
  type MemoryOperation,
  ReservationStation,
  type SubmittedOperation,
} from '../sharing/reservation-station.ts';
import type { SimulatedRequest } from './simulated-request.ts';
import type { TestbedDevice } from './testbed.ts';

export interface SimulatedInstance extends InstanceView {
  requests: SimulatedRequest[];
  load_ms: number;
  /** How long iterations really take, but for noise. */
  truth: IterationProfile;
  loading: boolean;
}

export interface RunningStep {
  instance: SimulatedInstance;
  /** Sequences that get a token, or the one whose prompt is computed. */
  batch: SimulatedRequest[];
  prompt?: SimulatedRequest;
  tokens: number;
  actual_ms: number;
}

/** The time weights take to go; until then the station counts them as there. */
const unload_ms = 50;

/** One device of the simulation: its view for the decisions, its memory operations, and the iteration it runs. */
export class SimulatedDevice implements DeviceView {
  readonly id: string;
  readonly kind: 'cpu' | 'gpu';
  readonly compute: string;
  readonly instances: SimulatedInstance[] = [];
  readonly pool_bytes: number;
  readonly instances_max?: number;
  running?: NonNullable<DeviceView['running']>;
  step?: RunningStep;
  /** Of the wake-up that is due; later ones are void. */
  wake_at_ms = Number.POSITIVE_INFINITY;
  /** Since when it has had an instance. */
  used_since_ms?: number;
  /** As the station has them: properties, since decisions copy views. */
  budget_bytes = 0;
  held_bytes = 0;
  readonly release_ms = unload_ms;
  readonly #station: ReservationStation;
  #operations = new Map<number, SimulatedInstance | undefined>();
  #made = 0;

  constructor(device: TestbedDevice, instances_max?: number) {
    this.id = device.id;
    this.kind = device.kind;
    this.compute = device.compute;
    this.pool_bytes = device.pool_bytes;
    if (instances_max !== undefined) this.instances_max = instances_max;
    this.#station = new ReservationStation(device.pool_bytes);
  }

  addInstance(model: ModelOnDevice, truth: IterationProfile, ready_at_ms: number): SimulatedInstance {
    const instance: SimulatedInstance = {
      id: `${model.model}@${this.id}#${++this.#made}`,
      model: model.model,
      profile: model.profile,
      truth,
      ready_at_ms,
      load_ms: model.load_ms,
      loading: true,
      weight_bytes: model.weight_bytes,
      kv_bytes: 0,
      kv_bytes_per_token: model.kv_bytes_per_token,
      requests: [],
    };
    this.instances.push(instance);
    return instance;
  }

  removeInstance(instance: SimulatedInstance): void {
    this.instances.splice(this.instances.indexOf(instance), 1);
  }

  /** KV budget; blocks are taken on demand, so that it takes no time. */
  submitKv(instance: SimulatedInstance, to_bytes: number): SubmittedOperation {
    const submission = this.#station.submit(`${instance.id}/kv`, to_bytes);
    if (submission.accepted) instance.kv_bytes = to_bytes;
    this.#account();
    return submission;
  }

  submitWeights(instance: SimulatedInstance, to_bytes: number): SubmittedOperation {
    const submission = this.#station.submit(`${instance.id}/weights`, to_bytes);
    if (submission.accepted) this.#operations.set(submission.id, instance);
    this.#account();
    return submission;
  }

  complete(operation: MemoryOperation): MemoryOperation[] {
    this.#operations.delete(operation.id);
    const run = this.#station.complete(operation.id);
    this.#account();
    return run;
  }

  #account(): void {
    this.budget_bytes = this.#station.budget_bytes;
    this.held_bytes = this.#station.held_bytes;
  }

  /** The instance that loads or unloads by it; undefined for KV. */
  instanceOf(operation: MemoryOperation): SimulatedInstance | undefined {
    return this.#operations.get(operation.id);
  }

  duration_ms(operation: MemoryOperation): number {
    const instance = this.instanceOf(operation);
    if (instance === undefined) return 0;
    return operation.to_bytes === 0 ? unload_ms : instance.load_ms;
  }
}

/** What an engine would have in use: bytes whose tokens are computed, or will be with the prompts at hand. */
export function kvUsed_bytes(instance: InstanceView): number {
  let tokens = 0;
  for (const request of instance.requests) tokens += lengthOf(request);
  return tokens * instance.kv_bytes_per_token;
}
