import type { IterationProfile } from '../sharing/profile.ts';
import { interactiveSlo } from '../sharing/slo.ts';
import { iterationNoise } from './noise.ts';
import type { RequestOutcome, ServingCounters } from './outcome.ts';
import { giveToken, type SimulatedRequest, simulatedRequest } from './simulated-request.ts';
import { SimulationEvents } from './simulation-events.ts';
import { concurrencyLimit, onDevice, type TestbedDevice, type TestbedModel } from './testbed.ts';
import type { WorkloadRequest } from './workload.ts';

export interface ExclusiveServingOptions {
  /** In the order in which they are taken: CPUs first, where there are any. */
  devices: readonly TestbedDevice[];
  models: readonly TestbedModel[];
  keep_alive_ms: number;
  noise: number;
  seed: number;
}

interface Instance {
  device: TestbedDevice;
  model: TestbedModel;
  profile: IterationProfile;
  limit: number;
  ready_at_ms: number;
  waiting: SimulatedRequest[];
  decoding: SimulatedRequest[];
  busy: boolean;
  used_since_ms: number;
  idle_since_ms: number;
}

type Event =
  | { kind: 'arrival'; request: SimulatedRequest }
  | { kind: 'ready'; instance: Instance }
  | { kind: 'step'; instance: Instance; prompt?: SimulatedRequest; batch: SimulatedRequest[] }
  | { kind: 'recycle'; instance: Instance; idle_since_ms: number };

/**
 * The other way, for comparison: each instance has a device to itself, as ServerlessLLM and the like do it (LLM-Mesh
 * §8.1). A model scales out once its instances have as many requests as they were told to take; requests are spread
 * over them in turn; who finds no device waits, and is given up once its first token can only come late.
 */
export class ExclusiveServing {
  readonly #options: ExclusiveServingOptions;
  readonly #events = new SimulationEvents<Event>();
  readonly #noise: () => number;
  readonly #instances = new Map<string, Instance[]>();
  readonly #turns = new Map<string, number>();
  readonly #free: TestbedDevice[];
  readonly #byName: Map<string, TestbedModel>;
  readonly #profiles = new Map<string, { profile: IterationProfile; load_ms: number }>();
  #waiting: SimulatedRequest[] = [];
  #now_ms = 0;
  readonly counters: ServingCounters = {
    device_ms: { cpu: 0, gpu: 0 },
    loads: 0,
    preemptions: 0,
    consolidations: 0,
    evictions: 0,
  };

  constructor(options: ExclusiveServingOptions) {
    this.#options = options;
    this.#noise = iterationNoise(options.noise, options.seed);
    this.#free = [...options.devices];
    this.#byName = new Map(options.models.map((model) => [model.name, model]));
  }

  run(requests: readonly WorkloadRequest[]): RequestOutcome[] {
    const simulated = requests.map((request) =>
      simulatedRequest(request, this.#options.models[request.model]!.name),
    );
    for (const request of simulated) this.#events.add(request.arrival_ms, { kind: 'arrival', request });
    for (let next = this.#events.next(); next !== undefined; next = this.#events.next()) {
      this.#now_ms = next.at_ms;
      this.#handle(next.event);
    }
    return simulated.map(({ outcome }) => outcome);
  }

  #handle(event: Event): void {
    switch (event.kind) {
      case 'arrival':
        this.#waiting.push(event.request);
        this.#dispatch();
        return;
      case 'ready':
        this.#step(event.instance);
        return;
      case 'step':
        this.#endStep(event);
        return;
      case 'recycle':
        if (event.instance.idle_since_ms !== event.idle_since_ms) return;
        this.#recycle(event.instance);
        this.#dispatch();
    }
  }

  /** In the order of arrival: everybody who waits and finds a place gets it. */
  #dispatch(): void {
    const full = new Set<string>();
    this.#waiting = this.#waiting.filter((request) => {
      if (request.arrival_ms + interactiveSlo(request.input_tokens).ttft_ms < this.#now_ms) return false;
      if (full.has(request.model)) return true;
      const instance = this.#standing(request.model) ?? this.#scaleOut(request.model);
      if (instance === undefined) {
        full.add(request.model);
        return true;
      }
      request.outcome.cold_start_ms = Math.max(0, instance.ready_at_ms - this.#now_ms);
      instance.waiting.push(request);
      instance.idle_since_ms = Number.POSITIVE_INFINITY;
      this.#step(instance);
      return false;
    });
  }

  /** The next instance in turn that has room. */
  #standing(model: string): Instance | undefined {
    const instances = this.#instances.get(model) ?? [];
    const turn = this.#turns.get(model) ?? 0;
    for (let offset = 0; offset < instances.length; offset++) {
      const index = (turn + offset) % instances.length;
      const instance = instances[index]!;
      if (instance.waiting.length + instance.decoding.length >= instance.limit) continue;
      this.#turns.set(model, index + 1);
      return instance;
    }
    return undefined;
  }

  #scaleOut(name: string): Instance | undefined {
    const device = this.#free.shift();
    if (device === undefined) return undefined;
    const model = this.#byName.get(name)!;
    const key = `${model.base}/${device.kind}`;
    let known = this.#profiles.get(key);
    if (known === undefined) {
      known = onDevice(model, device);
      this.#profiles.set(key, known);
    }
    this.counters.loads++;
    const instance: Instance = {
      device,
      model,
      profile: known.profile,
      limit: concurrencyLimit(model, device.kind),
      ready_at_ms: this.#now_ms + known.load_ms,
      waiting: [],
      decoding: [],
      busy: false,
      used_since_ms: this.#now_ms,
      idle_since_ms: Number.POSITIVE_INFINITY,
    };
    const instances = this.#instances.get(name) ?? [];
    this.#instances.set(name, [...instances, instance]);
    this.#events.add(instance.ready_at_ms, { kind: 'ready', instance });
    return instance;
  }

  #recycle(instance: Instance): void {
    const { device, model } = instance;
    this.#instances.set(
      model.name,
      this.#instances.get(model.name)!.filter((other) => other !== instance),
    );
    this.counters.device_ms[device.kind] += this.#now_ms - instance.used_since_ms;
    this.#free.push(device);
    this.#free.sort((a, b) => this.#options.devices.indexOf(a) - this.#options.devices.indexOf(b));
  }

  /** As vLLM without chunked prefill: a whole prompt where one waits, else a token for everybody. */
  #step(instance: Instance): void {
    if (instance.busy || instance.ready_at_ms > this.#now_ms) return;
    const prompt = instance.waiting.shift();
    const { decoding } = instance;
    if (prompt === undefined && decoding.length === 0) return;
    instance.busy = true;
    const batch = prompt === undefined ? [...decoding] : [prompt];
    const tokens = batch.reduce((sum, request) => sum + request.input_tokens + request.output_tokens, 0);
    const ms =
      prompt === undefined
        ? instance.profile.decode_ms(batch.length, tokens / batch.length)
        : instance.profile.prefill_ms(prompt.input_tokens);
    if (prompt !== undefined) decoding.push(prompt);
    this.#events.add(this.#now_ms + ms * this.#noise(), {
      kind: 'step',
      instance,
      batch,
      prompt,
    });
  }

  #endStep({ instance, batch }: Extract<Event, { kind: 'step' }>): void {
    instance.busy = false;
    let ended = false;
    for (const request of batch)
      if (giveToken(request, this.#now_ms)) {
        instance.decoding.splice(instance.decoding.indexOf(request), 1);
        ended = true;
      }
    if (instance.decoding.length + instance.waiting.length === 0) {
      instance.idle_since_ms = this.#now_ms;
      this.#events.add(this.#now_ms + this.#options.keep_alive_ms, {
        kind: 'recycle',
        instance,
        idle_since_ms: this.#now_ms,
      });
    }
    this.#step(instance);
    if (ended) this.#dispatch();
  }
}
