import { type Admitted, loadTime } from '../sharing/admission.ts';
import { planConsolidation } from '../sharing/consolidation.ts';
import type { ModelLookup, ModelOnDevice, ParkingPlace } from '../sharing/device-view.ts';
import { chooseEvictions } from '../sharing/eviction.ts';
import { recycleAt } from '../sharing/keep-alive.ts';
import { kvDemand, lowerTo } from '../sharing/kv-budget.ts';
import { lanesOf } from '../sharing/lanes.ts';
import { type Move, movedRequest } from '../sharing/moves.ts';
import { nextIteration } from '../sharing/next-iteration.ts';
import { OutputLengths } from '../sharing/output-lengths.ts';
import type { MemoryOperation } from '../sharing/reservation-station.ts';
import type { SharingSettings } from '../sharing/settings.ts';
import { tokenDeadline } from '../sharing/slo.ts';
import { iterationNoise } from './noise.ts';
import type { RequestOutcome, ServingCounters } from './outcome.ts';
import { placeRequest } from './place-request.ts';
import { kvUsed_bytes, SimulatedDevice, type SimulatedInstance } from './simulated-device.ts';
import { giveToken, type SimulatedRequest, simulatedRequest } from './simulated-request.ts';
import { SimulationEvents } from './simulation-events.ts';
import { onDevice, type TestbedDevice, type TestbedModel } from './testbed.ts';
import type { WorkloadRequest } from './workload.ts';

export interface SharedServingOptions {
  devices: readonly TestbedDevice[];
  models: readonly TestbedModel[];
  settings: SharingSettings;
  /** Standard deviation of the logarithm of iteration times around the profile. */
  noise: number;
  seed: number;
  /** Instances beside each other on one device; 1: no sharing. */
  instances_max?: number;
  /** Whose turn it is: by headroom, or one after the other. */
  turns?: 'headroom' | 'round_robin';
  /** Where evicted and moved KV waits; absent: it is computed again. */
  parking?: ParkingPlace;
}

type Event =
  | { kind: 'arrival'; request: SimulatedRequest }
  | { kind: 'step'; device: SimulatedDevice }
  | { kind: 'wake'; device: SimulatedDevice; at_ms: number }
  | { kind: 'memory'; device: SimulatedDevice; operation: MemoryOperation }
  | { kind: 'recycle'; device: SimulatedDevice; instance: SimulatedInstance }
  | { kind: 'retry' };

/** How often those who wait for a place ask again, at least and at most. */
const retry_ms = { soon: 20, late: 250 };

/**
 * Many models on few devices, by the decisions of `solver/sharing`: the very functions that device workers and gateways
 * call, under a simulated clock. What an iteration really takes is the measured time and noise; what decisions know is
 * the profile.
 */
export class SharedServing {
  readonly #options: SharedServingOptions;
  readonly #devices: SimulatedDevice[];
  readonly #events = new SimulationEvents<Event>();
  readonly #lengths = new OutputLengths();
  readonly #profiles = new Map<string, ModelOnDevice>();
  readonly #truths = new Map<string, ModelOnDevice>();
  readonly #noise: () => number;
  readonly #modelByName: Map<string, TestbedModel>;
  #waiting: SimulatedRequest[] = [];
  #retry_at_ms = Number.POSITIVE_INFINITY;
  #now_ms = 0;
  #turn = 0;
  readonly counters: ServingCounters = {
    device_ms: { cpu: 0, gpu: 0 },
    loads: 0,
    preemptions: 0,
    consolidations: 0,
    evictions: 0,
  };
  /** Most bytes ever held of a pool, as a share of it: at most 1. */
  held_share_max = 0;

  constructor(options: SharedServingOptions) {
    this.#options = options;
    this.#devices = options.devices.map((device) => new SimulatedDevice(device, options.instances_max));
    this.#noise = iterationNoise(options.noise, options.seed);
    this.#modelByName = new Map(options.models.map((model) => [model.name, model]));
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
        event.request.expected_output_tokens = this.#expected(event.request);
        if (!this.#place(event.request)) this.#wait(event.request);
        return;
      case 'step':
        this.#endStep(event.device);
        return;
      case 'wake':
        if (event.device.wake_at_ms !== event.at_ms) return;
        event.device.wake_at_ms = Number.POSITIVE_INFINITY;
        this.#kick(event.device);
        return;
      case 'memory':
        this.#endOperation(event.device, event.operation);
        return;
      case 'recycle':
        if (event.device.instances.includes(event.instance)) this.#recycleIfDue(event.device, event.instance);
        return;
      case 'retry':
        if (this.#retry_at_ms > this.#now_ms) return;
        this.#retry_at_ms = Number.POSITIVE_INFINITY;
        this.#retry();
    }
  }

  /** Own profile per model and device, as workers have; the measured one behind it never changes. */
  readonly #lookup: ModelLookup = (name, device) => this.#known(this.#profiles, name, device.id);

  #known(among: Map<string, ModelOnDevice>, name: string, device_id: string): ModelOnDevice {
    const key = `${name}@${device_id}`;
    let known = among.get(key);
    if (known === undefined) {
      const device = this.#options.devices.find(({ id }) => id === device_id)!;
      known = onDevice(this.#modelByName.get(name)!, device);
      among.set(key, known);
    }
    return known;
  }

  #expected(request: SimulatedRequest): number {
    return this.#lengths.expected({ model: request.model, reasoning: false }, request.output_tokens);
  }

  /** False where nobody takes it now. */
  #place(request: SimulatedRequest): boolean {
    const { settings } = this.#options;
    const { parking } = this.#options;
    const placement = placeRequest(request, this.#devices, this.#lookup, this.#now_ms, settings, parking);
    if (placement.place === 'refused') return false;
    const device = this.#devices.find(({ id }) => id === placement.device.id)!;
    if (placement.place === 'new') {
      this.#start(device, request, placement.admission);
      return true;
    }
    const instance = device.instances.find(({ id }) => id === placement.instance.id)!;
    if (placement.place === 'preemption') {
      this.counters.preemptions++;
      const victim = device.instances.find(({ id }) => id === placement.victim.id)!;
      const moved = [...victim.requests];
      for (const request of moved) this.#detach(victim, request);
      this.#remove(device, victim);
      this.#join(device, instance, request, placement.admission);
      this.#move(moved, placement.moves);
      return true;
    }
    this.#join(device, instance, request, placement.admission);
    return true;
  }

  #move(moved: readonly SimulatedRequest[], moves: readonly Move[]): void {
    for (const move of moves) {
      const request = moved.find(({ id }) => id === move.request)!;
      const target = this.#devices.find(({ id }) => id === move.device)!;
      const onto =
        target.instances.find(({ id }) => id === move.instance) ??
        // A second request for an instance that the first one's move made.
        target.instances.find(({ model }) => model === request.model);
      if (onto === undefined) this.#start(target, request, move.admission);
      else this.#join(target, onto, request, move.admission);
    }
  }

  /** A fragment goes where its requests fit onto a larger instance of its model; false where there is none such. */
  #consolidate(): boolean {
    const { settings, parking } = this.#options;
    const plan = planConsolidation(this.#devices, this.#now_ms, settings, parking);
    if (plan === undefined) return false;
    const device = this.#devices.find(({ id }) => id === plan.device.id)!;
    const instance = device.instances.find(({ id }) => id === plan.instance.id)!;
    const moved = [...instance.requests];
    for (const request of moved) this.#detach(instance, request);
    this.#remove(device, instance);
    this.#move(moved, plan.moves);
    this.counters.consolidations++;
    return true;
  }

  #start(device: SimulatedDevice, request: SimulatedRequest, admission: Admitted): void {
    const model = this.#lookup(request.model, device)!;
    this.#release(device, admission);
    device.used_since_ms ??= this.#now_ms;
    const truth = this.#known(this.#truths, request.model, device.id).profile;
    const instance = device.addInstance(
      model,
      truth,
      this.#now_ms + loadTime(device, model, admission.kv_bytes),
    );
    this.counters.loads++;
    const kv = device.submitKv(instance, admission.kv_bytes);
    const weights = device.submitWeights(instance, model.weight_bytes);
    if (!kv.accepted || !weights.accepted) throw new Error('an admitted instance exceeds the budget');
    this.#runOperations(device, [...kv.run, ...weights.run]);
    this.#attach(device, instance, request);
  }

  #join(
    device: SimulatedDevice,
    instance: SimulatedInstance,
    request: SimulatedRequest,
    admission: Admitted,
  ): void {
    this.#release(device, admission);
    if (admission.kv_bytes > instance.kv_bytes) {
      const submission = device.submitKv(instance, admission.kv_bytes);
      if (!submission.accepted) throw new Error('an admitted request exceeds the budget');
      this.#runOperations(device, submission.run);
    }
    this.#attach(device, instance, request);
  }

  #release(device: SimulatedDevice, { releases }: Admitted): void {
    for (const release of releases) {
      const instance = device.instances.find(({ id }) => id === release.instance)!;
      if ('recycle' in release) this.#remove(device, instance);
      else {
        const submission = device.submitKv(instance, release.kv_to_bytes);
        if (submission.accepted) this.#runOperations(device, submission.run);
      }
    }
  }

  #attach(device: SimulatedDevice, instance: SimulatedInstance, request: SimulatedRequest): void {
    delete instance.idle_since_ms;
    if (request.output_tokens === 0)
      request.outcome.cold_start_ms += Math.max(0, instance.ready_at_ms - this.#now_ms);
    instance.requests.push(request);
    this.#kick(device);
  }

  /** A request leaves its instance without having ended; its KV is parked or lost. */
  #detach(instance: SimulatedInstance, request: SimulatedRequest): void {
    instance.requests.splice(instance.requests.indexOf(request), 1);
    request.outcome.moves++;
    const arrives = movedRequest(request, instance, this.#now_ms, this.#options.parking);
    request.prefill_tokens_left = arrives.prefill_tokens_left;
    request.available_at_ms = arrives.available_at_ms;
  }

  #remove(device: SimulatedDevice, instance: SimulatedInstance): void {
    device.removeInstance(instance);
    for (const submission of [device.submitKv(instance, 0), device.submitWeights(instance, 0)])
      if (submission.accepted) this.#runOperations(device, submission.run);
    if (device.instances.length === 0 && device.used_since_ms !== undefined) {
      this.counters.device_ms[device.kind] += this.#now_ms - device.used_since_ms;
      delete device.used_since_ms;
    }
    this.#retrySoon();
  }

  #runOperations(device: SimulatedDevice, operations: readonly MemoryOperation[]): void {
    this.held_share_max = Math.max(this.held_share_max, device.held_bytes / device.pool_bytes);
    for (const operation of operations) {
      const duration_ms = device.duration_ms(operation);
      const instance = device.instanceOf(operation);
      if (instance !== undefined && operation.to_bytes > 0) instance.ready_at_ms = this.#now_ms + duration_ms;
      if (duration_ms === 0) this.#runOperations(device, device.complete(operation));
      else this.#events.add(this.#now_ms + duration_ms, { kind: 'memory', device, operation });
    }
  }

  #endOperation(device: SimulatedDevice, operation: MemoryOperation): void {
    const instance = device.instanceOf(operation);
    this.#runOperations(device, device.complete(operation));
    if (instance !== undefined && operation.to_bytes > 0) {
      instance.loading = false;
      this.#recycleIfDue(device, instance);
      this.#kick(device);
    }
  }

  /** Starts an iteration where the device has none. */
  #kick(device: SimulatedDevice): void {
    if (device.step !== undefined) return;
    const { settings } = this.#options;
    const ready = device.instances.filter(({ loading }) => !loading);
    const lanes = lanesOf(ready, this.#now_ms, settings);
    const next =
      this.#options.turns === 'round_robin'
        ? this.#roundRobin(lanes)
        : nextIteration(lanes, this.#now_ms, settings);
    if ('at_ms' in next) {
      if (next.at_ms === Number.POSITIVE_INFINITY || next.at_ms >= device.wake_at_ms) return;
      device.wake_at_ms = next.at_ms;
      this.#events.add(next.at_ms, { kind: 'wake', device, at_ms: next.at_ms });
      return;
    }
    const instance = ready[next.lane]!;
    const prompt = instance.requests.find(({ id }) => id === next.prompt?.request);
    const batch =
      prompt === undefined
        ? instance.requests.filter(
            ({ prefill_tokens_left, available_at_ms }) =>
              prefill_tokens_left === 0 && available_at_ms <= this.#now_ms,
          )
        : [prompt];
    const done = prompt === undefined ? 0 : next.prompt!.done_tokens;
    const tokens = batch.reduce((sum, request) => sum + request.input_tokens + request.output_tokens, 0);
    const actual_ms =
      this.#noise() *
      (prompt === undefined
        ? instance.truth.decode_ms(batch.length, tokens / batch.length)
        : instance.truth.chunk_ms(done, next.tokens));
    if (prompt === undefined) instance.profile.observeDecode(batch.length, tokens / batch.length, actual_ms);
    else if (done === 0) instance.profile.observePrefill(next.tokens, actual_ms);
    device.step = { instance, batch, tokens: next.tokens, actual_ms, prompt };
    device.running = {
      instance: instance.id,
      tokens: next.tokens,
      ends_ms: this.#now_ms + next.ms,
      request: prompt?.id,
    };
    this.#events.add(this.#now_ms + actual_ms, { kind: 'step', device });
  }

  /** Prompts first, then each instance in turn: what an engine does that knows no deadlines. */
  #roundRobin(lanes: ReturnType<typeof lanesOf>): ReturnType<typeof nextIteration> {
    for (let offset = 0; offset < lanes.length; offset++) {
      const index = (this.#turn + offset) % lanes.length;
      const lane = lanes[index]!;
      const prompt = lane.prompts.find(({ available_at_ms }) => available_at_ms <= this.#now_ms);
      if (prompt === undefined && lane.batch === 0) continue;
      this.#turn = index + 1;
      if (prompt === undefined) return { lane: index, tokens: 0, ms: lane.decode_ms };
      const tokens = Math.min(prompt.left_tokens, this.#options.settings.prefill_chunk_tokens_max);
      return { lane: index, prompt, tokens, ms: lane.profile.chunk_ms(prompt.done_tokens, tokens) };
    }
    const waits = lanes.flatMap(({ prompts }) => prompts.map(({ available_at_ms }) => available_at_ms));
    return { at_ms: Math.min(Number.POSITIVE_INFINITY, ...waits) };
  }

  #endStep(device: SimulatedDevice): void {
    const { instance, batch, prompt, tokens } = device.step!;
    delete device.step;
    delete device.running;
    let ended = false;
    for (const request of batch) {
      if (!instance.requests.includes(request)) continue;
      if (prompt !== undefined) {
        request.prefill_tokens_left -= tokens;
        if (request.prefill_tokens_left > 0) continue;
      }
      const last = giveToken(request, this.#now_ms);
      if (last) {
        instance.requests.splice(instance.requests.indexOf(request), 1);
        this.#lengths.observe({ model: request.model, reasoning: false }, request.output_tokens);
        ended = true;
      } else if (request.output_tokens >= request.expected_output_tokens)
        request.expected_output_tokens = this.#expected(request);
    }
    if (device.instances.includes(instance)) {
      if (ended) this.#shrink(device, instance);
      this.#ensureKv(device, instance);
    }
    if (ended) this.#retrySoon();
    this.#kick(device);
  }

  /** After an end: the KV budget falls, lazily; an instance without requests waits for its keep-alive to pass. */
  #shrink(device: SimulatedDevice, instance: SimulatedInstance): void {
    const { settings } = this.#options;
    const demand = kvDemand(instance, settings);
    const to_bytes = lowerTo(instance.kv_bytes, demand, settings);
    if (to_bytes < instance.kv_bytes) {
      const submission = device.submitKv(instance, to_bytes);
      if (submission.accepted) this.#runOperations(device, submission.run);
    }
    if (instance.requests.length > 0) return;
    instance.idle_since_ms = this.#now_ms;
    this.#events.add(recycleAt(instance, settings), { kind: 'recycle', device, instance });
  }

  #recycleIfDue(device: SimulatedDevice, instance: SimulatedInstance): void {
    if (recycleAt(instance, this.#options.settings) <= this.#now_ms && !instance.loading)
      this.#remove(device, instance);
  }

  /** Answers outgrew the budget: it rises if it can, else requests give way and are placed again. */
  #ensureKv(device: SimulatedDevice, instance: SimulatedInstance): void {
    const used_bytes = kvUsed_bytes(instance);
    if (used_bytes <= instance.kv_bytes) return;
    const demand = kvDemand(instance, this.#options.settings);
    for (const to_bytes of [demand.recommended_bytes, demand.required_bytes]) {
      const submission = device.submitKv(instance, to_bytes);
      if (!submission.accepted) continue;
      this.#runOperations(device, submission.run);
      return;
    }
    const short_bytes = used_bytes - instance.kv_bytes;
    for (const { request } of chooseEvictions(
      { ...device, instances: [instance] },
      short_bytes,
      this.#now_ms,
    )) {
      const evicted = instance.requests.find(({ id }) => id === request.id)!;
      this.counters.evictions++;
      this.#detach(instance, evicted);
      if (!this.#place(evicted)) this.#wait(evicted);
    }
    if (instance.requests.length === 0 && device.instances.includes(instance)) this.#shrink(device, instance);
  }

  #wait(request: SimulatedRequest): void {
    this.#waiting.push(request);
    this.#retryAt(this.#now_ms + retry_ms.soon);
  }

  #retrySoon(): void {
    if (this.#waiting.length > 0) this.#retryAt(this.#now_ms + retry_ms.soon);
  }

  #retryAt(at_ms: number): void {
    if (at_ms >= this.#retry_at_ms) return;
    this.#retry_at_ms = at_ms;
    this.#events.add(at_ms, { kind: 'retry' });
  }

  /** Most urgent first. Who could not have a first token in time any more is given up, unless it has begun. */
  #retry(): void {
    if (this.#options.settings.consolidation) for (let left = 3; left > 0 && this.#consolidate(); left--);
    const waiting = this.#waiting.sort((a, b) => tokenDeadline(a) - tokenDeadline(b));
    this.#waiting = [];
    const refused = new Set<string>();
    for (const request of waiting) {
      if (request.output_tokens === 0 && tokenDeadline(request) < this.#now_ms) continue;
      if (!refused.has(request.model) && this.#place(request)) continue;
      refused.add(request.model);
      this.#waiting.push(request);
    }
    if (this.#waiting.length > 0) this.#retryAt(this.#now_ms + retry_ms.late);
  }
}
