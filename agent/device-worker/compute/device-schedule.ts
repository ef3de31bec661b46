import { admitTo, retryAfter } from '../../../solver/sharing/admission.ts';
import { attainableSlo } from '../../../solver/sharing/attainable-slo.ts';
import type { DeviceView, InstanceView, RequestView } from '../../../solver/sharing/device-view.ts';
import { chooseEvictions, decideKvFate, type Eviction } from '../../../solver/sharing/eviction.ts';
import type { GrowingProfile, KeptProfile } from '../../../solver/sharing/growing-profile.ts';
import { type Lane, lanesOf } from '../../../solver/sharing/lanes.ts';
import { type Iteration, nextIteration, spareTime } from '../../../solver/sharing/next-iteration.ts';
import { type KeptLengths, OutputLengths } from '../../../solver/sharing/output-lengths.ts';
import type { SharingSettings } from '../../../solver/sharing/settings.ts';
import { type SharedIteration, shareIteration } from '../../../solver/sharing/shared-iteration.ts';
import type { Slo } from '../../../solver/sharing/slo.ts';
import { streamedIteration } from '../../../solver/sharing/streamed-iteration.ts';
import { pace_ms } from '../../../solver/streaming/measured-pace.ts';
import type { InstanceReport, SchedulerReport } from '../../../spec/device-report.ts';
import type { RefusedRequest, SharedDeviceView } from '../../../spec/device-view.ts';
import type {
  EngineStats,
  IterationPlan,
  KvExhausted,
  SequenceProgress,
  StepReport,
} from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { ComingModels } from './coming-models.ts';
import { DecisionLog } from './decision-log.ts';
import { DeviceMemory } from './device-memory.ts';
import { instanceReport, keepsSlo } from './instance-report.ts';
import type { Submission } from './messages.ts';
import { observeIteration, observePace } from './observed-iteration.ts';
import { ParkedRequests, type ParkingDiskView } from './parked-requests.ts';
import {
  longestIdle,
  mayRest,
  nextToRecycle,
  type ScheduledEngine,
  type ScheduledInstance,
  type ScheduledModel,
  type ScheduledRequest,
  scheduledRequest,
  sizesOf,
  stepTime_ms,
} from './scheduled-instance.ts';
import { sharedView } from './shared-view.ts';

interface ScheduledDevice extends DeviceView {
  instances: ScheduledInstance[];
}

/** What the next worker can begin with. */
interface LearnedModel {
  profile: KeptProfile;
  lengths?: KeptLengths;
}

/** An iteration of a model, as its engine is told. */
export interface ChosenIteration {
  model: string;
  plan: IterationPlan;
}

/**
 * Who computes next on this device, and who is let in: the live state behind the pure decisions of `solver/sharing`,
 * kept from what engines report after every iteration.
 */
export class DeviceSchedule {
  readonly decisions = new DecisionLog();
  readonly #settings: SharingSettings;
  readonly #device: ScheduledDevice;
  readonly memory: DeviceMemory;
  readonly #coming: ComingModels;
  readonly #parked: ParkedRequests;
  readonly #lengths = new OutputLengths();
  readonly #counted: Required<Omit<SchedulerReport, 'parked'>> = {
    iterations: 0,
    computing_ms: 0,
    deciding_ms: 0,
    admitting_ms: 0,
    admitted: 0,
    refused: 0,
    evicted: 0,
  };

  /**
   * @param disk where KV of evicted requests may wait; absent: in host memory alone
   * @param hostRoom_bytes host memory that is left for KV that waits; absent: as much as is wanted
   */
  constructor(
    settings: SharingSettings,
    disk?: ParkingDiskView,
    hostRoom_bytes: () => number = () => Number.POSITIVE_INFINITY,
  ) {
    this.#settings = settings;
    this.#device = {
      id: 'this device',
      kind: 'cpu',
      compute: '',
      instances: [],
      pool_bytes: Number.POSITIVE_INFINITY,
      budget_bytes: 0,
      held_bytes: 0,
      release_ms: 0,
    };
    this.memory = new DeviceMemory(this.#device, settings, this.decisions);
    this.#coming = new ComingModels(this.#device, this.memory, settings);
    const sync = (instance: ScheduledInstance, now_ms: number): void =>
      this.sync(instance.model, instance.engine.progress(), now_ms);
    this.#parked = new ParkedRequests(this.#device, this.memory, disk, sync, hostRoom_bytes);
  }

  /** Whether a model has the KV that it needs at least, in a pool of so many bytes; else others have to go. */
  couldAdd(model: ScheduledModel, stats: EngineStats, pool_bytes: number): boolean {
    return this.memory.couldAdd({ ...sizesOf(model, stats), requests: [] }, pool_bytes, ({ id }) => [
      ...this.#of(id)!.live.values(),
    ]);
  }

  /**
   * @param known of how fast it is here, and how long its answers were before
   * @param pool_bytes of the pool that all models of the device lie in
   */
  add(
    model: ScheduledModel,
    { growing, lengths }: { growing: GrowingProfile; lengths?: KeptLengths },
    engine: ScheduledEngine,
    pool_bytes: number,
    now_ms: number,
  ): void {
    const stats = engine.stats();
    const instance: ScheduledInstance = {
      ...sizesOf(model, stats),
      profile: growing.profile,
      growing,
      engine,
      slo: model.slo,
      max_sequences: model.max_sequences,
      places: model.max_sequences,
      prefill_chunk_tokens_max: model.prefill_chunk_tokens,
      ready_at_ms: now_ms,
      stays: true,
      kv_used_bytes: 0,
      requests: [],
      live: new Map(),
      waiting: 0,
      kv_full: false,
      pace: undefined,
      waited_ms: stats.streamed?.waited_ms ?? 0,
      idle_since_ms: now_ms,
      changes_stages: false,
    };
    if (lengths) this.#lengths.restore(model.name, lengths);
    this.#coming.arrived(model.name);
    this.memory.add(instance, engine, pool_bytes);
    this.#device.instances.push(instance);
  }

  /** A pipeline has another stage here: what is promised to it, and what a token of it takes, is that of the stage. */
  resized(model: string, stats: EngineStats, now_ms: number): void {
    const instance = this.#of(model);
    if (instance === undefined) return;
    const { tokens_max } = instance;
    const sizes = sizesOf({ name: model, tokens_max }, stats);
    const { weight_bytes, working_bytes, kv_bytes_max, kv_bytes_per_token } = sizes;
    this.memory.resize(instance, { weight_bytes, working_bytes, kv_bytes_max, kv_bytes_per_token });
    instance.kv_used_bytes = stats.kv_tokens_used * kv_bytes_per_token;
    this.#tryAgain(now_ms);
  }

  /** The stages of a pipeline begin to change, or do not any more: meanwhile it gives way to nobody. */
  changesStages(model: string, does: boolean): void {
    const instance = this.#of(model);
    if (instance) instance.changes_stages = does;
  }

  remove(model: string, now_ms: number): void {
    const { instances } = this.#device;
    const at = instances.findIndex(({ id }) => id === model);
    for (const left of at >= 0 ? instances.splice(at, 1) : []) this.#coming.left(left);
    this.memory.remove(model);
    this.#tryAgain(now_ms);
  }

  /**
   * Lets a sequence in, or says why not. Part of an answer that was let in already, and answers that another replica
   * began, are always let in: to break them off is worse than a late token.
   * @throws HpcserveError E_SLO_REFUSED with the seconds after which to ask again
   */
  admit(submission: Submission, now_ms: number): void {
    const instance = this.#of(submission.model);
    if (instance === undefined) return;
    const began = performance.now();
    const request = this.#view(submission, instance.slo, now_ms);
    try {
      if (instance.slo !== undefined && !request.background && !submission.certain)
        this.#validate(instance, request, now_ms);
      // Whom nothing is promised is let in without KV, and waits for it.
      else this.memory.provide(instance, [...instance.live.values(), request]);
      instance.live.set(submission.id, request);
      this.#counted.admitted++;
    } finally {
      const took_ms = performance.now() - began;
      this.#counted.deciding_ms += took_ms;
      this.#counted.admitting_ms += took_ms;
    }
  }

  /**
   * Whether a request for a model without an instance is let in: then one is made for it. Where nothing is promised, or
   * it is certain, it is let in as it is.
   * @param load_ms until the model would be there
   * @param recycle has an instance without requests leave, whose memory it needs
   * @returns whether it was let in by a promise: it is not to be asked again when the model is there
   * @throws HpcserveError E_SLO_REFUSED with the seconds after which to ask again
   */
  admitAway(
    submission: Submission,
    load_ms: number,
    now_ms: number,
    recycle: (model: string) => void,
  ): boolean {
    const { model, id, certain } = submission;
    const slo = this.#coming.away(model)?.slo;
    const request = this.#view(submission, slo, now_ms);
    if (slo === undefined || request.background || certain) return false;
    const admission = this.#coming.admit(model, request, load_ms, now_ms, recycle);
    if (!admission.admit) throw this.#refusal(model, request, admission.because, now_ms);
    this.decisions.note({ kind: 'admit', model, request: id, because: admission.because });
    return true;
  }

  /**
   * A model that is away sets out. One that takes all of its KV as it comes takes none that was promised to what runs:
   * where there is no room for it, models that may rest go.
   * @param recycle has one of them leave, at once
   * @returns whether there is room now
   */
  setsOut(model: string, recycle: (model: string) => void): boolean {
    const liveOf = ({ id }: InstanceView): RequestView[] => [...(this.#of(id)?.live.values() ?? [])];
    while (!this.#coming.setAsideWhole(model, liveOf)) {
      const idle = this.longestIdle();
      if (idle === undefined) return false;
      recycle(idle);
      if (this.#of(idle)) return false;
    }
    return true;
  }

  /** The client of a request that waits for its model is gone. */
  withdraw(model: string, id: number): void {
    this.#coming.withdraw(model, id);
  }

  /** A model that was on its way does not come now. */
  keepAway(model: string, now_ms: number): void {
    this.#coming.ended(model);
    this.#tryAgain(now_ms);
  }

  /** A model has failed: it is not brought back for requests. */
  lost(model: string, now_ms: number): void {
    this.#coming.forget(model);
    this.#tryAgain(now_ms);
  }

  /** How far the sequences of a model are: after one came, went, or had an iteration. */
  sync(model: string, progress: readonly SequenceProgress[], now_ms: number): void {
    const instance = this.#of(model);
    if (instance === undefined) return;
    const running = progress.filter(({ waiting }) => !waiting).length;
    let slots = instance.kv_full ? 0 : instance.max_sequences - running;
    instance.requests.length = 0;
    instance.waiting = 0;
    for (const { id, waiting, generated_tokens, pending_tokens } of progress) {
      const request = instance.live.get(id);
      if (request === undefined) continue;
      request.output_tokens = generated_tokens;
      request.prefill_tokens_left = pending_tokens === 1 && generated_tokens > 0 ? 0 : pending_tokens;
      if (generated_tokens > 0) request.first_token_ms ??= now_ms;
      if (!request.embeds && generated_tokens >= request.expected_output_tokens)
        request.expected_output_tokens = this.#expected(instance.model, request);
      if (!waiting || slots-- > 0) instance.requests.push(request);
      else instance.waiting++;
    }
    for (const { parked_bytes } of instance.live.values()) if (parked_bytes > 0) instance.waiting++;
    instance.places = instance.max_sequences - instance.requests.length - instance.waiting;
    if (instance.live.size > 0) delete instance.idle_since_ms;
    else instance.idle_since_ms ??= now_ms;
  }

  /** A sequence is gone before its end. */
  cancelled(model: string, id: number, progress: readonly SequenceProgress[], now_ms: number): void {
    const instance = this.#of(model);
    if (instance === undefined) return;
    instance.live.delete(id);
    this.#tryAgain(now_ms);
    this.sync(model, progress, now_ms);
  }

  /** KV was given up somewhere on the device: sequences that found none are tried again. */
  #tryAgain(now_ms: number): void {
    for (const instance of this.#device.instances) {
      if (!instance.kv_full) continue;
      instance.kv_full = false;
      this.memory.provide(instance, [...instance.live.values()]);
      this.sync(instance.model, instance.engine.progress(), now_ms);
    }
  }

  /** The next iteration; undefined where nothing that is scheduled can run. */
  choose(now_ms: number): ChosenIteration | undefined {
    const began = performance.now();
    const lanes = lanesOf(this.#device.instances, now_ms, this.#settings);
    const next = nextIteration(lanes, now_ms, this.#settings);
    let chosen: ChosenIteration | undefined;
    if (!('at_ms' in next)) {
      const { prefill_tokens, decode } = this.#share(lanes, next, now_ms);
      const first = next.prompt && { first: Number(next.prompt.request) };
      chosen = { model: lanes[next.lane]!.instance, plan: { decode, prefill_tokens, ...first } };
    }
    if (!chosen) {
      for (const instance of this.#device.instances) {
        if (instance.live.size === 0) continue;
        instance.kv_full = false;
        this.memory.rescue(instance, [...instance.live.values()]);
        this.#parked.restore(now_ms);
      }
      this.#parked.recomputeFirst(now_ms);
    }
    this.#counted.deciding_ms += performance.now() - began;
    return chosen;
  }

  /** What an iteration of the chosen model computes beside what it was chosen for. */
  #share(lanes: readonly Lane[], next: Iteration, now_ms: number): SharedIteration {
    const pace = this.#of(lanes[next.lane]!.instance)?.pace;
    if (pace === undefined || pace_ms(pace, 1) === undefined)
      return shareIteration(lanes, next, now_ms, this.#settings);
    return streamedIteration(lanes, next, (rows) => pace_ms(pace, rows)!, now_ms, this.#settings);
  }

  /** How long everybody to whom something is promised can wait. */
  spare_ms(now_ms: number): number {
    return spareTime(lanesOf(this.#device.instances, now_ms, this.#settings), now_ms, this.#settings);
  }

  /** An iteration is over: what it took refreshes the profile, what it gave is in `progress`. */
  ended(
    { model, plan }: ChosenIteration,
    report: StepReport,
    progress: readonly SequenceProgress[],
    stats: EngineStats,
    elapsed_ms: number,
    now_ms: number,
  ): void {
    const instance = this.#of(model);
    this.#counted.iterations++;
    this.#counted.computing_ms += elapsed_ms;
    if (instance === undefined) return;
    observeIteration(instance, plan, report, elapsed_ms);
    observePace(instance, report, stats, elapsed_ms);
    const nothing = report.prefill_tokens + report.decode_tokens === 0;
    for (const { id, finish } of report.outputs) {
      const request = finish === undefined ? undefined : instance.live.get(id);
      if (request === undefined) continue;
      instance.live.delete(id);
      if (request.embeds || (finish !== 'stop' && finish !== 'length')) continue;
      const { reasoning, output_tokens } = request;
      this.#lengths.observe({ model, reasoning }, output_tokens + 1);
    }
    if (nothing && plan.first !== undefined) instance.kv_full = true;
    instance.kv_used_bytes = stats.kv_tokens_used * instance.kv_bytes_per_token;
    this.memory.work(instance, stats.working_bytes);
    this.memory.settle();
    if (report.outputs.some(({ finish }) => finish !== undefined)) {
      this.memory.shrink(instance, [...instance.live.values()], this.#coming.away_bytes);
      this.#tryAgain(now_ms);
      this.sync(model, progress, now_ms);
      this.#parked.restore(now_ms);
    } else this.sync(model, progress, now_ms);
  }

  /**
   * A sequence finds no KV for its next token, and its engine has stopped before the iteration (LLM-Mesh §6.4).
   * Whatever is done here, the model has a larger budget or a running sequence less afterwards, here or elsewhere: its
   * engine tries again as often as it must, and comes to its iteration.
   *
   *     budget of the model may rise ──yes──► it rises
   *        │ no
   *     a request of the device holds KV, and is not the oldest of the model ──no──► the youngest of the model
   *        │ yes: the one that can wait longest gives way                              is computed again
   *        ├─ its KV is parked in host memory or on disk, or computed again: what is cheapest
   *        └─ of another model: what it held goes over to the budget of this one
   *
   * The oldest of the model never gives way to a younger one, so that something always ends.
   */
  handleKvExhausted(model: string, exhausted: KvExhausted, now_ms: number): void {
    const instance = this.#of(model);
    if (instance === undefined) throw new Error(`${model} has no place in the schedule`);
    const before_bytes = instance.kv_bytes;
    this.memory.provide(instance, [...instance.live.values()]);
    if (instance.kv_bytes > before_bytes) return;
    if (!this.#evictFor(instance, exhausted, now_ms)) instance.engine.recomputeSequence(exhausted.youngest);
    this.sync(model, instance.engine.progress(), now_ms);
  }

  /** @returns whether a request gave way, and what it held is for the instance */
  #evictFor(instance: ScheduledInstance, { bytes }: KvExhausted, now_ms: number): boolean {
    const oldest = instance.requests.find(({ prefill_tokens_left }) => prefill_tokens_left === 0);
    const holds = ({ id }: RequestView): boolean =>
      this.#device.instances.some((other) => {
        // What is taken as a whole goes over to nobody, and has nothing that would be added to it.
        const isOfUse = other === instance || !(other.kv_whole || instance.kv_whole);
        return isOfUse && other.live.has(Number(id)) && other.engine.kvBytesOf(Number(id)) > 0;
      });
    const isBusy = (request: RequestView): boolean => request === oldest || !holds(request);
    // One at a time: the engine says whether it was enough.
    const [eviction] = chooseEvictions(this.#device, bytes, now_ms, isBusy);
    if (eviction === undefined) return false;
    const from = this.#of(eviction.instance)!;
    const freed_bytes = this.#evict(from, eviction);
    if (from === instance) return true;
    this.sync(from.model, from.engine.progress(), now_ms);
    return this.memory.move(from, instance, freed_bytes);
  }

  /** @returns bytes of KV that the request held */
  #evict(from: ScheduledInstance, eviction: Eviction): number {
    const request = eviction.request as ScheduledRequest;
    const id = Number(request.id);
    const places = this.#parked.placesFor(from);
    const fate = decideKvFate(request, from.kv_bytes_per_token, from.profile, places);
    this.#counted.evicted++;
    const freed_bytes = from.engine.kvBytesOf(id);
    const parked_bytes = fate.do === 'park' ? from.engine.parkSequence(id, fate.place.at) : undefined;
    let what = 'it is computed again';
    if (fate.do === 'park' && parked_bytes !== undefined) {
      request.parked_bytes = parked_bytes;
      request.parked_at = fate.place.at;
      what = `its KV is parked ${fate.place.at === 'disk' ? 'on disk' : 'in host memory'}`;
    } else {
      from.engine.recomputeSequence(id);
      if (fate.do === 'park') what += ', for the disk did not take its KV';
    }
    const because = `${eviction.because}; ${what}: ${fate.because}`;
    this.decisions.note({ kind: 'evict', model: from.model, request: id, because });
    return freed_bytes;
  }

  /** By name. */
  instances(now_ms: number): InstanceReport[] {
    const byName = [...this.#device.instances].sort((a, b) => (a.id < b.id ? -1 : 1));
    return byName.map((instance) => instanceReport(instance, now_ms, this.#settings));
  }

  /** Of the instances that may rest, the one without requests for longest. */
  longestIdle(): string | undefined {
    return longestIdle(this.#device.instances)?.id;
  }

  /** The idle instance whose keep-alive is over first, and when that is. */
  nextToRecycle(): { model: string; at_ms: number } | undefined {
    return nextToRecycle(this.#device.instances, this.#settings);
  }

  /** Nobody asks for it, and it is as it is to be. */
  mayRest(model: string): boolean {
    const instance = this.#of(model);
    return instance !== undefined && mayRest(instance);
  }

  /** For those who place requests on several devices. */
  view(now_ms: number, loadTime_ms: (model: string) => number): SharedDeviceView {
    const { instances } = this.#device;
    const device = { ...this.#device, instances: [...instances, ...this.#coming.instances] };
    return sharedView(device, this.#settings, now_ms, this.#coming.resting(loadTime_ms));
  }

  /** Share of the pool that is promised to weights and KV of all instances. */
  get promised_share(): number {
    return this.#device.budget_bytes / this.#device.pool_bytes;
  }

  /** When a refusal might turn out otherwise. */
  retryAfter_s(now_ms: number): number {
    return Math.max(1, Math.ceil(retryAfter(this.#device, now_ms, this.#settings) / 1000));
  }

  /** See `compute_ms` of `ModelLoad`. */
  stepTime_ms(model: string, stats: EngineStats): number | undefined {
    const instance = this.#of(model);
    return instance && stepTime_ms(instance, stats);
  }

  isTooSlow(model: string): boolean {
    const instance = this.#of(model);
    return instance?.slo !== undefined && !keepsSlo(instance, this.#settings);
  }

  /** What is worth keeping of a model that is here. */
  learned(model: string): LearnedModel | undefined {
    const instance = this.#of(model);
    if (!instance) return undefined;
    const learned: LearnedModel = { profile: instance.growing.kept() };
    const lengths = this.#lengths.kept(model);
    if (lengths) learned.lengths = lengths;
    return learned;
  }

  /** A model is gone for good. */
  forget(model: string): void {
    this.#lengths.forget(model);
    this.#coming.forget(model);
  }

  get counted(): SchedulerReport {
    return { ...this.#counted, parked: this.#parked.report };
  }

  #of(model: string): ScheduledInstance | undefined {
    return this.#device.instances.find(({ id }) => id === model);
  }

  #view(submission: Submission, slo: Slo | undefined, now_ms: number): ScheduledRequest {
    const request = scheduledRequest(submission, slo, now_ms);
    if (!request.embeds) request.expected_output_tokens = this.#expected(submission.model, request);
    return request;
  }

  #expected(model: string, { reasoning, output_tokens, output_tokens_max }: ScheduledRequest): number {
    return this.#lengths.expected({ model, reasoning }, output_tokens, output_tokens_max);
  }

  #validate(instance: ScheduledInstance, request: ScheduledRequest, now_ms: number): void {
    const { model } = instance;
    const { slo, kept } = attainableSlo(instance, request, this.#settings);
    request.service_level = slo;
    const admission = admitTo(this.#coming.seen(now_ms), instance, request, now_ms, this.#settings);
    if (admission.admit && this.memory.apply(instance, admission)) {
      const note = kept ? '' : '; alone it takes longer than its level: twice that is promised';
      const because = `${admission.because}${note}`;
      this.decisions.note({ kind: 'admit', model, request: Number(request.id), because });
      return;
    }
    const because = admission.admit ? 'others still hold the memory that it needs' : admission.because;
    throw this.#refusal(model, request, because, now_ms);
  }

  #refusal(model: string, request: ScheduledRequest, because: string, now_ms: number): HpcserveError {
    this.#counted.refused++;
    this.decisions.note({ kind: 'refuse', model, request: Number(request.id), because });
    return new HpcserveError('E_SLO_REFUSED', {
      what: `${model} cannot take this request within its service level now`,
      because,
      details: { retry_after_s: this.retryAfter_s(now_ms), refused: refusedOf(request) },
    });
  }
}

function refusedOf({ input_tokens, expected_output_tokens, service_level }: RequestView): RefusedRequest {
  return { input_tokens, expected_output_tokens, service_level };
}
