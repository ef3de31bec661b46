/**
 * Who decides in the simulation: the live decision of `solver/granularity`, and what the systems that FlexPipe is
 * compared with do, as far as their papers and FlexPipe's say it. None of them is the system itself.
 */
import { ArrivalWindows } from '../granularity/arrival-windows.ts';
import {
  type ControlMemory,
  decideGranularity,
  type Fleet,
  type GranularitySettings,
} from '../granularity/control.ts';
import { type Granularity, passRate_per_s, passTime_s } from '../granularity/granularity.ts';
import { StallMonitor } from '../granularity/stall-monitor.ts';
import type { PipelinePolicy, PipelineView } from './policy.ts';

export interface AdaptiveOptions {
  settings: GranularitySettings;
  first: Fleet;
  always_on_devices: number;
  passes_per_request: number;
  deadline_s: number;
  /** Told of each change. */
  on_change?: (now_ms: number, because: string) => void;
}

/** `decideGranularity`, asked with what a gateway and a pipeline see. */
export function adaptivePolicy(options: AdaptiveOptions): PipelinePolicy {
  const windows = new ArrivalWindows();
  const stalls = new StallMonitor();
  let memory: ControlMemory | undefined;
  return {
    name: 'adaptive',
    first: options.first,
    always_on_devices: options.always_on_devices,
    whole_devices: false,
    micro_batches: true,
    load_share: 1,
    arrived: (now_ms) => windows.observe(now_ms),
    finished: (now_ms, latency_ms) => void stalls.observe(now_ms, latency_ms),
    decide(view) {
      const { settings, passes_per_request, deadline_s } = options;
      const own = view.options.find(({ granularity }) => granularity.stages === view.fleet.stages)!;
      const decision = decideGranularity({
        now_ms: view.now_ms,
        options: view.options,
        current: view.fleet,
        devices_floor: options.always_on_devices,
        changing: view.changing,
        arrivals: windows.read(view.now_ms),
        passes_per_request,
        waiting_requests: view.waiting,
        waiting_max: own.granularity.batch_max * view.fleet.instances,
        stalled: stalls.stall !== undefined,
        deadline_s,
        settings,
        memory,
      });
      memory = decision.memory;
      if (decision.action === 'keep') return undefined;
      options.on_change?.(view.now_ms, decision.because);
      // Latencies of another granularity are another normal.
      if (decision.fleet.stages !== view.fleet.stages) stalls.reset();
      return decision.fleet;
    },
  };
}

const watched = { arrived: (): void => undefined, finished: (): void => undefined };

/** So many stages, for ever. */
export function staticPolicy(
  stages: number,
  instances = 1,
  name = `static ${stages} stages`,
): PipelinePolicy {
  return {
    name,
    first: { stages, instances },
    always_on_devices: stages * instances,
    whole_devices: true,
    micro_batches: true,
    load_share: 1,
    ...watched,
    decide: () => undefined,
  };
}

interface ElasticOptions {
  name: string;
  stages: number;
  /** Always on. */
  instances: number;
  instances_max: number;
  whole_devices: boolean;
  micro_batches: boolean;
  load_share: number;
  /** An instance that was not needed for so long goes. */
  keep_alive_ms: number;
}

/** Whole pipelines of one granularity, more of them while their sequences do not have room for what is there. */
function elasticPolicy(options: ElasticOptions): PipelinePolicy {
  const { stages, instances, instances_max, keep_alive_ms } = options;
  let needed_ms = 0;
  return {
    name: options.name,
    first: { stages, instances },
    always_on_devices: stages * instances,
    whole_devices: options.whole_devices,
    micro_batches: options.micro_batches,
    load_share: options.load_share,
    ...watched,
    decide(view: PipelineView) {
      if (view.changing) return undefined;
      const own = view.options.find(({ granularity }) => granularity.stages === stages)!;
      const room = Math.floor(own.devices_max / stages);
      const load = (view.waiting + view.running) / (0.7 * own.granularity.batch_max);
      const wanted = Math.max(instances, Math.min(instances_max, room, Math.ceil(load)));
      if (wanted >= view.fleet.instances) needed_ms = view.now_ms;
      if (wanted > view.fleet.instances) return { stages, instances: wanted };
      if (wanted < view.fleet.instances && view.now_ms - needed_ms >= keep_alive_ms)
        return { stages, instances: wanted };
      return undefined;
    },
  };
}

/** AlpaServe: pipelines planned offline for the rate of the past, on devices of their own, and left so. */
export function alpaServeLike(profile: readonly Granularity[], passes_per_s: number): PipelinePolicy {
  const plans = profile.map((granularity) => {
    const instances = Math.ceil(passes_per_s / (planned_share * passRate_per_s(granularity)));
    return { stages: granularity.stages, instances, pass_s: passTime_s(granularity) };
  });
  const devicesOf = (plan: (typeof plans)[number]): number => plan.stages * plan.instances;
  const [best] = plans.sort((a, b) => devicesOf(a) - devicesOf(b) || a.pass_s - b.pass_s);
  return staticPolicy(best!.stages, best!.instances, 'AlpaServe-like');
}

/** Share of its rate up to which an offline plan fills a pipeline. */
const planned_share = 0.8;

/**
 * What sites do by §3.1: `instances` always on (75 % of the peak there), and more by dynamic scaling of whole
 * pipelines on whole devices, as slow as their stages load.
 */
export function reservedPolicy(stages: number, instances: number, instances_max: number): PipelinePolicy {
  return elasticPolicy({
    name: 'reserved, scaled by pipelines',
    stages,
    instances,
    instances_max,
    whole_devices: true,
    micro_batches: true,
    load_share: 1,
    keep_alive_ms: 300_000,
  });
}

/**
 * MuxServe: several models multiplexed on the same devices, so that each has more of them, and slower ones while the
 * others are asked. The neighbour is asked in turns of `period_ms`, and takes `share` of the devices' time meanwhile.
 */
export function muxServeLike(
  stages: number,
  instances: number,
  neighbour: { period_ms: number; busy_part: number; share: number },
): PipelinePolicy {
  const { period_ms, busy_part, share } = neighbour;
  return {
    ...staticPolicy(stages, instances, 'MuxServe-like'),
    slowdown: (now_ms) => ((now_ms / period_ms) % 1 < busy_part ? 1 / (1 - share) : 1),
  };
}

/**
 * ServerlessLLM: checkpoints that load six times as fast (its paper: 3.6 to 8.2), whole devices, a short keep-alive.
 */
export function serverlessLlmLike(stages: number, instances_max: number): PipelinePolicy {
  return elasticPolicy({
    name: 'ServerlessLLM-like',
    stages,
    instances: 1,
    instances_max,
    whole_devices: true,
    micro_batches: true,
    load_share: 1 / 6,
    keep_alive_ms: 60_000,
  });
}

/**
 * Tetris: tensors shared in memory, so that fragments do and half is there; one batch at a time through the stages.
 */
export function tetrisLike(stages: number, instances_max: number): PipelinePolicy {
  return elasticPolicy({
    name: 'Tetris-like',
    stages,
    instances: 1,
    instances_max,
    whole_devices: false,
    micro_batches: false,
    load_share: 0.5,
    keep_alive_ms: 60_000,
  });
}
