/**
 * What a device worker tells those who place requests on several devices, at `GET /hpcserve/v1/sharing`: the view by
 * which it decides itself (`solver/sharing/device-view.ts`). Times are ms from when it was made, negative before.
 */
import { z } from 'zod';

const count = z.int().min(0);
const bytes = z.number().min(0);
const rate = z.number().positive();

const sloSchema = z.object({ ttft_ms: rate, tpot_ms: rate });

const requestSchema = z.object({
  id: z.string().max(40),
  arrival_ms: z.number(),
  input_tokens: count,
  output_tokens: count,
  expected_output_tokens: z.number().min(0),
  prefill_tokens_left: count,
  available_at_ms: z.number().min(0),
  first_token_ms: z.number().optional(),
  service_level: sloSchema,
  background: z.boolean().optional(),
});

const profileSchema = z.object({
  samples: z.object({
    prefill: z.array(z.object({ tokens: z.int().min(1), ms: rate })).max(1000),
    decode: z.array(z.object({ batch: z.int().min(1), tokens: z.int().min(1), ms: rate })).max(10_000),
  }),
  measured: z.object({
    prefill: z.array(z.number()),
    decode: z.array(z.tuple([z.number(), z.number()])),
  }),
});

const instanceSchema = z.object({
  model: z.string(),
  profile: profileSchema,
  ready_at_ms: z.number(),
  weight_bytes: bytes,
  kv_bytes: bytes,
  /** Of the pool beside weights and KV; absent: a worker of a release that did not tell it. */
  working_bytes: bytes.optional(),
  /** Its KV is taken as a whole, and goes with it alone. */
  kv_whole: z.boolean().optional(),
  kv_bytes_max: bytes,
  kv_bytes_per_token: rate,
  tokens_max: z.int().min(1),
  /** Further requests that it takes at most. */
  places: z.int(),
  /**
   * Its requests cannot go on elsewhere: whole answers with log probabilities, those that came past gateways, or moved
   * before. Or it has none, or no other model is on the device.
   */
  fixed: z.boolean(),
  prefill_chunk_tokens_max: z.int().min(1),
  requests: z.array(requestSchema),
  /** How keys and values of its answers go to other workers that serve the model; absent: they do not. */
  kv_moves: z.object({ bytes_per_s: rate, latency_ms: z.number().min(0) }).optional(),
});

/** A model that has no instance there now, as one would run. */
const restingSchema = instanceSchema
  .pick({
    model: true,
    profile: true,
    weight_bytes: true,
    working_bytes: true,
    kv_bytes_per_token: true,
    kv_bytes_max: true,
    tokens_max: true,
    prefill_chunk_tokens_max: true,
  })
  .extend({ load_ms: z.number().min(0) });

export const sharedDeviceViewSchema = z.object({
  format: z.literal(1),
  pool_bytes: bytes,
  budget_bytes: bytes,
  held_bytes: bytes,
  /** How the device is shared: `SharingSettings` of the solver. */
  settings: z.record(z.string(), z.union([z.number(), z.boolean()])),
  instances: z.array(instanceSchema),
  /** Absent: a worker of a release that did not tell them. */
  resting: z.array(restingSchema).default([]),
});
export type SharedDeviceView = z.infer<typeof sharedDeviceViewSchema>;

/** What a worker says of a request that it refuses (`headers.refused`), for those who may make room for it. */
export const refusedRequestSchema = z.object({
  input_tokens: count,
  expected_output_tokens: z.number().min(0),
  service_level: sloSchema,
});
export type RefusedRequest = z.infer<typeof refusedRequestSchema>;

/** Asked at `POST /hpcserve/v1/move`: the requests of a model go on elsewhere, and its instance rests. */
export const moveAwaySchema = z.strictObject({
  model: z.string().min(1).max(200),
  because: z.string().max(2000),
});
/** `moved`: so many requests were broken off for others to go on with; 0 where one has come that cannot. */
export const movedSchema = z.object({ moved: count });
