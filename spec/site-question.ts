/**
 * What a site says of itself where one plan is made over several: the question that it would plan by, and what else
 * must be known before anything is submitted. `hpcserve plan FILE --question` prints it.
 */
import { z } from 'zod';
import { answerFormatsSchema } from './answer-parsers.ts';
import { siteMeshSchema } from './mesh-settings.ts';
import { modelFileSummarySchema } from './model-summary.ts';
import { engineNames, modelSchema, objectiveNames } from './model-yaml.ts';
import type { NodeKindOffer, PlacementModel, PlacementQuestion, RunningReplicas } from './plan.ts';
import { penaltiesSchema } from './site.ts';
import { deviceFiguresSchema } from './site-nodes.ts';
import { shareSchema } from './site-share.ts';

const count = z.int().min(0);
const number = z.number();

const placementModelSchema = z.strictObject({
  spec: modelSchema,
  model_path: z.string(),
  format: z.enum(['gguf', 'huggingface']),
  architecture: z.string(),
  weight_bytes: number,
  kv_bytes_per_token: number,
  trained_context_tokens: count,
  native: z.discriminatedUnion('supported', [
    z.strictObject({ supported: z.literal(true) }),
    z.strictObject({ supported: z.literal(false), because: z.string() }),
  ]),
  summary: modelFileSummarySchema.optional(),
  config: z.unknown().optional(),
  formats: answerFormatsSchema.optional(),
  workload: z
    .strictObject({
      rate_per_s: number,
      input_tokens: number,
      output_tokens: number,
      source: z.enum(['given', 'measured', 'assumed']),
    })
    .optional(),
  seen: z
    .array(
      z.strictObject({
        node_kind: z.string(),
        engine: z.enum(engineNames).exclude(['auto']),
        tensor: count,
        pipeline: count,
        max_sequences: count.optional(),
        kv_tokens: count.optional(),
        programs_bytes: number.optional(),
        stages: z
          .array(
            z.strictObject({
              begin: count,
              end: count,
              compute_s: number,
              operators_s: z.array(number).optional(),
            }),
          )
          .optional(),
      }),
    )
    .optional(),
}) satisfies z.ZodType<PlacementModel>;

const offerSchema = z.strictObject({
  node_kind: z.string(),
  tier: z.enum(['stable', 'scavenger']),
  partitions: z.array(z.string()),
  nodes_total: count,
  nodes_idle: count.optional(),
  pool: z.strictObject({ id: z.string(), nodes: count }).optional(),
  free: z.array(z.strictObject({ nodes: count, devices: count, cpus: count })).optional(),
  queue_wait_s: number.optional(),
  cpus: count,
  memory_bytes: number,
  devices: z.strictObject({
    kind: z.enum(['cpu', 'gpu', 'mig']),
    model: z.string(),
    count,
    memory_bytes: number,
    cores: count.optional(),
    emulated: z.literal('cpu').optional(),
    emulated_step_ms: number.optional(),
    figures: deviceFiguresSchema.optional(),
  }),
  whole_nodes: z.literal(true).optional(),
  private_fabric: z.literal(true).optional(),
  interconnect: z.custom<NodeKindOffer['interconnect']>((value) => typeof value === 'string').optional(),
  engines: z.partialRecord(
    z.enum(engineNames).exclude(['auto']),
    z.discriminatedUnion('available', [
      z.strictObject({
        available: z.literal(true),
        unverified: z.literal(true).optional(),
        reads_host_weights: z.literal(true).optional(),
      }),
      z.strictObject({ available: z.literal(false), because: z.string() }),
    ]),
  ),
  isa: z.array(z.string()).optional(),
  architecture: z.enum(['x86_64', 'aarch64']).optional(),
  time_limit_max_s: number.optional(),
  time_limit_default_s: number.optional(),
  penalties: penaltiesSchema.optional(),
}) satisfies z.ZodType<NodeKindOffer>;

const runningSchema = z.strictObject({
  model: z.string(),
  node_kind: z.string(),
  replicas: count,
  device_count: count,
  weights: z.enum(['resident', 'reuse', 'streamed']).optional(),
}) satisfies z.ZodType<RunningReplicas>;

const questionSchema = z.strictObject({
  deployment: z.string(),
  site: z.string(),
  models: z.array(placementModelSchema),
  node_kinds: z.array(offerSchema),
  time_limit_s: number.optional(),
  partitions: z.array(z.string()).optional(),
  settings: z.strictObject({
    margin_fixed_bytes: number,
    margin_weight_fraction: number,
    wrapped_memory_fraction: number,
    python_engine_bytes: number,
    host_overhead_bytes: number,
    // A site of a release that shares devices only where they do not suffice.
    shared_time_max: number.default(0),
    // A site of a release whose pipelines begin with the fewest stages.
    changes_stages: z.boolean().default(false),
    penalties: penaltiesSchema,
  }),
  objective: z.enum(objectiveNames).optional(),
  running: z.array(runningSchema).optional(),
}) satisfies z.ZodType<PlacementQuestion>;

/** How a site takes part in the gossip, and which mesh it is. */
const siteMeshStateSchema = z.strictObject({
  /** Where its network.key lies, or is to lie. */
  folder: z.string(),
  /** Equal where the keys are; absent: there is no key yet. Nothing of the key itself. */
  key_digest: z
    .string()
    .regex(/^[0-9a-f]{64}$/)
    .optional(),
  gossip: siteMeshSchema.shape.gossip,
  bootstrap: siteMeshSchema.shape.bootstrap,
  relay: siteMeshSchema.shape.relay,
  port: siteMeshSchema.shape.port,
});
export type SiteMeshState = z.infer<typeof siteMeshStateSchema>;

export const siteQuestionSchema = z.strictObject({
  format: z.literal(1),
  site: z.string(),
  /** Host of the login node that was asked. */
  hostname: z.string(),
  question: questionSchema,
  /** That of a plan which answers the question: see `Plan`. */
  inputs_digest: z.string(),
  /** The offers come from the site config alone. */
  offline: z.literal(true).optional(),
  /** What people should know of this site, whatever the plan. */
  warnings: z.array(z.string()),
  mesh: siteMeshStateSchema,
  /** Fingerprint of the provider that its gateway is one of. */
  provider_id: z
    .string()
    .regex(/^[0-9a-f]{32}$/)
    .optional(),
  /** What is deployed here under the name, if anything is. */
  deployed: z
    .strictObject({
      desired: z.enum(['serving', 'stopped']),
      /** Jobs of it that are not over. */
      live_launches: count,
      /** Where it came from `deploy --sites`. */
      share: shareSchema.optional(),
    })
    .optional(),
});
export type SiteQuestion = z.infer<typeof siteQuestionSchema>;
