/**
 * What a device worker says of itself at `GET /hpcserve/v1/device`, and `hpcserve top` shows: its memory, the models on
 * it, how long their requests can wait, and what it decided last. Durations are milliseconds, sizes bytes.
 */
import { z } from 'zod';
import { poolNames } from './model-pools.ts';
import { movesReportSchema } from './moves-report.ts';
import { poolReportSchema } from './pool-report.ts';
import { streamedWeightsSchema } from './streamed-weights.ts';

const count = z.int().min(0);
const bytes = z.number().min(0);
const duration_ms = z.number();
const joules = z.number().min(0);

const instanceSchema = z.object({
  model: z.string(),
  /** What its deployment promises; absent: nothing, its requests run in time that promises spare. */
  slo: z.object({ ttft_ms: z.number().optional(), tpot_ms: z.number().optional() }).optional(),
  /** Requests whose prompt is being computed, that decode, and that wait for a place. */
  prompts: count,
  decoding: count,
  waiting: count,
  max_sequences: count,
  /** Of its most urgent request: how long its next token can still wait; negative: late. Absent without requests. */
  headroom_ms: duration_ms.optional(),
  weight_bytes: bytes,
  /** Its weights lie in host memory; absent: on the device. */
  streamed: streamedWeightsSchema.optional(),
  /** KV: reserved for it, in use by sequences, and what it should have (LLM-Mesh Eq. 2). */
  kv_bytes: bytes,
  kv_used_bytes: bytes,
  kv_required_bytes: bytes,
  /** Since when it has had no request; absent while it has one. */
  idle_ms: duration_ms.optional(),
  profile: z.object({
    /** Points that were measured, of prompts and of decode steps. */
    prefill_points: count,
    decode_points: count,
    /** Estimates: a prompt of 512 tokens, and a token of one sequence of that length. */
    prefill_512_ms: duration_ms,
    decode_512_ms: duration_ms,
    /** Whether the idle device keeps the SLO for such a request; absent where nothing is promised. */
    keeps_level: z.boolean().optional(),
  }),
});
export type InstanceReport = z.infer<typeof instanceSchema>;

/** Since the worker began. */
const schedulerSchema = z.object({
  iterations: count,
  /** In iterations, and in what decides whose turn it is and who is let in. */
  computing_ms: duration_ms,
  deciding_ms: duration_ms,
  /** Of that, in who is let in. */
  admitting_ms: duration_ms.optional(),
  admitted: count,
  refused: count,
  evicted: count,
  /** KV of requests that gave way and wait for room; absent: of an earlier version. */
  parked: z
    .object({
      memory_bytes: bytes,
      /** Absent: it may wait on no disk. */
      disk_bytes: bytes.optional(),
      /** To the disk and back, as it was measured. */
      disk_bytes_per_s: bytes.optional(),
      /** What went wrong there last: it is tried again after a minute. */
      disk_trouble: z.string().optional(),
    })
    .optional(),
});
export type SchedulerReport = z.infer<typeof schedulerSchema>;

const decisionSchema = z.object({
  /** Unix ms. */
  at_ms: z.number(),
  kind: z.enum(['admit', 'refuse', 'evict', 'profile', 'budget', 'rest', 'move', 'load']),
  model: z.string(),
  /** Id of the request in the worker. */
  request: z.int().optional(),
  because: z.string(),
});
export type SharingDecision = z.infer<typeof decisionSchema>;

/** Where the worker's memory is. The parts and `unexplained_bytes` add up to `pss_bytes`. */
const memorySchema = z.object({
  /** Proportional set size of the process, as the kernel counts it; memory files included. */
  pss_bytes: bytes,
  parts: z.array(z.object({ name: z.string(), bytes })),
  /** What no part explains. */
  unexplained_bytes: bytes,
  /** The unified pool; absent before the first model. */
  pool: poolReportSchema.optional(),
});
export type MemoryReport = z.infer<typeof memorySchema>;

export const deviceReportSchema = z.object({
  format: z.literal(1),
  /** When it was made, Unix ms. */
  at_ms: z.number(),
  pid: count,
  device: z.object({
    name: z.string(),
    threads: count,
    isa: z.array(z.string()),
    /** Kernels that are wrong on this CPU, one sentence each: plain ones, which are slower, take their place. */
    left_out: z.array(z.string()).default([]),
  }),
  memory: memorySchema,
  instances: z.array(instanceSchema),
  /** Models that gave way to others while nobody asked for them; the next request brings them back. */
  resting: z.array(z.string()).default([]),
  /** Models whose weights are on their way. */
  loading: z
    .array(
      z.object({
        model: z.string(),
        bytes_loaded: bytes,
        bytes_total: bytes,
        bytes_per_s: bytes,
        /** Parts of the way, with the rate of one thread. */
        legs: z.array(z.object({ leg: z.string(), bytes, bytes_per_s: bytes })).default([]),
      }),
    )
    .default([]),
  scheduler: schedulerSchema,
  /** Of the device since its agent began, or why it is not measured; absent: of an earlier version. */
  energy: z.union([z.object({ joules, at_ms: duration_ms }), z.object({ because: z.string() })]).optional(),
  /** Of models of which a prefill or decode pool has a replica here. */
  pools: z.record(z.string(), z.enum(poolNames)).default({}),
  /** Answers that moved to other workers with their KV, and came so; absent where they cannot. */
  moves: movesReportSchema.optional(),
  /** Newest last. */
  decisions: z.array(decisionSchema),
});
export type DeviceReport = z.infer<typeof deviceReportSchema>;
