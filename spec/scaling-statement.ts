/**
 * What a site says of models that follow demand over several sites: its keeper writes it, its gateways publish it in
 * their session records, and the keepers of the other sites divide the replicas by it
 * (`solver/scaling/divide-sites.ts`).
 *
 *   keeper ─ scaling.json ─► gateway ─ session record ─► gossip ─► gateway ─ sites-scaling.json ─► keeper
 */
import { z } from 'zod';

/** Models in a statement. Lower: smaller records; higher: more models of a site may follow demand over sites. */
export const stated_models_max = 64;
/** Sites that a gateway listens to, over all deployments. */
export const stated_peers_max = 64;
const replicas_max = 4096;

const count = z.int().min(0).max(replicas_max);
const figure = z.number().min(0).max(1e9);
/** Control characters would act on terminals that show them. */
const name = z
  .string()
  .min(1)
  .max(256)
  .regex(/^[^\p{Cc}]*$/u);

/** One model of one deployment at one site. Times are judged there: clocks of sites differ. */
export const statedModelSchema = z.strictObject({
  deployment: name,
  /** Of the division that it is about: see `Share`. */
  of: z.string().min(1).max(64),
  model: name,
  /** Requests at once that its gateways have, on average of late, and at most of a window's averages. */
  mean: figure,
  peak: figure,
  /** Somebody asked within the window. */
  asked: z.boolean(),
  /** First tokens come later there than the objective says. */
  late: z.boolean(),
  /** Demand was looked at for a whole window, and the number of replicas is as old. */
  seen: z.boolean(),
  settled: z.boolean(),
  /** Replicas that are wanted there; of them, those that serve, and those that wait for longer than a start takes. */
  have: count,
  serving: count,
  stuck: count,
  /** What it is about to have: told before it is done. */
  claim: count,
  /** Most that it could run, and most without waiting for others' jobs. */
  limit: count,
  ready: count,
  /** Requests that a replica computes at once there. */
  slots: z.number().positive().max(1e6),
  /** Of the next replica there, in points of the plan's objective: the same unit at all sites. */
  cost: z.number().positive().max(1e12),
  /** How long a start takes there, s. */
  wake_s: z.number().positive().max(1e7),
});
export type StatedModel = z.infer<typeof statedModelSchema>;

export const scalingStatementSchema = z.strictObject({
  format: z.literal(1),
  /** Changes with each writing, as a sign of life; its value means nothing to others. */
  at: z.int().min(0).max(Number.MAX_SAFE_INTEGER),
  models: z.array(statedModelSchema).max(stated_models_max),
});
export type ScalingStatement = z.infer<typeof scalingStatementSchema>;

const peerSchema = z.strictObject({ site: name, provider_id: z.string().regex(/^[0-9a-f]{32}$/) });
/** A site that is listened to, and whose word counts as its own. */
export type ScalingPeer = z.infer<typeof peerSchema>;

/** What a keeper hands the gateways of its site. */
export const keeperStatementSchema = z.strictObject({
  statement: scalingStatementSchema,
  peers: z.array(peerSchema).max(stated_peers_max),
});
export type KeeperStatement = z.infer<typeof keeperStatementSchema>;

/** What a gateway hands the keeper of its site. */
export const heardStatementsSchema = z.strictObject({
  format: z.literal(1),
  /** As its own session record has it; absent: it published none yet. */
  own: scalingStatementSchema.optional(),
  heard: z.array(z.strictObject({ site: name, statement: scalingStatementSchema })).max(4 * stated_peers_max),
});
export type HeardStatements = z.infer<typeof heardStatementsSchema>;
