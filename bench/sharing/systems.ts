/**
 * The systems that are compared on the same requests and the same simulated devices, and the parts of ours one by one.
 */
import { defaultSharingSettings, type SharingSettings } from '../../solver/sharing/settings.ts';
import { ExclusiveServing } from '../../solver/sharing-simulator/exclusive-serving.ts';
import { report, type SharingReport } from '../../solver/sharing-simulator/outcome.ts';
import { SharedServing, type SharedServingOptions } from '../../solver/sharing-simulator/shared-serving.ts';
import type { SimulatedKernels } from '../../solver/sharing-simulator/simulated-iterations.ts';
import { type TestbedModel, testbed } from '../../solver/sharing-simulator/testbed.ts';
import type { WorkloadRequest } from '../../solver/sharing-simulator/workload.ts';

/** Iterations scatter by so much around the measured times (standard deviation of the logarithm). */
const noise = 0.03;
const seed = 1;
/** §8.1. */
const counts = { cpus: 4, gpus: 4 };
const keep_alive_ms = 1000;

export type System = (models: readonly TestbedModel[], requests: readonly WorkloadRequest[]) => SharingReport;

function exclusive(cpus: number, kernels?: SimulatedKernels): System {
  return (models, requests) => {
    const serving = new ExclusiveServing({
      devices: testbed({ ...counts, cpus, kernels }),
      models,
      keep_alive_ms,
      noise,
      seed,
    });
    return report(serving.run(requests), serving.counters);
  };
}

interface Changes {
  settings?: Partial<SharingSettings>;
  cpus?: number;
  gpus?: number;
  kernels?: SimulatedKernels | undefined;
  instances_max?: number;
  turns?: SharedServingOptions['turns'];
  parking?: false;
}

function shared(changes: Changes = {}): System {
  return (models, requests) => {
    const serving = new SharedServing({
      devices: testbed({
        cpus: changes.cpus ?? counts.cpus,
        gpus: changes.gpus ?? counts.gpus,
        kernels: changes.kernels,
      }),
      models,
      settings: { ...defaultSharingSettings, keep_alive_ms, ...changes.settings },
      noise,
      seed,
      ...(changes.instances_max === undefined ? {} : { instances_max: changes.instances_max }),
      ...(changes.turns === undefined ? {} : { turns: changes.turns }),
      // KV of a moved sequence goes through host memory and a 100 Gbit/s network.
      ...(changes.parking === false
        ? {}
        : { parking: { free_bytes: 64 * 2 ** 30, bytes_per_s: 10e9, latency_ms: 5 } }),
    });
    return report(serving.run(requests), serving.counters);
  };
}

export const systems = {
  'exclusive GPUs': exclusive(0),
  'exclusive GPUs and CPUs': exclusive(counts.cpus),
  ours: shared(),
} as const satisfies Record<string, System>;

/** Ours on CPUs of other kernels, and exclusive devices with the same. */
export const cpuKernels: Readonly<
  Record<string, { kernels?: SimulatedKernels | undefined; ours: System; peer: System }>
> = Object.fromEntries(
  (
    [
      ['OpenVINO, as the authors measured it', undefined],
      ['ggml’s kernels, Q8_0', { engine: 'llamacpp', weights: 'q8_0' }],
      ['our kernels, Q8_0', { engine: 'native', weights: 'q8_0' }],
      ['our kernels, BF16', { engine: 'native', weights: 'bf16' }],
    ] as const
  ).map(([name, kernels]) => [
    name,
    { kernels, ours: shared({ kernels }), peer: exclusive(counts.cpus, kernels) },
  ]),
);

/** Only what the paper describes: what this project adds is switched off. */
const asPublished: Partial<SharingSettings> = {
  early_prefill: false,
  drain_headroom_ms: Number.POSITIVE_INFINITY,
  consolidation: false,
  growth_share: 0,
};

/** What the decode test looks ahead at: see `SharingSettings.growth_share`. */
export const growthChoices: Readonly<Record<string, System>> = {
  'growth_share 0, as the paper': shared({ settings: { growth_share: 0 } }),
  'growth_share 1': shared({ settings: { growth_share: 1 } }),
};

/** Ours without one part each. */
export const ablations: Readonly<Record<string, System>> = {
  'without sharing (one instance a device)': shared({ instances_max: 1 }),
  'without CPUs': shared({ cpus: 0 }),
  'without GPUs': shared({ gpus: 0 }),
  'without CPUs first (asked in no order)': shared({ settings: { cpu_first: false } }),
  'without defragmentation (spread, no preemption, no moves)': shared({
    settings: { bin_packing: false, preemption: false, consolidation: false },
  }),
  'without preemption': shared({ settings: { preemption: false } }),
  'without moving fragments': shared({ settings: { consolidation: false } }),
  'without turns by headroom (round robin, prompts first)': shared({ turns: 'round_robin' }),
  'without shadow validation (whatever memory takes)': shared({ settings: { shadow_validation: false } }),
  'without chunks (whole prompts)': shared({
    settings: { prefill_chunk_tokens_min: 8192, prefill_chunk_tokens_max: 8192 },
  }),
  'without early prompts': shared({ settings: { early_prefill: false } }),
  'without draining': shared({ settings: { drain_headroom_ms: Number.POSITIVE_INFINITY } }),
  'without elastic KV (16 384 tokens for each instance)': shared({
    settings: { kv_tokens_min: 16_384, kv_watermark: 0 },
  }),
  'without watermark': shared({ settings: { kv_watermark: 0 } }),
  'without parking (moved KV is computed again)': shared({ parking: false }),
  'only what the paper describes': shared({ settings: asPublished, parking: false }),
};
