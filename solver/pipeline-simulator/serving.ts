/**
 * One model served by pipelines whose granularity changes under load, by discrete events. What decides is a
 * `PipelinePolicy`; what a change takes is loading (the profile's from storage, the link's from host memory) and the
 * copy of KV, both while the old pipelines go on, and then a cut at an iteration boundary (FlexPipe §6.3).
 */
import type { Fleet, GranularityOption } from '../granularity/control.ts';
import type { Granularity } from '../granularity/granularity.ts';
import { type FloorSettings, floor_settings } from '../locality/always-on-floor.ts';
import { SimulationEvents } from '../sharing-simulator/simulation-events.ts';
import { FragmentPool } from './fragment-pool.ts';
import type { FragmentedCluster } from './fragments.ts';
import { type ServedRequest, SimulatedPipeline } from './pipeline.ts';
import type { PipelinePolicy } from './policy.ts';
import type { PipelineRequest } from './surges.ts';

/** A granularity, and what it takes to have it. */
export interface ProfiledGranularity extends Granularity {
  /** From storage. */
  load_s: number;
  /** Parameters of one stage, and what it needs beside them. */
  stage_bytes: number;
  reserve_bytes: number;
}

export interface PipelineServingOptions {
  profile: readonly ProfiledGranularity[];
  cluster: FragmentedCluster;
  /** Between two decisions. */
  tick_ms: number;
  /** The pause of a cut. */
  cutover_ms: number;
  /** Of one sequence. */
  kv_bytes: number;
  /** At which one device sends KV. */
  kv_bytes_per_s: number;
  floor?: FloorSettings;
  /** The first so many requests are served and not counted; absent: none. */
  warmup_requests?: number;
}

/** What came of a run after its warm-up. */
export interface PipelineOutcome {
  requests: readonly ServedRequest[];
  /** By arrival of the first and end of the last. */
  seconds: number;
  /** Time that each change loaded and copied KV, while the pipelines before it served. */
  changes_s: readonly number[];
  /** Devices times seconds that were held; and in which stages computed. */
  held_device_s: number;
  stage_device_s: number;
  always_on_devices: number;
  devices_max: number;
}

type Event =
  | { kind: 'arrival'; request: ServedRequest }
  | { kind: 'free'; pipeline: SimulatedPipeline }
  | { kind: 'back'; pipeline: SimulatedPipeline; batch: ServedRequest[] }
  | { kind: 'loaded'; fleet: Fleet; devices: readonly string[][] }
  | { kind: 'warm' }
  | { kind: 'tick' };

export function servePipelines(
  requests: readonly PipelineRequest[],
  policy: PipelinePolicy,
  options: PipelineServingOptions,
): PipelineOutcome {
  return new PipelineServing(requests, policy, options).run();
}

/** One run. */
class PipelineServing {
  readonly #policy: PipelinePolicy;
  readonly #options: PipelineServingOptions;
  readonly #events = new SimulationEvents<Event>();
  readonly #pool: FragmentPool;
  readonly #requests: readonly ServedRequest[];
  readonly #waiting: ServedRequest[] = [];
  #fleet: Fleet;
  #pipelines: SimulatedPipeline[] = [];
  readonly #all: SimulatedPipeline[] = [];
  /** Pipelines whose first stage is known to be free later. */
  readonly #wakes = new Set<SimulatedPipeline>();
  #changing = false;
  #changes_s: number[] = [];
  /** As the warm-up left them. */
  #begun = { at_ms: 0, held_ms: 0, stage_ms: 0 };
  #done = 0;
  #devices_max = 0;
  #now_ms = 0;

  constructor(requests: readonly PipelineRequest[], policy: PipelinePolicy, options: PipelineServingOptions) {
    this.#policy = policy;
    this.#options = options;
    this.#pool = new FragmentPool({
      cluster: options.cluster,
      always_on: policy.always_on_devices,
      whole_devices: policy.whole_devices,
      floor: options.floor ?? floor_settings,
    });
    this.#requests = requests.map((request) => ({
      ...request,
      passes_left: request.passes,
      since_ms: request.arrival_ms,
      waiting_ms: 0,
      computing_ms: 0,
      hopping_ms: 0,
      done_ms: Number.NaN,
    }));
    this.#fleet = policy.first;
    this.#begin(policy.first, split(this.#pool.always_on, policy.first));
  }

  run(): PipelineOutcome {
    for (const request of this.#requests) this.#events.add(request.arrival_ms, { kind: 'arrival', request });
    this.#events.add(0, { kind: 'tick' });
    const warmup = this.#options.warmup_requests ?? 0;
    this.#events.add(this.#requests[warmup]!.arrival_ms, { kind: 'warm' });
    while (this.#done < this.#requests.length) {
      const next = this.#events.next()!;
      this.#now_ms = next.at_ms;
      this.#handle(next.event);
    }
    return {
      requests: this.#requests.slice(warmup),
      seconds: (this.#now_ms - this.#begun.at_ms) / 1000,
      changes_s: this.#changes_s,
      held_device_s: (this.#pool.heldTime_ms(this.#now_ms) - this.#begun.held_ms) / 1000,
      stage_device_s: (this.#stageTime_ms() - this.#begun.stage_ms) / 1000,
      always_on_devices: this.#policy.always_on_devices,
      devices_max: this.#devices_max,
    };
  }

  #stageTime_ms(): number {
    return this.#all.reduce((sum, { stage_ms }) => sum + stage_ms, 0);
  }

  #handle(event: Event): void {
    switch (event.kind) {
      case 'arrival':
        this.#policy.arrived(this.#now_ms);
        this.#waiting.push(event.request);
        this.#launchAll();
        return;
      case 'free':
        this.#wakes.delete(event.pipeline);
        this.#launch(event.pipeline);
        return;
      case 'back':
        event.pipeline.batches--;
        this.#comeBack(event.pipeline.last, event.batch);
        return;
      case 'loaded':
        this.#cutOver(event.fleet, event.devices);
        return;
      case 'warm':
        this.#begun = {
          at_ms: this.#now_ms,
          held_ms: this.#pool.heldTime_ms(this.#now_ms),
          stage_ms: this.#stageTime_ms(),
        };
        this.#changes_s = [];
        this.#devices_max = this.#using().size;
        return;
      case 'tick':
        this.#decide();
        this.#events.add(this.#now_ms + this.#options.tick_ms, { kind: 'tick' });
    }
  }

  #launchAll(): void {
    for (const pipeline of this.#pipelines) this.#launch(pipeline);
  }

  #launch(pipeline: SimulatedPipeline): void {
    if (pipeline.successor !== undefined) return;
    if (pipeline.ready.length === 0 && this.#waiting.length === 0) return;
    if (pipeline.free_ms > this.#now_ms) {
      if (this.#wakes.has(pipeline)) return;
      this.#wakes.add(pipeline);
      this.#events.add(pipeline.free_ms, { kind: 'free', pipeline });
      return;
    }
    const started = pipeline.launch(this.#now_ms, this.#waiting, this.#policy.slowdown?.(this.#now_ms) ?? 1);
    if (started === undefined) return;
    this.#events.add(started.back_ms, { kind: 'back', pipeline, batch: started.batch });
    this.#launch(pipeline);
  }

  #comeBack(pipeline: SimulatedPipeline, batch: readonly ServedRequest[]): void {
    for (const request of batch) {
      request.passes_left--;
      request.since_ms = this.#now_ms;
      if (request.passes_left > 0) {
        pipeline.ready.push(request);
        continue;
      }
      pipeline.sequences--;
      request.done_ms = this.#now_ms;
      this.#done++;
      this.#policy.finished(this.#now_ms, (this.#now_ms - request.arrival_ms) / request.passes);
    }
    this.#launch(pipeline);
  }

  #decide(): void {
    const running = this.#pipelines.reduce((sum, { sequences }) => sum + sequences, 0);
    const wanted = this.#policy.decide({
      now_ms: this.#now_ms,
      fleet: this.#fleet,
      changing: this.#changing,
      waiting: this.#waiting.length,
      running,
      options: this.#options.profile.map((granularity) => this.#optionOf(granularity)),
    });
    if (!this.#changing) this.#pool.settle(this.#now_ms, this.#using());
    if (wanted !== undefined) this.#prepare(wanted, running);
  }

  #optionOf(granularity: ProfiledGranularity): GranularityOption {
    const { stages, load_s } = granularity;
    const bytes = needed_bytes(granularity);
    // Another instance needs all its devices anew; another granularity keeps those that there are.
    const further = stages === this.#fleet.stages ? stages : stages - this.#using().size;
    const warm = this.#pool.isWarm(further, bytes);
    const link_bytes_per_s = this.#options.cluster.graph.servers[0]!.link_bytes_per_s;
    return {
      granularity,
      devices_max: this.#pool.count(bytes),
      load_s: warm ? granularity.stage_bytes / link_bytes_per_s : this.#policy.load_share * load_s,
    };
  }

  #using(): Set<string> {
    return new Set(this.#pipelines.flatMap(({ devices }) => devices));
  }

  /** Loads what is missing while the present pipelines serve, and copies their KV. */
  #prepare(fleet: Fleet, running: number): void {
    const { profile, cluster, kv_bytes, kv_bytes_per_s } = this.#options;
    const granularity = profile.find(({ stages }) => stages === fleet.stages)!;
    const needed = fleet.stages * fleet.instances;
    const present = [...this.#using()];
    const kept = present.slice(0, needed);
    const taken = this.#pool.take(
      this.#now_ms,
      needed - kept.length,
      needed_bytes(granularity),
      this.#using(),
    );
    const devices = [...kept, ...taken.devices];
    if (devices.length < needed) return;
    // Stages that grow on devices that stay bring the rest of their range from host memory.
    const own_link = cluster.graph.servers[0]!.link_bytes_per_s;
    const grows = fleet.stages < this.#fleet.stages;
    const grow_s = grows ? granularity.stage_bytes / own_link : 0;
    const cold_s = taken.cold ? this.#policy.load_share * granularity.load_s : 0;
    const moved_share =
      fleet.stages === this.#fleet.stages
        ? 0
        : 1 - Math.min(fleet.stages, this.#fleet.stages) / Math.max(fleet.stages, this.#fleet.stages);
    const kv_s = (running * kv_bytes * moved_share) / (kv_bytes_per_s * Math.min(needed, present.length));
    const change_s = Math.max(grow_s, cold_s, taken.warm_load_s) + kv_s;
    this.#changing = true;
    this.#changes_s.push(change_s);
    this.#events.add(this.#now_ms + 1000 * change_s, {
      kind: 'loaded',
      fleet,
      devices: split(devices, fleet),
    });
  }

  #cutOver(fleet: Fleet, devices: readonly string[][]): void {
    const old = this.#pipelines;
    this.#begin(fleet, devices);
    const unmoved = this.#fleet.stages === fleet.stages ? 0 : this.#options.cutover_ms;
    for (const [index, pipeline] of old.entries())
      pipeline.handOver(this.#pipelines[index % this.#pipelines.length]!, this.#now_ms + unmoved);
    this.#fleet = fleet;
    this.#changing = false;
    this.#pool.settle(this.#now_ms, this.#using());
    this.#launchAll();
  }

  #begin(fleet: Fleet, devices: readonly string[][]): void {
    const granularity = this.#options.profile.find(({ stages }) => stages === fleet.stages)!;
    this.#pipelines = devices.map(
      (own) =>
        new SimulatedPipeline({
          granularity,
          devices: own,
          slowdown: Math.max(...own.map((id) => 1 / (1 - this.#pool.busy(id)))),
          micro_batches: this.#policy.micro_batches,
        }),
    );
    this.#all.push(...this.#pipelines);
    this.#devices_max = Math.max(this.#devices_max, devices.flat().length);
  }
}

function needed_bytes({ stage_bytes, reserve_bytes }: ProfiledGranularity): number {
  return stage_bytes + reserve_bytes;
}

/** Devices for each instance. */
function split(devices: readonly string[], { stages, instances }: Fleet): string[][] {
  return Array.from({ length: instances }, (_, index) => devices.slice(index * stages, (index + 1) * stages));
}
